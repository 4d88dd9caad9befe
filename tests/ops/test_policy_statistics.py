"""Derivatives with regard to a policy's statistics against automatic differentiation of its
log-probability, KL and entropy, written anew as functions of these statistics.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from ops_helpers import assert_near
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

from quintet.ops import policy_statistics
from quintet.ops.discrete import Bernoulli, Categorical
from quintet.ops.distributions import Family, TupleFamily, leaf_families, multi_categorical
from quintet.ops.gaussian import DiagGaussian

LOW, HIGH = (-2.0, 0.0, -1.0), (2.0, 1.0, 5.0)
FAMILIES: dict[str, Family] = {
    "categorical": Categorical(5),
    "bernoulli": Bernoulli(3),
    "gaussian": DiagGaussian(3, LOW, HIGH),
    "gaussian-mean": DiagGaussian(3, LOW, HIGH, "mean"),
    "gaussian-action": DiagGaussian(3, LOW, HIGH, "action"),
    "multi": multi_categorical((2, 4, 3)),
    "hybrid": TupleFamily(
        (
            Categorical(3),
            DiagGaussian(2, LOW[:2], HIGH[:2], "mean"),
            multi_categorical((2, 3)),
            Bernoulli(2),
            DiagGaussian(1, LOW[:1], HIGH[:1]),
        )
    ),
}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
with_and_without_std = pytest.mark.parametrize("learn_std", [False, True])

Leaf = tuple[Family, Tensor, Tensor, Tensor]


def draw(family: Family, seed: int, rows: int = 7) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn((rows, family.param_size), generator=g, dtype=torch.float64)


def actions(family: Family, params: Tensor, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return family.sample(params, family.draw_noise(params.shape[:-1], g))


def leaves(family: Family, params: Tensor, f: Tensor, action: Tensor, std: bool) -> Iterator[Leaf]:
    """Every leaf with its parameters, its part of f and its part of a packed action."""
    at = at_f = at_action = 0
    action = action.unsqueeze(-1) if isinstance(family, Categorical) else action
    for leaf in leaf_families(family):
        gaussian = isinstance(leaf, DiagGaussian)
        size = leaf.size if gaussian and not std else leaf.param_size
        width = 1 if isinstance(leaf, Categorical) else leaf.action_shape[0]
        yield (
            leaf,
            params[..., at : at + leaf.param_size],
            f[..., at_f : at_f + size],
            action[..., at_action : at_action + width],
        )
        at, at_f, at_action = at + leaf.param_size, at_f + size, at_action + width
    assert (at, at_f) == (params.shape[-1], f.shape[-1])


def normal(leaf: DiagGaussian, params: Tensor, f: Tensor) -> Normal:
    """The raw sample's, of the mean in f, and of the spread in f or else in the parameters."""
    log_std = f[..., leaf.size :] if f.shape[-1] > leaf.size else params[..., leaf.size :]
    return Normal(f[..., : leaf.size], log_std.exp())


def log_prob(family: Family, params: Tensor, f: Tensor, action: Tensor, std: bool) -> Tensor:
    total = torch.zeros(params.shape[:-1], dtype=f.dtype)
    for leaf, p, x, a in leaves(family, params, f, action, std):
        if isinstance(leaf, Categorical):
            part = x.gather(-1, a.long()).log()
        elif isinstance(leaf, Bernoulli):
            part = torch.where(a > 0, x, 1 - x).log()
        else:
            part = normal(leaf, p, x).log_prob(a)
            if leaf.squash == "action":
                part = part - (1 - a.tanh().square()).log()
        total = total + part.sum(-1)
    return total


def entropy(family: Family, params: Tensor, f: Tensor, action: Tensor, std: bool) -> Tensor:
    total = torch.zeros(params.shape[:-1], dtype=f.dtype)
    for leaf, p, x, _ in leaves(family, params, f, action, std):
        if isinstance(leaf, Categorical):
            part = -x * x.log()
        elif isinstance(leaf, Bernoulli):
            part = -x * x.log() - (1 - x) * (1 - x).log()
        else:
            part = normal(leaf, p, x).entropy()
        total = total + part.sum(-1)
    return total


def kl(
    family: Family, average: tuple[Tensor, Tensor], params: Tensor, f: Tensor, action: Tensor,
    std: bool,
) -> Tensor:  # fmt: skip
    """From the average policy, given by parameters and statistics."""
    total = torch.zeros(params.shape[:-1], dtype=f.dtype)
    both = zip(
        leaves(family, average[0], average[1], action, std),
        leaves(family, params, f, action, std),
        strict=True,
    )
    for (leaf, p_other, y, _), (_, p, x, _) in both:
        if isinstance(leaf, Categorical):
            part = y * (y / x).log()
        elif isinstance(leaf, Bernoulli):
            part = y * (y / x).log() + (1 - y) * ((1 - y) / (1 - x)).log()
        else:
            part = kl_divergence(normal(leaf, p_other, y), normal(leaf, p, x))
        total = total + part.sum(-1)
    return total


def derivative(function: Callable[[Tensor], Tensor], f: Tensor) -> Tensor:
    """Of each row by its own statistics; zeros where they are not used."""
    f = f.detach().requires_grad_()
    (found,) = torch.autograd.grad(function(f).sum() + 0 * f.sum(), f)
    return found


def statistics(family: Family, params: Tensor, std: bool) -> Tensor:
    return policy_statistics.statistics(family, params, learn_std=std)


@every_family
@with_and_without_std
def test_derivatives_are_those_of_functions_of_the_statistics(
    family: Family, learn_std: bool
) -> None:
    params, average = draw(family, 1), draw(family, 2)
    action = actions(family, params)
    f, other = statistics(family, params, learn_std), statistics(family, average, learn_std)
    given = (family, params, action)
    assert_near(
        policy_statistics.score(*given, learn_std=learn_std),
        derivative(lambda x: log_prob(family, params, x, action, learn_std), f),
    )
    assert_near(
        policy_statistics.kl_gradient(family, average, params, learn_std=learn_std),
        derivative(lambda x: kl(family, (average, other), params, x, action, learn_std), f),
    )
    assert_near(
        policy_statistics.entropy_gradient(family, params, learn_std=learn_std),
        derivative(lambda x: entropy(family, params, x, action, learn_std), f),
    )
    # And the log-probability is the family's own, but for digits that tanh has lost here.
    found = log_prob(family, params, f, action, learn_std)
    assert_close(found, family.log_prob(params, action), rtol=1e-11, atol=1e-11)


@every_family
def test_statistics_carry_derivatives_to_the_parameters(family: Family) -> None:
    """As those of the family's own log-probability, KL and entropy by its parameters."""
    params, average = draw(family, 3), draw(family, 4)
    action = actions(family, params)
    squashed = any(getattr(leaf, "squash", "") == "action" for leaf in leaf_families(family))
    cases = {
        "log_prob": (
            lambda p: family.log_prob(p, action),
            policy_statistics.score(family, params, action, learn_std=True),
        ),
        "kl": (
            lambda p: family.kl(average, p),
            policy_statistics.kl_gradient(family, average, params, learn_std=True),
        ),
        "entropy": (
            family.entropy,
            policy_statistics.entropy_gradient(family, params, learn_std=True),
        ),
    }
    if squashed:  # its entropy is that of the raw sample here
        del cases["entropy"]
    for name, (function, slope) in cases.items():
        found = derivative(lambda p, k=slope: (statistics(family, p, True) * k).sum(-1), params)
        bound = 1e-12 * found.abs().max().item()
        assert_close(found, derivative(function, params), rtol=0, atol=bound, msg=name)


def test_statistics_are_probabilities_and_means() -> None:
    family = FAMILIES["hybrid"]
    params = draw(family, 5)
    mean, log_std = params[:, 3:5].tanh(), params[:, 5:7]
    discrete = [params[:, 7:9].softmax(-1), params[:, 9:12].softmax(-1), params[:, 12:14].sigmoid()]
    head = [params[:, :3].softmax(-1), mean]
    last = [params[:, 14:15]]
    assert_near(statistics(family, params, False), torch.cat([*head, *discrete, *last], -1))
    with_std = [*head, log_std, *discrete, *last, params[:, 15:16]]
    assert_near(statistics(family, params, True), torch.cat(with_std, -1))


def test_without_learn_std_the_spread_gets_no_gradient() -> None:
    for name in ("gaussian", "gaussian-mean", "gaussian-action"):
        family = FAMILIES[name]
        found = derivative(lambda p, of=family: statistics(of, p, False).sum(-1), draw(family, 6))
        assert found[:, :3].all()
        assert not found[:, 3:].any()


@every_family
@with_and_without_std
def test_nothing_carries_a_gradient_but_the_statistics(family: Family, learn_std: bool) -> None:
    params = draw(family, 7).requires_grad_()
    action = actions(family, params.detach())
    for found in (
        policy_statistics.score(family, params, action, learn_std=learn_std),
        policy_statistics.kl_gradient(family, params, params, learn_std=learn_std),
        policy_statistics.entropy_gradient(family, params, learn_std=learn_std),
    ):
        assert not found.requires_grad
        assert found.shape == statistics(family, params, learn_std).shape
    assert statistics(family, params, learn_std).requires_grad


@every_family
@with_and_without_std
def test_leading_dimensions_stand_side_by_side(family: Family, learn_std: bool) -> None:
    params, average = draw(family, 8, 6), draw(family, 9, 6)
    action = actions(family, params)
    cases = (
        (lambda p, q, a: policy_statistics.score(family, p, a, learn_std=learn_std)),
        (lambda p, q, a: policy_statistics.kl_gradient(family, q, p, learn_std=learn_std)),
        (lambda p, q, a: policy_statistics.entropy_gradient(family, p, learn_std=learn_std)),
        (lambda p, q, a: statistics(family, p, learn_std)),
    )
    for case in cases:
        flat = case(params, average, action)
        block = case(*(x.unflatten(0, (2, 3)) for x in (params, average, action)))
        assert torch.equal(block.flatten(0, 1), flat)


# At the ends of what float32 can tell


EXTREMES = torch.tensor([-1e9, -200.0, -90.0, 0.0, 3.0, 88.0, 200.0])


@pytest.mark.parametrize("name", ["categorical", "bernoulli", "multi"])
def test_underflowed_probabilities_give_finite_derivatives(name: str) -> None:
    """Of every action, with logits as far apart as those of masked actions are."""
    family = FAMILIES[name]
    g = torch.Generator().manual_seed(0)
    draws = torch.randint(len(EXTREMES), (2, 400, family.param_size), generator=g)
    params, average = EXTREMES[draws]
    action = torch.randint(2, (400, *family.action_shape), generator=g)  # however improbable
    for found in (
        policy_statistics.score(family, params, action, learn_std=False),
        policy_statistics.kl_gradient(family, average, params, learn_std=False),
        policy_statistics.entropy_gradient(family, params, learn_std=False),
    ):
        assert found.dtype == torch.float32
        assert found.isfinite().all()
        # What reaches the logits, and so the weights, is of the size of rewards.
        reached = derivative(lambda p, k=found: (statistics(family, p, False) * k).sum(-1), params)
        assert reached.isfinite().all()


def test_a_masked_action_moves_nothing_and_asks_for_nothing() -> None:
    """Its entropy's derivative would be infinite, and the norm of all of them without meaning."""
    family = Categorical(4)
    mask = torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1]])
    params, average = (family.apply_mask(draw(family, s, 3).float(), mask) for s in (1, 2))
    score = policy_statistics.score(family, params, torch.tensor([0, 1, 3]), learn_std=False)
    k = policy_statistics.kl_gradient(family, average, params, learn_std=False)
    slope = policy_statistics.entropy_gradient(family, params, learn_std=False)
    for found in (score, k, slope):
        assert not found[mask == 0].any()
    assert_close(k[2], torch.tensor([0.0, 0.0, 0.0, -1.0]))
    allowed = params[0, [0, 2]], average[0, [0, 2]]
    small = Categorical(2)
    expected = policy_statistics.kl_gradient(small, allowed[1], allowed[0], learn_std=False)
    assert_close(k[0, [0, 2]], expected)
    expected = policy_statistics.entropy_gradient(small, allowed[0], learn_std=False)
    assert_close(slope[0, [0, 2]], expected)


@every_family
@with_and_without_std
def test_float32_has_the_digits_of_float64(family: Family, learn_std: bool) -> None:
    """Also far out: of bits that are nearly certain the difference of probabilities has few."""
    params, average = (12.0 * draw(family, s, 200).float() for s in (10, 11))
    for leaf in leaf_families(family):
        if isinstance(leaf, DiagGaussian):  # whose digits are lost by exp of a large log-std
            params, average = 0.1 * params, 0.1 * average
            break
    action = actions(family, params)
    cases: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "score": lambda p, q: policy_statistics.score(
            family, p, action.to(p.dtype) if action.is_floating_point() else action,
            learn_std=learn_std,
        ),
        "kl": lambda p, q: policy_statistics.kl_gradient(family, q, p, learn_std=learn_std),
        "entropy": lambda p, q: policy_statistics.entropy_gradient(family, p, learn_std=learn_std),
    }  # fmt: skip
    for name, case in cases.items():
        found, exact = case(params, average), case(params.double(), average.double())
        # What a float32 parameter's last digit may change, over logits of some 40.
        assert_close(found.double(), exact, rtol=2e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
