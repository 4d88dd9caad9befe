"""Statistics of a critic's targets, and critics that keep their values when these change."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

PRIOR_COUNT, VARIANCE_FLOOR = 1e-2, 1e-2
"""Weight, as a fraction of one target, of the variance of 1 before any data."""


@final
class TargetStatistics(nn.Module):
    """Mean and population variance of targets, float64.

    step_size: weight of each batch in a moving average; None: all targets have equal weight, merged
        in the parallel form of Chan et al. (1979).
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, step_size: float | None):
        super().__init__()
        self.step_size = step_size
        for name in ("count", "mean", "variance"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))
        self.reset()

    def reset(self) -> None:
        """Forgets all targets."""
        self.count.fill_(PRIOR_COUNT)
        self.mean.zero_()
        self.variance.fill_(1.0)

    @torch.no_grad()
    def merge(self, target: Tensor) -> None:
        """Takes targets ``[N]``.

        With weight b of the new batch, of mean m_b and variance v_b:

            mean' = mean + b * (m_b - mean)
            variance' = (1 - b) * (variance + (mean - mean')^2) + b * (v_b + (m_b - mean')^2)

        Source for a step size: van Hasselt et al., arXiv 1602.07714, equation 6.
        """
        x = target.double()
        count = self.count + x.numel()
        share = x.numel() / count if self.step_size is None else self.step_size
        mean = self.mean + share * (x.mean() - self.mean)
        old = self.variance + (self.mean - mean).square()
        new = x.var(correction=0) + (x.mean() - mean).square()
        self.variance.copy_((1.0 - share) * old + share * new)
        self.mean.copy_(mean)
        self.count.copy_(count)

    @property
    def std(self) -> Tensor:
        """Standard deviation, at least the root of VARIANCE_FLOOR."""
        return self.variance.clamp_min(VARIANCE_FLOOR).sqrt()

    def numbers(self) -> Tensor:
        """Mean and standard deviation ``[2]``, float32."""
        return torch.stack((self.mean, self.std)).float()


@torch.no_grad()
def rescale_(head: Mapping[str, Tensor], before: Tensor, after: Tensor) -> None:
    """Changes a critic's last layer so that its values stay the same.

        W' = W * s / s'
        b' = (b * s + m - m') / s'

    head: its weight ``[1, F]`` and bias ``[1]``, changed in place.
    before, after: mean m and standard deviation s ``[2]``.

    Source: van Hasselt et al., arXiv 1602.07714, proposition 1.
    """
    (m, s), (m_new, s_new) = before.unbind(), after.unbind()
    head["weight"].mul_(s / s_new)
    head["bias"].mul_(s).add_(m - m_new).div_(s_new)
