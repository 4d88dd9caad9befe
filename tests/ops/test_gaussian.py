"""Continuous families against torch.distributions, numeric integration and finite differences."""

import math

import pytest
import torch
from ops_helpers import assert_near, gradients_agree
from torch import Tensor
from torch.distributions import Independent, Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import TanhTransform
from torch.testing import assert_close

from quintet.ops.distributions import Family
from quintet.ops.gaussian import QUADRATURE_NODES, DiagGaussian, gauss_hermite

LOW, HIGH = (-2.0, 0.0, -1.0), (2.0, 1.0, 5.0)
FAMILIES: dict[str, DiagGaussian] = {
    "plain": DiagGaussian(3, LOW, HIGH),
    "mean_tanh": DiagGaussian(3, LOW, HIGH, squash="mean"),
    "tanh": DiagGaussian(3, LOW, HIGH, "action"),
}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_params(family: Family, *shape: int, seed: int = 0) -> Tensor:
    x = torch.randn((*shape, family.param_size), generator=generator(seed), dtype=torch.float64)
    return 0.5 * x


def normal(family: Family, params: Tensor) -> Independent:
    mean, log_std = params.chunk(2, dim=-1)
    squash = family.squash == "mean"
    return Independent(Normal(mean.tanh() if squash else mean, log_std.exp()), 1)


@every_family
def test_against_torch(family: DiagGaussian):
    p, q = draw_params(family, 6, 4, seed=1), draw_params(family, 6, 4, seed=2)
    noise = family.draw_noise((6, 4), generator(3))
    action = family.sample(p, noise)
    assert action.shape == (6, 4, 3)
    reference = normal(family, p)
    assert_near(action, reference.mean + reference.stddev * noise.double())
    assert_near(family.mode(p), reference.mean)
    assert_near(family.kl(p, q), kl_divergence(reference, normal(family, q)))
    assert not family.kl(p, p).any()
    if family.squash == "action":
        squashed = TransformedDistribution(reference, [TanhTransform()])
        # Theirs finds the action as atanh(tanh(action)), which loses digits.
        expected = squashed.log_prob(action.tanh())
        assert_close(family.log_prob(p, action), expected, rtol=0.0, atol=5e-11)
    else:
        assert_near(family.log_prob(p, action), reference.log_prob(action))
        assert_near(family.entropy(p), reference.entropy())


@every_family
def test_gradients_against_differences(family: DiagGaussian):
    p, q = draw_params(family, 2, seed=4), draw_params(family, 2, seed=5)
    noise = family.draw_noise((2,), generator(6))
    action = family.sample(p, noise)
    p, q, action = p.requires_grad_(), q.requires_grad_(), action.requires_grad_()
    assert gradients_agree(family.log_prob, (p, action))
    assert gradients_agree(family.entropy, (p,))
    assert gradients_agree(family.kl, (p, q))
    assert gradients_agree(lambda x: family.sample(x, noise), (p,))


@every_family
def test_moments_of_samples(family: DiagGaussian):
    n = 40_000
    p = draw_params(family, seed=7)
    noise = family.draw_noise((n,), generator(8))
    assert noise.dtype == torch.float32
    assert noise.isfinite().all()
    action = family.sample(p.expand(n, -1), noise)
    reference = normal(family, p)
    z = (action.mean(dim=0) - reference.mean) / (reference.stddev / n**0.5)
    assert z.abs().max() < 4.5
    assert_close(action.std(dim=0), reference.stddev, rtol=4.5 / (2 * n) ** 0.5, atol=0.0)


@every_family
def test_noise_follows_its_generator_only(family: DiagGaussian):
    torch.manual_seed(1)
    first = family.draw_noise((5, 2), generator(9))
    torch.manual_seed(2)
    assert torch.equal(first, family.draw_noise((5, 2), generator(9)))


@every_family
def test_float32_in_float32_out(family: DiagGaussian):
    p = draw_params(family, 4, seed=10)
    action = family.sample(p, family.draw_noise((4,), generator(11)))
    for dtype in (torch.float32, torch.float64):
        assert family.sample(p.to(dtype), torch.zeros(4, 3)).dtype == dtype
        assert family.entropy(p.to(dtype)).dtype == dtype
    single = family.log_prob(p.float(), action.float())
    assert_near(single, family.log_prob(p, action).float())
    assert_near(family.entropy(p.float()), family.entropy(p).float())


@every_family
def test_no_family_takes_a_mask(family: DiagGaussian):
    assert family.mask_size == 0
    with pytest.raises(ValueError, match="no action mask"):
        family.apply_mask(torch.zeros(6), torch.ones(1))


def test_diagonal_to_env():
    unit = torch.tensor([[0.0, 0.0, 0.0], [1.0, -1.0, 0.5], [3.0, -7.0, 9.0]])
    clipped = [[0.0, 0.5, 2.0], [2.0, 0.0, 3.5], [2.0, 0.0, 5.0]]
    assert_near(DiagGaussian(3, LOW, HIGH).to_env(unit), torch.tensor(clipped))


def test_unbounded_dimensions_are_left_alone():
    family = DiagGaussian(3, (-math.inf, 0.0, -1.0), (math.inf, math.inf, 5.0))
    env = family.to_env(torch.tensor([17.0, -3.0, 3.0]))
    assert env.tolist() == [17.0, -3.0, 5.0]


def test_bounds_are_never_left_by_rounding():
    low, high = (0.1, -0.3, 1e-3), (0.7, 1.1, 123.4)
    bottom, top = torch.tensor(low), torch.tensor(high)
    u = torch.linspace(-30, 30, 999).unsqueeze(-1).expand(-1, 3)
    for family in (DiagGaussian(3, low, high), DiagGaussian(3, low, high, "action")):
        env = family.to_env(u)
        assert (env >= bottom).all()
        assert (env <= top).all()
        assert torch.equal(env[0], bottom)
        assert torch.equal(env[-1], top)


def test_the_ends_of_the_range_are_the_bounds_to_the_bit():
    """In one of five boxes ``low + (high - low)`` is rounded to less than ``high``."""
    draw = torch.Generator().manual_seed(0)
    bounds = torch.randn(2_000, 2, generator=draw) * 10.0 ** (
        6 * torch.rand(2_000, 2, generator=draw) - 3
    )
    bottom, top = bounds.sort(-1).values.unbind(-1)
    family = DiagGaussian(2_000, tuple(bottom.tolist()), tuple(top.tolist()))
    ends = torch.tensor([[-1.0], [1.0]]).expand(2, 2_000)
    assert torch.equal(family.to_env(ends), torch.stack((bottom, top)))
    centre = family.to_env(torch.zeros(1, 2_000))  # what is not finite never reaches a simulator
    assert torch.equal(family.to_env(torch.full((1, 2_000), math.nan)), centre)


def test_squashed_mean_stays_in_the_bounds_but_samples_may_leave():
    family = DiagGaussian(1, (-1.0,), (1.0,), squash="mean")
    params = torch.tensor([[5.0, 0.0]])
    assert family.mode(params).item() == pytest.approx(math.tanh(5.0))
    assert family.sample(params, torch.tensor([[2.0]])).item() > 1.0


def test_tanh_to_env():
    u = torch.tensor([[0.0, 0.3, -0.8], [20.0, -20.0, 0.0]], dtype=torch.float64)
    low, high = torch.tensor(LOW).double(), torch.tensor(HIGH).double()
    expected = low + (u.tanh() + 1) / 2 * (high - low)
    assert_near(DiagGaussian(3, LOW, HIGH, "action").to_env(u), expected)


def test_tanh_density_integrates_to_one_over_the_squashed_action():
    family = DiagGaussian(1, (-1.0,), (1.0,), "action")
    # Midpoints in the squashed action y itself; u = atanh(y) is used by this test only.
    n = 400_000
    y = (torch.arange(n, dtype=torch.float64) + 0.5) / n * 2 - 1
    for mean, log_std in ((0.0, -0.5), (0.4, -1.0), (-0.8, -0.3)):
        params = torch.tensor([mean, log_std], dtype=torch.float64).expand(n, 2)
        density = family.log_prob(params, y.atanh().unsqueeze(-1)).exp()
        assert density.mean().item() * 2 == pytest.approx(1.0, abs=1e-12)


def test_tanh_log_prob_and_its_gradient_survive_saturation():
    family = DiagGaussian(1, (-1.0,), (1.0,), "action")
    for mean in (-60.0, 60.0):
        params = torch.tensor([mean, -2.0], requires_grad=True)
        u = family.sample(params, torch.tensor([1.5])).detach()
        assert u.tanh().abs().item() == 1.0
        log_prob = family.log_prob(params, u)
        log_prob.backward()
        # log(1 - tanh(u)^2) = 2 log 2 - 2 |u| up to e^(-2 |u|)
        gaussian = Normal(torch.tensor(mean), torch.tensor(-2.0).exp()).log_prob(u)[0]
        assert_near(log_prob, gaussian - 2 * math.log(2.0) + 2 * u.abs()[0])
        assert params.grad.isfinite().all()
        assert family.entropy(params).isfinite()


def entropy_by_integration(mean: float, std: float) -> float:
    """Gaussian entropy plus E[log(1 - tanh^2)] by a fine trapezoid sum, accurate to 1e-12."""
    z = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    weight = torch.exp(-z * z / 2)
    slope = -2 * torch.log(torch.cosh(mean + std * z))
    expectation = (weight * slope).sum() / weight.sum()
    return math.log(std) + 0.5 * math.log(2 * math.pi * math.e) + expectation.item()


@pytest.mark.parametrize(
    ("std", "error"),
    [(0.05, 1e-12), (0.6, 1e-11), (1.0, 6e-8), (1.5, 2e-5), (2.0, 2e-4), (5.0, 3e-2)],
)
def test_tanh_entropy_has_the_stated_error(std: float, error: float):
    family = DiagGaussian(1, (-1.0,), (1.0,), "action")
    worst = 0.0
    for mean in torch.linspace(-4, 4, 17).tolist():
        params = torch.tensor([mean, math.log(std)], dtype=torch.float64)
        worst = max(worst, abs(family.entropy(params).item() - entropy_by_integration(mean, std)))
    assert worst <= error
    assert worst > error / 1e3 or error < 1e-10  # the statement is not an idle one


def test_tanh_entropy_is_minus_the_mean_log_density():
    family = DiagGaussian(3, LOW, HIGH, "action")
    p = draw_params(family, seed=12)
    n = 100_000
    action = family.sample(p.expand(n, -1), family.draw_noise((n,), generator(13)))
    log_prob = family.log_prob(p.expand(n, -1), action)
    z = (-log_prob.mean() - family.entropy(p)) / (log_prob.std() / n**0.5)
    assert abs(z.item()) < 4.5


def test_gauss_hermite_integrates_polynomials_exactly():
    nodes, weights = (torch.tensor(x, dtype=torch.float64) for x in gauss_hermite(QUADRATURE_NODES))
    assert len(nodes) == QUADRATURE_NODES
    for k, moment in ((0, 1.0), (1, 0.0), (2, 1.0), (4, 3.0), (6, 15.0), (8, 105.0), (10, 945.0)):
        assert_near((weights * nodes**k).sum(), torch.tensor(moment).double())


def test_entropy_nodes_survive_a_first_use_in_inference_mode():
    gauss_hermite.cache_clear()
    family = DiagGaussian(1, (-1.0,), (1.0,), "action")
    with torch.inference_mode():
        family.entropy(torch.zeros(2))
    params = torch.zeros(2, requires_grad=True)
    family.entropy(params).backward()
    assert params.grad.isfinite().all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: DiagGaussian(2, (0.0,), (1.0,)), "low and high need 2 numbers, got 1 and 1"),
        (lambda: DiagGaussian(1, (1.0,), (0.0,)), "low must be below high in every dimension"),
        (
            lambda: DiagGaussian(1, (-math.inf,), (1.0,), squash="mean"),
            "squash=mean needs finite bounds",
        ),
        (
            lambda: DiagGaussian(1, (0.0,), (math.inf,), "action"),
            "squash=action needs finite bounds",
        ),
        (
            lambda: DiagGaussian(1, (0.0,), (0.0,), "action"),
            "low must be below high in every dimension",
        ),
    ],
)
def test_impossible_bounds_are_refused(make, says: str):
    with pytest.raises(ValueError, match=says):
        make()


def test_in_bounds_is_what_the_environment_gets_in_units_of_half_the_range():
    """In dimensions without bounds it is the action itself."""
    action = 2.0 * torch.randn((50, 3), generator=generator(30), dtype=torch.float64)
    low, high = torch.tensor(LOW).double(), torch.tensor(HIGH).double()
    for family in FAMILIES.values():
        unit = family.in_bounds(action)
        assert unit.abs().max() <= 1.0
        assert_close(low + (unit + 1) / 2 * (high - low), family.to_env(action))
    half = DiagGaussian(3, (-2.0, -math.inf, -1.0), (2.0, 1.0, math.inf))
    unit = half.in_bounds(action)
    assert torch.equal(unit[:, 0], action[:, 0].clamp(-1, 1))
    assert torch.equal(unit[:, 1:], action[:, 1:])


@every_family
def test_the_log_prob_of_a_sample_follows_from_its_noise(family: DiagGaussian):
    noise = family.draw_noise((6, 4), generator(3)).double()
    values, slopes = [], []
    for at_once in (True, False):
        params = draw_params(family, 6, 4, seed=1).requires_grad_()
        if at_once:
            action, log_p = family.sample_and_log_prob(params, noise)
        else:
            action = family.sample(params, noise)
            log_p = family.log_prob(params, action)
        values.append((action, log_p))
        slopes.append(torch.autograd.grad((action.sin().sum(-1) * log_p).sum(), params)[0])
    assert_near(values[0][0], values[1][0])
    assert_near(values[0][1], values[1][1])
    assert_close(slopes[0], slopes[1], rtol=1e-9, atol=1e-9)
    # In float32 a small deviation is lost next to the mean, and with it what `log_prob` finds.
    narrow = torch.tensor([[3.0, 3.0, 3.0, -15.0, -15.0, -15.0]])
    z = noise[:1, 0].float()
    expected = family.sample_and_log_prob(narrow.double(), z.double())[1].float()
    assert_close(family.sample_and_log_prob(narrow, z)[1], expected, rtol=1e-5, atol=1e-5)


@every_family
def test_the_uniform_policy_is_uniform_over_the_bounds(family: DiagGaussian):
    noise = family.draw_noise((100_000,), generator(3))
    params = torch.full((100_000, 6), torch.nan)  # are not read
    action = family.to_env(family.uniform(params, noise)).double()
    low, high = torch.tensor(LOW).double(), torch.tensor(HIGH).double()
    share = ((action - low) / (high - low)).sort(0).values
    even = (torch.arange(100_000).double() + 0.5).unsqueeze(-1) / 100_000
    assert (share - even).abs().max() < 0.006  # Kolmogorov: one time in a thousand
    far = family.uniform(params[:2], torch.tensor([[-40.0] * 3, [40.0] * 3]))
    assert far.isfinite().all()
    assert_close(family.to_env(far).double(), torch.stack((low, high)), rtol=0, atol=1e-6)


def test_a_dimension_without_bounds_is_normal_where_all_is_uniform():
    family = DiagGaussian(2, (-1.0, -math.inf), (1.0, math.inf))
    noise = family.draw_noise((4,), generator(3))
    action = family.uniform(torch.zeros(4, 4), noise)
    assert torch.equal(action[:, 1], noise[:, 1])
    assert_close(action[:, 0], 2 * Normal(0.0, 1.0).cdf(noise[:, 0]) - 1)
