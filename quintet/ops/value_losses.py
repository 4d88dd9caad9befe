"""Value loss terms: per step, unreduced, unweighted, to be minimised; squared errors have the
factor 1/2.

Targets are not detached here, since the estimators of this package return detached targets.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from quintet.ops.adam import Scalar

PerStep = Float[Tensor, "*n"]


def squared(v: PerStep, target: PerStep) -> PerStep:
    """Squared error ``0.5 * (v - target)^2``.

    Returns: loss per step, in squared reward units.
    """
    return 0.5 * (v - target).square()


def clipped(v: PerStep, v_old: PerStep, target: PerStep, clip: Scalar) -> PerStep:
    """The larger of two squared errors: of the value, and of the value clipped around the old
    value.

    ``0.5 * max((v - target)^2, (v_old + clamp(v - v_old, -clip, clip) - target)^2)``

    Args:
        v_old: value recorded when the step was taken; carries no gradient.
        clip: > 0, in reward units; infinity gives `squared`.

    Returns: loss per step, in squared reward units.

    Source: OpenAI baselines, PPO2; not in arXiv 1707.06347.
    """
    bound = torch.as_tensor(clip, dtype=v.dtype)  # a tensor where the clip may change
    v_near = v_old + (v - v_old).clamp(-bound, bound)
    return 0.5 * torch.maximum((v - target).square(), (v_near - target).square())


def huber(v: PerStep, target: PerStep, delta: Scalar) -> PerStep:
    """Squared error up to `delta`, linear with the same slope beyond.

    ``0.5 * e^2 if |e| <= delta else delta * (|e| - 0.5 * delta)``, with ``e = v - target``

    Args:
        delta: > 0, in reward units.

    Returns: loss per step, in squared reward units.

    Source: Huber, Robust Estimation of a Location Parameter (1964).
    """
    error = (v - target).abs()
    near = error.clamp(max=delta) if isinstance(delta, float) else torch.minimum(error, delta)
    return near * (error - 0.5 * near)
