"""Adam on one flat vector, so that an optimizer step is a handful of operations."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Scalar = float | Float[Tensor, ""]

BETA1, BETA2 = 0.9, 0.999


class AdamRates(NamedTuple):
    """The numbers of one step, as floats or as scalar tensors.

    step_size: ``learning_rate / (1 - beta1^t)``.
    root_correction: ``sqrt(1 - beta2^t)``.
    decay1, decay2: ``1 - beta1`` and ``1 - beta2``, which float32 can't tell from the betas.
    """

    step_size: Scalar
    root_correction: Scalar
    decay1: Scalar
    beta2: Scalar
    decay2: Scalar
    epsilon: Scalar


REST = AdamRates(step_size=0.0, root_correction=1.0, decay1=0.0, beta2=1.0, decay2=0.0, epsilon=1.0)
"""The numbers of a step that changes nothing."""


def rates(
    step: int, learning_rate: float, epsilon: float, beta1: float = BETA1, beta2: float = BETA2
) -> AdamRates:
    """The numbers of step `step`, counted from 1."""
    return AdamRates(
        step_size=learning_rate / (1.0 - beta1**step),
        root_correction=math.sqrt(1.0 - beta2**step),
        decay1=1.0 - beta1,
        beta2=beta2,
        decay2=1.0 - beta2,
        epsilon=epsilon,
    )


def adam_(
    theta: Float[Tensor, " P"],
    grad: Float[Tensor, " P"],
    exp_avg: Float[Tensor, " P"],
    exp_avg_sq: Float[Tensor, " P"],
    rates: AdamRates,
) -> None:
    """One step in place on `theta`, `exp_avg` and `exp_avg_sq`.

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g^2
        theta -= step_size * m / (sqrt(v) / root_correction + epsilon)

    Source: Kingma and Ba, arXiv 1412.6980, algorithm 1, in the arrangement of torch.optim.Adam.
    """
    exp_avg.add_(rates.decay1 * (grad - exp_avg))
    exp_avg_sq.mul_(rates.beta2).add_(rates.decay2 * grad * grad)
    denominator = exp_avg_sq.sqrt() / rates.root_correction + rates.epsilon
    theta.sub_(rates.step_size * exp_avg / denominator)


def clip_norm(
    grad: Float[Tensor, " P"], max_norm: Scalar
) -> tuple[Float[Tensor, " P"], Float[Tensor, ""]]:
    """The gradient scaled to a norm of at most `max_norm` (infinity: any), and its norm before."""
    norm = torch.linalg.vector_norm(grad)
    return grad * (max_norm / (norm + 1e-6)).clamp_max(1.0), norm
