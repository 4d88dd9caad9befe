"""Adam on one flat vector, so that an optimizer step is a handful of operations."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

BETA1, BETA2 = 0.9, 0.999


def corrections(step: int) -> tuple[float, float]:
    """Bias corrections ``1 - beta1^step`` and ``sqrt(1 - beta2^step)`` of the step that is made,
    from 1 on.
    """
    return 1.0 - BETA1**step, math.sqrt(1.0 - BETA2**step)


def adam_(
    theta: Float[Tensor, " P"],
    grad: Float[Tensor, " P"],
    exp_avg: Float[Tensor, " P"],
    exp_avg_sq: Float[Tensor, " P"],
    *,
    step_size: Float[Tensor, ""],
    root_correction: Float[Tensor, ""],
    epsilon: float,
) -> None:
    """One step in place on `theta`, `exp_avg` and `exp_avg_sq`.

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g^2
        theta -= step_size * m / (sqrt(v) / root_correction + epsilon)

    with ``step_size = learning_rate / (1 - beta1^t)`` and ``root_correction = sqrt(1 - beta2^t)``.

    Source: Kingma and Ba, arXiv 1412.6980, algorithm 1, in the arrangement of torch.optim.Adam.
    """
    exp_avg.lerp_(grad, 1.0 - BETA1)
    exp_avg_sq.mul_(BETA2).addcmul_(grad, grad, value=1.0 - BETA2)
    theta.sub_(step_size * exp_avg / (exp_avg_sq.sqrt() / root_correction + epsilon))


def clip_norm(
    grad: Float[Tensor, " P"], max_norm: float | None
) -> tuple[Float[Tensor, " P"], Float[Tensor, ""]]:
    """The gradient scaled to a norm of at most `max_norm`, and its norm before."""
    norm = torch.linalg.vector_norm(grad)
    if max_norm is None:
        return grad, norm
    return grad * (max_norm / (norm + 1e-6)).clamp_max(1.0), norm
