"""RMSProp against PyTorch's own, and against TensorFlow's rule in a plain loop."""

import math

import pytest
import torch
from ops_helpers import assert_near
from torch import Tensor

from quintet.ops import rmsprop

SIZE = 12


def gradient(step: int, dtype: torch.dtype) -> Tensor:
    """Scales from far below epsilon to large, and an entry that never gets a gradient."""
    g = torch.Generator().manual_seed(step)
    scale = torch.logspace(-6, 2, SIZE, dtype=torch.float64)
    grad = scale * torch.randn(SIZE, generator=g, dtype=torch.float64)
    grad[3] = 0.0
    return grad.to(dtype)


def start(dtype: torch.dtype) -> Tensor:
    g = torch.Generator().manual_seed(99)
    return torch.randn(SIZE, generator=g, dtype=torch.float64).to(dtype)


def ours(
    steps: int, dtype: torch.dtype, inside: bool, decay: float, momentum: float, epsilon: float
) -> list[Tensor]:
    """Parameters, mean squares and velocity after `steps` steps at rates that fall."""
    theta = start(dtype)
    mean_sq = rmsprop.initial_mean_sq(theta, epsilon_inside_sqrt=inside)
    velocity = torch.zeros_like(theta) if momentum else None
    for step in range(1, steps + 1):
        rates = rmsprop.rates(1e-2 / step, decay, momentum, epsilon)
        rmsprop.rmsprop_(
            theta,
            gradient(step, dtype),
            mean_sq,
            velocity,
            rmsprop.RMSPropRates(*(torch.tensor(x, dtype=dtype) for x in rates)),
            epsilon_inside_sqrt=inside,
        )
    return [theta, mean_sq] + ([velocity] if momentum else [])


@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_twenty_steps_equal_torch_optim_rmsprop(dtype, momentum, epsilon):
    theirs = start(dtype).requires_grad_()
    optimizer = torch.optim.RMSprop([theirs], lr=1.0, alpha=0.95, eps=epsilon, momentum=momentum)
    for step in range(1, 21):
        theirs.grad = gradient(step, dtype)
        optimizer.param_groups[0]["lr"] = 1e-2 / step
        optimizer.step()
    found = ours(20, dtype, False, 0.95, momentum, epsilon)
    state = optimizer.state[theirs]
    expected = [theirs.detach(), state["square_avg"]]
    expected += [state["momentum_buffer"]] if momentum else []
    for mine, other in zip(found, expected, strict=True):
        # One rounding at most is seen, in the velocity's place in the sum.
        bound = 4 * torch.finfo(dtype).eps
        assert ((mine - other).abs() <= bound * other.abs().clamp_min(1.0)).all()
    moved = (found[0] - start(dtype)).abs()
    assert moved.max() > 1e-3
    assert moved[3] == 0.0


@pytest.mark.parametrize("epsilon", [1e-8, 1e-2, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_twenty_steps_equal_tensorflow_s_rule(momentum, epsilon):
    """Epsilon inside of the root, squares from 1 on, the rate of its step in the velocity."""
    theta, squares, velocity = start(torch.float64).tolist(), [1.0] * SIZE, [0.0] * SIZE
    for step in range(1, 21):
        for k, g in enumerate(gradient(step, torch.float64).tolist()):
            squares[k] = 0.95 * squares[k] + 0.05 * g * g
            velocity[k] = momentum * velocity[k] + 1e-2 / step * g / math.sqrt(squares[k] + epsilon)
            theta[k] -= velocity[k]
    found = ours(20, torch.float64, True, 0.95, momentum, epsilon)
    for mine, other in zip(found, (theta, squares, velocity), strict=False):
        assert_near(mine, torch.tensor(other, dtype=torch.float64))
    # The two forms are two rules, not one.
    plain = ours(20, torch.float64, False, 0.95, momentum, epsilon)
    assert (plain[0] - found[0]).abs().max() > 1e-4
