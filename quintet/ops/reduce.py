"""Masked sums and means.  `valid` is a bool mask or a weight >= 0; values of weight 0 are not read.

They are deselected instead of multiplied by 0, so that a NaN or an infinity in them reaches neither
the result nor the gradient at `x`.  The chain rule continues before `x`: an operation with an
infinite derivative (``exp`` of a huge log-ratio) turns a zero gradient into NaN, so its input must
be masked.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Values = Float[Tensor, "*n"]
Weights = Bool[Tensor, "*n"] | Float[Tensor, "*n"]
Scalar = Float[Tensor, ""]


def sum_valid(x: Values, valid: Weights) -> Scalar:
    """Weighted sum ``sum(valid * x)``.

    Returns: scalar in units of x; 0, with zero gradient, if nothing is valid.
    """
    return (valid.to(x.dtype) * torch.where(valid != 0, x, 0.0)).sum()


def mean_valid(x: Values, valid: Weights) -> Scalar:
    """Weighted mean ``sum(valid * x) / sum(valid)``.

    Returns: scalar in units of x; 0, with zero gradient, if nothing is valid.
    """
    return means_valid((x,), valid)[0]


def means_valid(xs: Sequence[Values], valid: Weights) -> list[Scalar]:
    """Means of several values of one dtype, each as `mean_valid`."""
    weight, used = valid.to(xs[0].dtype), valid != 0
    total = weight.sum()
    divisor = torch.where(total > 0, total, 1.0)
    return [(weight * torch.where(used, x, 0.0)).sum() / divisor for x in xs]


def normalize_valid(x: Values, weight: Weights, epsilon: float = 1e-8) -> Values:
    """Shifts and scales to weighted mean 0 and variance 1: ``(x - m) / sqrt(var + epsilon)``.

    ``m = mean_valid(x)``, ``var = mean_valid((x - m)^2)``, the population variance.

    Args:
        epsilon: added inside the root, in squared units of x.

    Returns: dimensionless; 0 where the weight is 0.
    """
    flat = x.flatten().unsqueeze(0), weight.to(x.dtype).flatten().unsqueeze(0)
    return normalize_rows(*flat, epsilon).view_as(x)


def normalize_rows(
    x: Float[Tensor, "K N"], weight: Float[Tensor, "K N"], epsilon: float = 1e-8
) -> Float[Tensor, "K N"]:
    """`normalize_valid` for each row separately."""
    used, total = weight != 0, weight.sum(1, keepdim=True)
    total = torch.where(total > 0, total, 1.0)

    def mean(y: Float[Tensor, "K N"]) -> Float[Tensor, "K 1"]:
        return (weight * y).sum(1, keepdim=True) / total

    centred = torch.where(used, x - mean(torch.where(used, x, 0.0)), 0.0)
    return centred / (mean(centred.square()) + epsilon).sqrt()


def moment_sums(x: Values, valid: Weights) -> Float[Tensor, "3"]:
    """``(sum(valid), sum(valid * x), sum(valid * x^2))`` in float64; sums of parts can be added."""
    weight, x = valid.double(), torch.where(valid != 0, x, 0.0).double()
    return torch.stack((weight.sum(), (weight * x).sum(), (weight * x * x).sum()))


def normalize_by(x: Values, sums: Float[Tensor, "3"], least_std: float) -> Values:
    """Shifts and scales by the moments of `moment_sums`: ``(x - m) / max(least_std, std)``.

    ``std`` has the divisor n - 1, and is 0 for fewer than two values.

    Args:
        least_std: least standard deviation, in units of x.

    Returns: dimensionless; also for invalid values.
    """
    count, total, squares = sums.unbind()
    mean = total / count.clamp_min(1.0)
    variance = (squares - total * mean) / (count - 1.0).clamp_min(1.0)
    std = variance.clamp_min(0.0).sqrt().clamp_min(least_std)
    return (x - mean.to(x.dtype)) / std.to(x.dtype)
