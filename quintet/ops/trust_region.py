"""ACER's trust region: the closest gradient that moves a distribution no further than allowed."""

import torch
from jaxtyping import Float
from torch import Tensor

from quintet.ops.adam import Scalar

Statistics = Float[Tensor, "*n s"]
PerStep = Float[Tensor, "*n"]


@torch.no_grad()
def project(g: Statistics, k: Statistics, delta: Scalar) -> tuple[Statistics, PerStep]:
    """The solution of ``min 0.5 * |g - z|^2 subject to k . z <= delta``, for every sample.

    ``z = g - max(0, (k . g - delta) / |k|^2) * k``

    Args:
        g: the loss's direction, a gradient with respect to a distribution's statistics.
        k: gradient of ``KL(average || pi)`` with respect to the same statistics.
        delta: bound of the first-order change of the KL, >= 0; infinity leaves g unchanged.

    Returns: z, and the factor of k, which is 0 where the constraint is inactive.

    Source: Wang et al., arXiv 1611.01224, equations 10 to 12.
    """
    # Divided by the largest component, since the square of k may be out of the range of floats.
    scale = k.abs().amax(-1, keepdim=True)
    unit = k / torch.where(scale > 0, scale, 1.0)
    excess = (unit * g).sum(-1, keepdim=True) - delta / scale.clamp_min(torch.finfo(k.dtype).tiny)
    factor = (excess / unit.square().sum(-1, keepdim=True).clamp_min(1.0)).clamp_min(0.0)
    factor = torch.where(scale > 0, factor, 0.0)
    return g - factor * unit, (factor / torch.where(scale > 0, scale, 1.0)).squeeze(-1)
