"""TupleFamily is the sum of its parts, over actions packed in one tensor."""

import itertools

import pytest
import torch
from ops_helpers import assert_near
from torch import Tensor

from quintet.ops.discrete import Bernoulli, Categorical
from quintet.ops.distributions import (
    LARGEST_EXACT,
    Family,
    TupleFamily,
    leaf_families,
    multi_categorical,
)
from quintet.ops.gaussian import DiagGaussian

CHILDREN: tuple[Family, ...] = (
    Categorical(4),
    DiagGaussian(2, (-1.0, 0.0), (1.0, 3.0)),
    multi_categorical((2, 3)),
    Bernoulli(2),
    DiagGaussian(1, (-2.0,), (2.0,), "action"),
)
FAMILY = TupleFamily(CHILDREN)
PLACES = (slice(0, 1), slice(1, 3), slice(3, 5), slice(5, 7), slice(7, 8))
INTEGERS = TupleFamily((multi_categorical((2, 3)), Categorical(4), Bernoulli(2)))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def params(seed: int, family: Family = FAMILY, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn((5, family.param_size), generator=generator(seed), dtype=dtype)


def test_sizes():
    assert FAMILY.param_size == 4 + 4 + 5 + 2 + 2
    assert FAMILY.noise_size == 4 + 2 + 5 + 2 + 1
    assert FAMILY.mask_size == 4 + 5
    assert FAMILY.action_shape == (1 + 2 + 2 + 2 + 1,)
    assert FAMILY.action_dtype == torch.float32
    assert INTEGERS.action_shape == (2 + 1 + 2,)
    assert INTEGERS.action_dtype == torch.int64
    assert isinstance(FAMILY, Family)
    assert all(isinstance(child, Family) for child in CHILDREN)


def test_everything_is_the_sum_of_the_leaves():
    p, q = params(0), params(1)
    noise = FAMILY.draw_noise((5,), generator(2))
    assert noise.shape == (5, FAMILY.noise_size)
    action = FAMILY.sample(p, noise)
    assert action.shape == (5, *FAMILY.action_shape)
    mode, env, leaves = FAMILY.mode(p), FAMILY.to_env(action), FAMILY.unpack(action)
    log_prob = entropy = kl = torch.zeros(5, dtype=torch.float64)
    at, noise_at = 0, 0
    for i, (child, place) in enumerate(zip(CHILDREN, PLACES, strict=True)):
        part = slice(at, at + child.param_size)
        noise_part = slice(noise_at, noise_at + child.noise_size)
        own = child.sample(p[:, part], noise[:, noise_part])
        assert torch.equal(leaves[i], own)
        assert leaves[i].dtype == own.dtype
        for packed, leaf in (
            (action, own),
            (mode, child.mode(p[:, part])),
            (env, child.to_env(own)),
        ):
            assert torch.equal(packed[:, place], leaf.double().reshape(5, -1))
        log_prob = log_prob + child.log_prob(p[:, part], own)
        entropy = entropy + child.entropy(p[:, part])
        kl = kl + child.kl(p[:, part], q[:, part])
        at, noise_at = part.stop, noise_part.stop
    assert_near(FAMILY.log_prob(p, action), log_prob)
    assert_near(FAMILY.entropy(p), entropy)
    assert_near(FAMILY.kl(p, q), kl)
    assert (FAMILY.kl(p, q) > 0).all()


@pytest.mark.parametrize("family", [FAMILY, INTEGERS], ids=["mixed", "integers"])
@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_actions_have_the_declared_shape_and_dtype(family: TupleFamily, leading: tuple[int, ...]):
    p = torch.randn((*leading, family.param_size), generator=generator(0))
    action = family.sample(p, family.draw_noise(leading, generator(1)))
    for x in (action, family.mode(p), family.to_env(action)):
        assert x.shape == (*leading, *family.action_shape)
        assert x.dtype == family.action_dtype
    assert torch.equal(family.pack(family.unpack(action)), action)
    assert family.log_prob(p, action).shape == leading


def test_the_probabilities_of_all_packed_actions_sum_to_one():
    p = params(6, INTEGERS)[0]
    ranges = [range(2), range(3), range(4), range(2), range(2)]
    actions = torch.tensor(list(itertools.product(*ranges)))
    total = INTEGERS.log_prob(p.expand(len(actions), -1), actions).exp().sum()
    assert_near(total, torch.ones((), dtype=torch.float64))


def test_large_integers_stay_exact_beside_floats():
    family = TupleFamily((Categorical(LARGEST_EXACT), DiagGaussian(1, (-1.0,), (1.0,))))
    assert family.action_dtype == torch.float32
    for n in (LARGEST_EXACT - 1, LARGEST_EXACT - 2):
        packed = family.pack((torch.tensor([n]), torch.zeros(1, 1)))
        assert packed.dtype == torch.float32
        assert family.unpack(packed)[0].tolist() == [n]
    with pytest.raises(ValueError, match="must stay within 16777216 values"):
        TupleFamily((Categorical(LARGEST_EXACT + 1), DiagGaussian(1, (-1.0,), (1.0,))))
    nested = TupleFamily((Categorical(LARGEST_EXACT + 1),))
    with pytest.raises(ValueError, match="must stay within"):
        TupleFamily((nested, DiagGaussian(1, (-1.0,), (1.0,))))


def test_no_families_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        TupleFamily(())


def test_masks_reach_the_leaves_that_take_them():
    p = params(3)
    mask = torch.ones(5, 9)
    mask[:, 1] = 0  # action 1 of the categorical
    mask[:, 4 + 2] = 0  # action 0 of the second component of the multi-categorical
    mask[0] = 0
    changed = FAMILY.apply_mask(p, mask) != p
    assert not changed[0].any()
    assert [i for i in range(FAMILY.param_size) if changed[1, i]] == [1, 4 + 4 + 2]


MASKABLE: dict[str, tuple[Family, list[int]]] = {
    "categorical": (Categorical(4), [2]),
    "multi": (multi_categorical((2, 3)), [1, 2]),
    "tuple": (TupleFamily((Categorical(4), multi_categorical((2, 3)))), [2, 0, 1]),
}


@pytest.mark.parametrize("name", MASKABLE)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_one_allowed_action_is_certain(name: str, dtype: torch.dtype, scale: float):
    """Entropy and log-probability are 0 to the bit, and no gradient is NaN."""
    family, only = MASKABLE[name]
    widths = {"categorical": [4], "multi": [2, 3], "tuple": [4, 2, 3]}[name]
    mask = torch.zeros(5, family.mask_size, dtype=dtype)
    for width, choice, at in zip(widths, only, itertools.accumulate([0, *widths]), strict=False):
        assert choice < width
        mask[:, at + choice] = 1
    free = (scale * params(0, family, torch.float32)).requires_grad_()
    masked = family.apply_mask(free, mask)
    other = family.apply_mask(scale * params(1, family, torch.float32), mask)
    action = family.sample(masked, family.draw_noise((5,), generator(0)))
    assert action.reshape(5, -1).tolist() == [only] * 5
    assert torch.equal(family.mode(masked), action)
    log_prob, entropy, kl = (
        family.log_prob(masked, action),
        family.entropy(masked),
        family.kl(other.detach(), masked),
    )
    for x in (log_prob, entropy, kl):
        assert torch.equal(x, torch.zeros(5))
    for x in (log_prob, entropy, kl):
        (gradient,) = torch.autograd.grad(x.sum(), free, retain_graph=True)
        assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("name", MASKABLE)
def test_a_masked_family_is_the_family_of_the_allowed_actions(name: str):
    """No probability and no gradient reaches what is masked; all else is as without it."""
    family, _ = MASKABLE[name]
    mask = torch.ones(5, family.mask_size, dtype=torch.int8)
    mask[:, 0] = 0
    free, q = params(2, family).requires_grad_(), params(3, family)
    masked, masked_q = family.apply_mask(free, mask), family.apply_mask(q, mask)
    action = family.mode(masked)
    for x in (
        family.log_prob(masked, action),
        family.entropy(masked),
        family.kl(masked, masked_q),
        family.kl(masked_q.detach(), masked),
    ):
        assert x.isfinite().all()
        (gradient,) = torch.autograd.grad(x.sum(), free, retain_graph=True)
        assert gradient.isfinite().all()
        assert (gradient[:, 0] == 0).all()
        assert gradient.abs().sum() > 0
    free = free.detach()
    if name == "categorical":
        expected = Categorical(3).entropy(free[:, 1:])
    elif name == "multi":
        expected = Categorical(3).entropy(free[:, 2:])  # of the first component one choice is left
    else:
        expected = Categorical(3).entropy(free[:, 1:4])
        expected = expected + multi_categorical((2, 3)).entropy(free[:, 4:])
    assert_near(family.entropy(masked).detach(), expected)


def test_a_tuple_of_maskless_families_takes_no_mask():
    family = TupleFamily((Bernoulli(1), Bernoulli(2)))
    with pytest.raises(ValueError, match="no action mask"):
        family.apply_mask(torch.zeros(3), torch.ones(0))


def test_tuples_nest():
    outer = TupleFamily((FAMILY, Categorical(2)))
    p = torch.cat([params(4), torch.zeros(5, 2, dtype=torch.float64)], dim=-1)
    action = outer.sample(p, outer.draw_noise((5,), generator(5)))
    assert outer.action_shape == (9,)
    inner, last = outer.unpack(action)
    assert inner.shape == (5, 8)
    assert last.dtype == torch.int64
    expected = FAMILY.log_prob(params(4), inner) - torch.tensor(2.0).double().log()
    assert_near(outer.log_prob(p, action), expected)
    several = (Categorical(2), Categorical(3))
    assert leaf_families(outer) == (*CHILDREN[:2], *several, *CHILDREN[3:], Categorical(2))
    flat = TupleFamily(leaf_families(outer))
    assert_near(flat.log_prob(p, action), outer.log_prob(p, action))
    assert leaf_families(Categorical(2)) == (Categorical(2),)


def test_the_uniform_policy_takes_every_allowed_choice_alike():
    family = TupleFamily((Categorical(3), Bernoulli(2), DiagGaussian(1, (-1.0,), (1.0,))))
    noise = family.draw_noise((30_000,), torch.Generator().manual_seed(0))
    params = 5.0 * torch.randn(30_000, family.param_size)
    mask = torch.tensor([1, 0, 1]).expand(30_000, -1)
    choice, bits, number = family.unpack(family.uniform(family.apply_mask(params, mask), noise))
    assert torch.bincount(choice, minlength=3).div(30_000).tolist() == pytest.approx(
        [0.5, 0.0, 0.5], abs=0.015
    )
    assert bits.float().mean(0).tolist() == pytest.approx([0.5, 0.5], abs=0.015)
    assert number.abs().mean().item() == pytest.approx(0.5, abs=0.015)
