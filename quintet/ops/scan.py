"""The backward recursion that all estimators of returns and advantages use."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Steps = Float[Tensor, "T B"]
"""One number for each of T steps of B streams."""

Mask = Bool[Tensor, "T B"]


def require_same_shape(*tensors: Tensor) -> None:
    """Refuses anything but tensors of one shape ``[T, B]`` with at least one row.

    Otherwise ``[T, B, 1]`` and ``[T, B]`` would broadcast to a plausible wrong result.

    Raises:
        ValueError: the shapes differ, or are not two-dimensional, or T is 0.
    """
    shapes = {tuple(x.shape) for x in tensors}
    if len(shapes) != 1 or tensors[0].ndim != 2 or tensors[0].shape[0] == 0:
        given = ", ".join(str(tuple(x.shape)) for x in tensors)
        raise ValueError(
            f"estimators need tensors of one shape [T, B] with T >= 1, got {given}: "
            "remove trailing dimensions and pass every tensor of the same unroll"
        )


def continues(not_cut_t: Steps) -> Mask:
    """True where the next row belongs to the same episode and the same unroll.

    Returns: ``not_cut_t > 0``, and False in the last row.
    """
    result = not_cut_t > 0
    result[-1:] = False
    return result


def next_row(x_tm1: Steps) -> Steps:
    """``x_tm1[i + 1]`` at row i; the last row repeats itself."""
    return torch.cat([x_tm1[1:], x_tm1[-1:]])


def scan_back(x: Steps, weight: Steps, continues: Mask) -> Steps:
    """Weighted sum of this and all later rows, up to the next cut.

    ``y[i] = x[i] + (weight[i] * y[i+1] if continues[i] else 0)``, in ceil(log2 T) steps over all
    rows at once, which run and compile faster than T steps over one row each::

        a[i] = weight[i] if continues[i] else 0
        y[i] = y[i] + a[i] * y[i+d];  a[i] = a[i] * a[i+d]      d = 1, 2, 4, ... below T

    Before step d, ``y[i]`` holds the sum over rows i to i+d-1 and ``a[i]`` the product of their
    weights; it is 0 after a cut, so that nothing more is added.  A cut selects instead of
    multiplying by 0, so that values after it may be NaN.

    Returns: y, in units of x.
    """
    T = x.shape[0]
    a, y = torch.where(continues, weight, 0.0), x
    d = 1
    while d < T:
        goes_on = a[:-d] != 0
        # The sums of the last d rows are complete.
        y = torch.cat((torch.where(goes_on, y[:-d] + a[:-d] * y[d:], y[:-d]), y[-d:]))
        a = torch.cat((torch.where(goes_on, a[:-d] * a[d:], 0.0), a[-d:]))
        d *= 2
    return y
