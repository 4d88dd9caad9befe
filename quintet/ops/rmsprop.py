"""RMSProp on one flat vector, so that an optimizer step is a handful of operations."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from quintet.ops.adam import Scalar


class RMSPropRates(NamedTuple):
    """The numbers of one step, as floats or as scalar tensors.

    one_minus_decay: 1 - decay, which float32 can't compute accurately.
    """

    learning_rate: Scalar
    decay: Scalar
    one_minus_decay: Scalar
    momentum: Scalar
    epsilon: Scalar


REST = RMSPropRates(0.0, decay=1.0, one_minus_decay=0.0, momentum=0.0, epsilon=1.0)
"""The numbers of a step that changes nothing, without velocity."""


def rates(learning_rate: float, decay: float, momentum: float, epsilon: float) -> RMSPropRates:
    """The numbers of a step."""
    return RMSPropRates(learning_rate, decay, 1.0 - decay, momentum, epsilon)


def initial_mean_sq(
    theta: Float[Tensor, " P"], *, epsilon_inside_sqrt: bool
) -> Float[Tensor, " P"]:
    """First value of the running mean of squares: 1 in TensorFlow's form, 0 in PyTorch's.

    With 1 the first steps are as small as in gradient descent; with 0 they are
    ``1 / sqrt(1 - decay)`` times the rate, whatever the gradient's size.
    """
    return torch.ones_like(theta) if epsilon_inside_sqrt else torch.zeros_like(theta)


def rmsprop_(
    theta: Float[Tensor, " P"],
    grad: Float[Tensor, " P"],
    mean_sq: Float[Tensor, " P"],
    velocity: Float[Tensor, " P"] | None,
    rates: RMSPropRates,
    *,
    epsilon_inside_sqrt: bool,
) -> None:
    """One step in place on `theta`, `mean_sq` and `velocity`.

    ``mean_sq = decay * mean_sq + (1 - decay) * g^2``, then in PyTorch's form::

        velocity = momentum * velocity + g / (sqrt(mean_sq) + epsilon)
        theta   -= learning_rate * velocity

    and with `epsilon_inside_sqrt` in TensorFlow's form, where the velocity contains the rates of
    earlier steps::

        velocity = momentum * velocity + learning_rate * g / sqrt(mean_sq + epsilon)
        theta   -= velocity

    Args:
        velocity: None without momentum.

    Source: Tieleman and Hinton (2012), lecture 6.5; the forms of torch.optim.RMSprop and of
    TensorFlow 1's RMSPropOptimizer, neither centred.
    """
    rate, decay, one_minus_decay, momentum, epsilon = rates
    mean_sq.mul_(decay).add_(one_minus_decay * grad * grad)
    root = (mean_sq + epsilon).sqrt() if epsilon_inside_sqrt else mean_sq.sqrt() + epsilon
    if velocity is None:
        theta.sub_(rate * grad / root)
    elif epsilon_inside_sqrt:
        theta.sub_(velocity.mul_(momentum).add_(rate * grad / root))
    else:
        theta.sub_(rate * velocity.mul_(momentum).add_(grad / root))
