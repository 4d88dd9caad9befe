"""Loss terms against plain Python loops, gradients against hand-derived ones and differences."""

import math

import pytest
import torch
from ops_helpers import assert_near, gradients_agree
from torch import Tensor
from torch.testing import assert_close

from quintet.ops import policy_losses, value_losses


def pairs(seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    rho = (0.4 * torch.randn(9, 5, generator=g, dtype=torch.float64)).exp()
    return rho, torch.randn(9, 5, generator=g, dtype=torch.float64)


def by_entry(function, *tensors: Tensor) -> Tensor:
    flat = [x.flatten().tolist() for x in tensors]
    result = torch.tensor([function(*x) for x in zip(*flat, strict=True)], dtype=torch.float64)
    return result.reshape(tensors[0].shape)


@pytest.mark.parametrize("eps", [0.1, 0.2, 0.5])
def test_ratio_clip_by_loop(eps: float):
    rho, adv = pairs()

    def entry(rho: float, adv: float) -> float:
        return -min(rho * adv, min(max(rho, 1 - eps), 1 + eps) * adv)

    assert_near(policy_losses.ratio_clip(rho, adv, eps), by_entry(entry, rho, adv))


def test_ratio_clip_gradient_by_hand():
    rho, adv = pairs(1)
    rho.requires_grad_()
    policy_losses.ratio_clip(rho, adv, 0.2).sum().backward()

    def entry(rho: float, adv: float) -> float:
        if (adv > 0 and rho > 1.2) or (adv < 0 and rho < 0.8):
            return 0.0
        return -adv

    expected = by_entry(entry, rho.detach(), adv)
    assert (expected == 0).any()
    assert (expected != 0).any()
    assert_near(rho.grad, expected)


def test_ratio_and_its_limit():
    rho, adv = pairs(2)
    expected = by_entry(lambda rho, adv: -rho * adv, rho, adv)
    assert_near(policy_losses.ratio(rho, adv), expected)
    assert_near(policy_losses.ratio_clip(rho, adv, math.inf), expected)
    assert not torch.allclose(policy_losses.ratio_clip(rho, adv, 0.2), expected)


@pytest.mark.parametrize("tensor", [False, True])
def test_huber_by_loop(tensor: bool) -> None:
    v, target = (3.0 * x for x in pairs(4))
    delta = 0.7

    def entry(v: float, target: float) -> float:
        error = abs(v - target)
        return 0.5 * error**2 if error <= delta else delta * (error - 0.5 * delta)

    far = (v - target).abs() > delta
    assert far.any()
    assert not far.all()
    given = torch.tensor(delta, dtype=v.dtype) if tensor else delta
    assert_near(value_losses.huber(v, target, given), by_entry(entry, v, target))


@pytest.mark.parametrize(
    "loss",
    [
        lambda rho, adv: policy_losses.ratio_clip(rho, adv, 0.2),
        policy_losses.ratio,
        lambda rho, adv: adv * policy_losses.approx_kl(rho.log()),
        lambda v, target: value_losses.squared(v, target),
        lambda v, target: value_losses.clipped(v, torch.full_like(v, 0.9), target, 0.3),
    ],
    ids=["ratio_clip", "ratio", "approx_kl", "squared", "clipped"],
)
def test_gradients_against_differences(loss):
    x, y = pairs(3)
    assert gradients_agree(loss, (x.requires_grad_(), y))


def test_approx_kl():
    log_rho = torch.tensor([-2.0, -0.3, 0.0, 0.4, 1.5], dtype=torch.float64)
    expected = by_entry(lambda x: math.exp(x) - 1.0 - x, log_rho)
    assert_near(policy_losses.approx_kl(log_rho), expected)
    near = torch.tensor([1e-3, -1e-3])
    # The next term, x^3 / 6, is a third of a thousandth of x^2 / 2.
    assert_close(policy_losses.approx_kl(near), near.square() / 2, rtol=5e-4, atol=0.0)


def test_approx_kl_is_unbiased_for_kl_of_mu_to_pi():
    mu = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    pi = torch.tensor([0.3, 0.3, 0.4], dtype=torch.float64)
    estimate = (mu * policy_losses.approx_kl((pi / mu).log())).sum()
    assert_near(estimate, (mu * (mu / pi).log()).sum())


def test_value_losses_by_loop():
    v, target = pairs(4)
    v_old = v + 0.5 * torch.randn(v.shape, generator=torch.Generator().manual_seed(5)).double()

    def entry(v: float, v_old: float, target: float) -> float:
        near = v_old + min(max(v - v_old, -0.3), 0.3)
        return 0.5 * max((v - target) ** 2, (near - target) ** 2)

    expected = by_entry(entry, v, v_old, target)
    assert_near(value_losses.clipped(v, v_old, target, 0.3), expected)
    squared = by_entry(lambda v, target: 0.5 * (v - target) ** 2, v, target)
    assert_near(value_losses.squared(v, target), squared)
    assert_near(value_losses.clipped(v, v_old, target, math.inf), squared)
    assert (expected > squared + 1e-6).any()


def test_clipped_value_has_no_gradient_once_it_is_far_and_wins():
    v = torch.tensor([2.0, 1.1, 0.0], requires_grad=True)
    value_losses.clipped(v, torch.ones(3), torch.full((3,), 2.0), 0.2).sum().backward()
    # far on the side of the target: frozen; near: as usual; far on the wrong side: as usual
    assert_near(v.grad, torch.tensor([0.0, -0.9, -2.0]))


def test_losses_are_per_step_and_keep_dtype():
    for dtype in (torch.float32, torch.float64):
        rho, adv = (x.to(dtype) for x in pairs())
        for loss in (
            policy_losses.ratio(rho, adv),
            policy_losses.ratio_clip(rho, adv, 0.2),
            policy_losses.approx_kl(rho),
            value_losses.squared(rho, adv),
            value_losses.clipped(rho, adv, adv, 0.1),
        ):
            assert (loss.shape, loss.dtype) == (rho.shape, dtype)


def test_kl_cutoff_value_and_gradient():
    for kl, value, slope in ((0.03, 1000 * 0.01**2, 2 * 1000 * 0.01), (0.01, 0.0, 0.0)):
        mean_kl = torch.tensor(kl, dtype=torch.float64, requires_grad=True)
        loss = policy_losses.kl_cutoff(mean_kl, target=0.01, factor=2.0, coef=1000.0)
        loss.backward()
        assert loss.item() == pytest.approx(value)
        assert mean_kl.grad.item() == pytest.approx(slope)


def test_adaptive_beta_band_and_limits():
    rule = {"target": 0.01, "tolerance": 0.3}
    assert policy_losses.adaptive_kl_coef(1.0, 0.01, **rule) == 1.0
    assert policy_losses.adaptive_kl_coef(1.0, 0.01 * (1.0 + 0.3), **rule) == 1.0
    assert policy_losses.adaptive_kl_coef(1.0, 0.01 * (1.0 - 0.3), **rule) == 1.0
    assert policy_losses.adaptive_kl_coef(1.0, 0.02, **rule) == 1.5
    assert policy_losses.adaptive_kl_coef(1.5, 0.0, **rule) == 1.0
    assert policy_losses.adaptive_kl_coef(1e17, 1.0, **rule) == 1e17
    assert policy_losses.adaptive_kl_coef(1e-15, 0.0, **rule) == 1e-15
    assert policy_losses.adaptive_kl_coef(1.0, 1.0, factor=2.0, **rule) == 2.0


@pytest.mark.parametrize("clip", [0.5, 1.0, 10.0])
def test_truncation_and_its_correction_are_the_whole_expectation(clip: float):
    """Of any function of the action, for policies far from each other."""
    g = torch.Generator().manual_seed(0)
    mu, pi = (2.0 * torch.randn(2, 40, 6, generator=g, dtype=torch.float64)).softmax(-1)
    h = torch.randn(40, 6, generator=g, dtype=torch.float64)
    rho = pi / mu
    weight = policy_losses.correction_weight(rho, clip)
    assert ((weight >= 0) & (weight < 1)).all()
    assert torch.equal(weight > 0, rho > clip)
    truncated, correction = (mu * rho.clamp(max=clip) * h).sum(-1), (pi * weight * h).sum(-1)
    assert_close(truncated + correction, (pi * h).sum(-1), rtol=0, atol=1e-14)
    assert (correction.abs() > 0.01).any()
    given = torch.tensor(clip, dtype=torch.float64)
    assert_near(policy_losses.correction_weight(rho, given), weight)


def test_correction_weight_at_ratios_out_of_range():
    rho = torch.tensor([0.0, 1e-38, 10.0, 1e38, math.inf])
    found = policy_losses.correction_weight(rho, 10.0)
    assert torch.equal(found, torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0]))
