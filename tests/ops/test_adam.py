"""Adam and the norm clip against PyTorch's own."""

import math

import pytest
import torch
from torch import Tensor

from quintet.ops import adam

SIZES = (7, 1, 30)


def gradients(step: int, dtype: torch.dtype) -> list[Tensor]:
    g = torch.Generator().manual_seed(step)
    # Scales from far below epsilon to large, and an entry that never gets a gradient.
    parts = [
        10.0 ** (3 * k - 6) * torch.randn(n, generator=g, dtype=torch.float64)
        for k, n in enumerate(SIZES)
    ]
    parts[0][3] = 0.0
    return [x.to(dtype) for x in parts]


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.95)])
@pytest.mark.parametrize("epsilon", [1e-8, 1e-5, 1e-2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_twenty_steps_equal_torch_optim_adam(dtype, tolerance, epsilon, betas):
    g = torch.Generator().manual_seed(99)
    theta = torch.randn(sum(SIZES), generator=g, dtype=torch.float64).to(dtype)
    theirs = [x.clone().requires_grad_() for x in theta.split(SIZES)]
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    optimizer = torch.optim.Adam(theirs, lr=1.0, eps=epsilon, betas=betas)
    start = theta.clone()
    for step in range(1, 21):
        rate = 1e-2 / step  # a schedule: the rate of this step counts, not that of the first
        parts = gradients(step, dtype)
        for parameter, grad in zip(theirs, parts, strict=True):
            parameter.grad = grad
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        rates = adam.rates(step, rate, epsilon, *betas)
        rates = adam.AdamRates(*(torch.tensor(x, dtype=dtype) for x in rates))
        adam.adam_(theta, torch.cat(parts), first, second, rates)
    expected = torch.cat([x.detach() for x in theirs])
    assert (theta - expected).abs().max() <= tolerance
    assert (theta - start).abs().max() > 1e-3
    assert theta[3] == start[3]
    state = [optimizer.state[x] for x in theirs]
    for ours, name in ((first, "exp_avg"), (second, "exp_avg_sq")):
        moments = torch.cat([s[name] for s in state])
        assert ((ours - moments).abs() <= tolerance * moments.abs().clamp_min(1.0)).all()


@pytest.mark.parametrize("bound", [1e-3, 0.5, 1e6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_clip_norm_equals_torch(bound, dtype):
    parts = gradients(5, dtype)
    parameters = [torch.zeros_like(x, requires_grad=True) for x in parts]
    for parameter, grad in zip(parameters, parts, strict=True):
        parameter.grad = grad.clone()
    expected_norm = torch.nn.utils.clip_grad_norm_(parameters, bound)
    expected = torch.cat([x.grad for x in parameters])
    ours, norm = adam.clip_norm(torch.cat(parts), bound)
    torch.testing.assert_close(norm, expected_norm)
    torch.testing.assert_close(ours, expected)
    clips = bool(norm > bound)
    assert clips == (bound < 1.0)
    assert torch.equal(ours, torch.cat(parts)) != clips


def test_clip_norm_without_a_bound_only_measures():
    grad = torch.tensor([3.0, 4.0])
    same, norm = adam.clip_norm(grad, math.inf)
    assert torch.equal(same, grad)
    assert norm == 5.0


def test_clip_norm_of_a_zero_gradient_is_zero():
    clipped, norm = adam.clip_norm(torch.zeros(3), 0.5)
    assert norm == 0.0
    assert torch.equal(clipped, torch.zeros(3))
