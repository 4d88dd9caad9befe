"""Discrete families against torch.distributions, counts, finite differences and masks."""

import functools

import pytest
import torch
from ops_helpers import assert_near, gradients_agree
from torch import Tensor
from torch.distributions import Bernoulli as TorchBernoulli
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, kl_divergence

from quintet.ops.discrete import Bernoulli, Categorical
from quintet.ops.distributions import Family, TupleFamily, multi_categorical

NVEC = (2, 4, 3)
FAMILIES: dict[str, Family] = {
    "categorical": Categorical(5),
    "multi": multi_categorical(NVEC),
    "bernoulli": Bernoulli(3),
}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_params(family: Family, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn((*shape, family.param_size), generator=generator(seed), dtype=torch.float64)


def reference(family: Family, params: Tensor) -> list[torch.distributions.Distribution]:
    """Independent parts whose log-probabilities add up."""
    if isinstance(family, Bernoulli):
        return [Independent(TorchBernoulli(logits=params), 1)]
    nvec = (
        [leaf.param_size for leaf in family.families]
        if isinstance(family, TupleFamily)
        else (family.param_size,)
    )
    return [TorchCategorical(logits=part) for part in params.split(list(nvec), dim=-1)]


def parts(family: Family, action: Tensor) -> list[Tensor]:
    if isinstance(family, TupleFamily):
        return list(action.unbind(dim=-1))
    return [action.to(torch.float64) if isinstance(family, Bernoulli) else action]


@every_family
def test_against_torch(family: Family):
    p, q = draw_params(family, 6, 4, seed=1), draw_params(family, 6, 4, seed=2)
    action = family.sample(p, family.draw_noise((6, 4), generator(3)))
    assert action.shape == (6, 4, *family.action_shape)
    assert action.dtype == family.action_dtype
    ps, qs = reference(family, p), reference(family, q)
    expected = sum(d.log_prob(a) for d, a in zip(ps, parts(family, action), strict=True))
    assert_near(family.log_prob(p, action), expected)
    assert_near(family.entropy(p), sum(d.entropy() for d in ps))
    assert_near(family.kl(p, q), sum(kl_divergence(a, b) for a, b in zip(ps, qs, strict=True)))
    assert_near(family.kl(p, p), torch.zeros(6, 4, dtype=torch.float64))
    assert family.log_prob(p.float(), action).dtype == torch.float32


@every_family
def test_gradients_against_differences(family: Family):
    p, q = draw_params(family, 3, seed=4), draw_params(family, 3, seed=5)
    action = family.sample(p, family.draw_noise((3,), generator(6)))
    p, q = p.requires_grad_(), q.requires_grad_()
    assert gradients_agree(lambda x: family.log_prob(x, action), (p,))
    assert gradients_agree(family.entropy, (p,))
    assert gradients_agree(family.kl, (p, q))


@every_family
def test_sampling_frequencies(family: Family):
    n = 40_000
    p = draw_params(family, seed=7)
    action = family.sample(p.expand(n, -1), family.draw_noise((n,), generator(8)))
    columns = action.reshape(n, -1)
    one_hot = isinstance(family, Bernoulli)
    for k, column in enumerate(columns.unbind(dim=-1)):
        if one_hot:
            one = p[k].sigmoid()
            probs = torch.stack([1 - one, one])
        else:
            probs = reference(family, p)[k].probs
        counts = torch.bincount(column, minlength=len(probs)).double()
        chi_square = ((counts - n * probs).square() / (n * probs)).sum().item()
        freedom = len(probs) - 1
        # mean + 5 standard deviations; the seed is fixed, so this either always or never passes
        assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


@every_family
def test_components_are_drawn_independently(family: Family):
    noise = family.draw_noise((20_000,), generator(9)).double()
    correlation = torch.corrcoef(noise.T) - torch.eye(family.noise_size, dtype=torch.float64)
    # 4.5 standard deviations; the largest of 36 is seen at 2.8.
    assert correlation.abs().max() < 4.5 / 20_000**0.5


@every_family
def test_noise_is_finite_float32_and_follows_the_generator(family: Family):
    first = family.draw_noise((50, 1000), generator(10))
    assert first.shape == (50, 1000, family.noise_size)
    assert first.dtype == torch.float32
    assert first.isfinite().all()
    torch.manual_seed(999)
    assert torch.equal(first, family.draw_noise((50, 1000), generator(10)))
    assert not torch.equal(first, family.draw_noise((50, 1000), generator(11)))


def test_noise_is_finite_at_the_ends_of_the_uniform(monkeypatch: pytest.MonkeyPatch):
    for value in (0.0, 1.0 - 2.0**-53):
        extreme = functools.partial(torch.full, fill_value=value)
        monkeypatch.setattr(
            torch,
            "rand",
            lambda shape, generator, full=extreme, **kind: full(shape, **kind),
        )
        for family in FAMILIES.values():
            assert family.draw_noise((2,), generator(0)).isfinite().all()


@every_family
def test_mode_is_the_most_probable_action_and_what_no_noise_gives(family: Family):
    p = draw_params(family, 200, seed=12)
    mode = family.mode(p)
    noise = torch.zeros(200, family.noise_size)
    assert torch.equal(mode, family.sample(p, noise))
    best = family.log_prob(p, mode)
    for seed in range(20):
        other = family.sample(p, family.draw_noise((200,), generator(seed)))
        assert (family.log_prob(p, other) <= best + 1e-12).all()


@every_family
def test_extreme_logits_stay_finite(family: Family):
    p = torch.full((1, family.param_size), -80.0)
    p[..., ::2] = 120.0
    q = -p
    p, q = p.requires_grad_(), q.requires_grad_()
    action = family.mode(q)
    total = family.log_prob(p, action).sum() + family.entropy(p).sum() + family.kl(p, q).sum()
    total.backward()
    assert total.isfinite()
    assert p.grad.isfinite().all()
    assert q.grad.isfinite().all()


@every_family
def test_the_environment_gets_the_action_itself(family: Family):
    action = family.mode(draw_params(family, 4))
    assert torch.equal(family.to_env(action), action)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_mask_of_a_categorical(dtype: torch.dtype):
    family = Categorical(5)
    n = 20_000
    p = draw_params(family, seed=13).float()
    p[1] = 30.0  # the forbidden action would be by far the best
    mask = torch.tensor([1, 0, 1, 0, 1]).to(dtype)
    masked = family.apply_mask(p, mask)
    assert masked.dtype == p.dtype
    assert torch.equal(masked.softmax(-1) == 0, mask == 0)
    assert family.mode(masked).item() != 1
    noise = family.draw_noise((n,), generator(14))
    action = family.sample(masked.expand(n, -1), noise)
    assert set(action.tolist()) == {0, 2, 4}
    # as if the forbidden actions did not exist
    allowed = TorchCategorical(logits=p[mask != 0])
    for index, a in enumerate((0, 2, 4)):
        assert_near(family.log_prob(masked, torch.tensor(a)), allowed.log_prob(torch.tensor(index)))
    assert_near(family.entropy(masked), allowed.entropy())
    q = draw_params(family, seed=15).float()
    allowed_q = TorchCategorical(logits=q[mask != 0])
    assert_near(family.kl(masked, family.apply_mask(q, mask)), kl_divergence(allowed, allowed_q))


@pytest.mark.parametrize("family", [Categorical(5), multi_categorical(NVEC)])
def test_masked_gradients_are_finite_and_zero_where_forbidden(family: Family):
    p = draw_params(family, 3, seed=16).float().requires_grad_()
    q = draw_params(family, 3, seed=17).float().requires_grad_()
    mask = torch.ones(3, family.mask_size)
    mask[:, 1] = 0
    mask[0, 3] = 0
    masked_p, masked_q = family.apply_mask(p, mask), family.apply_mask(q, mask)
    action = family.mode(masked_p)
    total = (
        family.log_prob(masked_p, action) + family.entropy(masked_p) + family.kl(masked_p, masked_q)
    ).sum()
    total.backward()
    for grad in (p.grad, q.grad):
        assert grad.isfinite().all()
        assert not grad[mask == 0].any()
    assert p.grad[mask != 0].any()
    # A policy that may do what the other may not: large, but finite.
    assert family.kl(p, masked_q).isfinite().all()


@pytest.mark.parametrize("family", [Categorical(5), multi_categorical(NVEC)])
def test_a_row_that_allows_nothing_is_left_unmasked(family: Family):
    p = draw_params(family, 3, seed=18)
    mask = torch.ones(3, family.mask_size, dtype=torch.bool)
    mask[0] = False
    mask[2, 0] = False
    masked = family.apply_mask(p, mask)
    assert torch.equal(masked[:2], p[:2])
    assert (masked[2] != p[2]).tolist() == [True] + [False] * (family.param_size - 1)


def test_a_component_that_allows_nothing_is_left_unmasked():
    family = multi_categorical(NVEC)
    p = draw_params(family, seed=19)
    mask = torch.tensor([0, 0, 1, 0, 1, 1, 0, 1, 1])
    changed = (family.apply_mask(p, mask) != p).long()
    assert changed.tolist() == [0, 0, 0, 1, 0, 0, 1, 0, 0]


def test_bernoulli_takes_no_mask():
    assert Bernoulli(2).mask_size == 0
    with pytest.raises(ValueError, match="no action mask"):
        Bernoulli(2).apply_mask(torch.zeros(2), torch.ones(2))


def test_sizes():
    assert [f.param_size for f in FAMILIES.values()] == [5, 9, 3]
    assert [f.noise_size for f in FAMILIES.values()] == [5, 9, 3]
    assert [f.mask_size for f in FAMILIES.values()] == [5, 9, 0]
    assert [f.action_shape for f in FAMILIES.values()] == [(), (3,), (3,)]
