"""Policy loss terms: per step, unreduced, unweighted, to be minimised.

``rho = exp(logp_pi - logp_mu)`` of the action taken; the advantage is used unchanged.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from quintet.ops.adam import Scalar

PerStep = Float[Tensor, "*n"]


def log_prob(logp_pi: PerStep, advantage: PerStep) -> PerStep:
    """Policy-gradient term ``-logp_pi * advantage``.

    Returns: loss per step, in nats times units of the advantage.

    Source: Williams (1992), negated; with V-trace's advantage, which already contains the clipped
        ratio, Espeholt et al., arXiv 1802.01561, section 4.2.
    """
    return -logp_pi * advantage


def ratio(rho: PerStep, advantage: PerStep) -> PerStep:
    """Importance-weighted policy term ``-rho * advantage``.

    Returns: loss per step, in units of the advantage.

    Source: Schulman et al., arXiv 1707.06347, equation 6, negated.
    """
    return -rho * advantage


def ratio_clip(rho: PerStep, advantage: PerStep, clip_epsilon: Scalar) -> PerStep:
    """Clipped policy term ``-min(rho * advantage, clamp(rho, 1 - eps, 1 + eps) * advantage)``.

    No gradient flows where the ratio has left the interval in the direction that the advantage
    rewards; on the other side the gradient is that of `ratio`.

    Args:
        clip_epsilon: half width of the interval, > 0; infinity gives `ratio`.

    Returns: loss per step, in units of the advantage.

    Source: Schulman et al., arXiv 1707.06347, equation 7, negated.
    """
    return _ratio_clip(rho, advantage, 1.0 - clip_epsilon, 1.0 + clip_epsilon)


def ratio_clip_symmetric(rho: PerStep, advantage: PerStep, clip_ratio: Scalar) -> PerStep:
    """`ratio_clip` with the interval ``[1 / (1 + c), 1 + c]``, whose ends are equally far from 1 as
    factors.

    Args:
        clip_ratio: c > 0.

    Returns: loss per step, in units of the advantage.

    Source: Sample Factory, Petrenko et al., arXiv 2006.11751.
    """
    return _ratio_clip(rho, advantage, 1.0 / (1.0 + clip_ratio), 1.0 + clip_ratio)


def _ratio_clip(rho: PerStep, advantage: PerStep, low: Scalar, high: Scalar) -> PerStep:
    one = torch.ones_like(rho)  # clamp by tensors, since a bound may be one
    return -torch.minimum(rho * advantage, rho.clamp(one * low, one * high) * advantage)


def approx_kl(log_rho: PerStep) -> PerStep:
    """Estimate of ``KL(mu || pi)`` from actions of mu: ``rho - 1 - log_rho``, never negative.

    Returns: nats per step; the mean over actions of mu is unbiased.

    Source: Schulman, "Approximating KL divergence" (2020), estimator k3.
    """
    # expm1 keeps the digits that exp(x) - 1 loses near ratio 1, where this is read most often.
    return torch.expm1(log_rho) - log_rho


def kl_cutoff(
    mean_kl: Float[Tensor, ""], *, target: Scalar, factor: Scalar, coef: Scalar
) -> Float[Tensor, ""]:
    """Hard penalty on a large mean KL: ``coef * max(0, mean_kl - factor * target)^2``.

    The mean is squared, so the result is a scalar, with its coefficient; as in the source there is
    no factor 1/2.

    Args:
        mean_kl: nats, over valid steps.
        target: nats.
        factor: multiple of the target above which the penalty begins.

    Returns: scalar loss.

    Source: the PPO agent of TF-Agents.
    """
    return coef * (mean_kl - factor * target).clamp(min=0.0).square()


def adaptive_kl_coef(
    beta: float,
    mean_kl: float,
    *,
    target: float,
    tolerance: float,
    factor: float = 1.5,
    beta_min: float = 1e-15,
    beta_max: float = 1e17,
) -> float:
    """Next weight of the KL penalty.

    ``beta / factor`` where ``mean_kl < target * (1 - tolerance)``, ``beta * factor`` where
    ``mean_kl > target * (1 + tolerance)`` (both strict), else ``beta``; limited to
    ``[beta_min, beta_max]`` so that it can always recover.

    Args:
        mean_kl, target: nats.
        tolerance: half width of the dead band as a fraction of the target.

    Returns: the new beta, in units of loss per nat.

    Source: Schulman et al., arXiv 1707.06347, section 4, which doubles and halves outside a factor
    1.5; the narrower band, the factor 1.5 and the limits are those of TF-Agents.
    """
    if mean_kl < target * (1.0 - tolerance):
        beta = beta / factor
    elif mean_kl > target * (1.0 + tolerance):
        beta = beta * factor
    return min(max(beta, beta_min), beta_max)


def correction_weight(rho: PerStep, clip: Scalar) -> PerStep:
    """Weight for actions of pi that corrects the truncation of ratios at `clip`:
    ``max(0, 1 - clip / rho)``.

    ``sum_a mu(a) * min(clip, rho(a)) * h(a) + sum_a pi(a) * max(0, 1 - clip / rho(a)) * h(a)``
    equals ``sum_a pi(a) * h(a)`` for every h.

    Returns: weights in [0, 1), 0 where the ratio is at most `clip`.

    Source: Wang et al., arXiv 1611.01224, equation 7, second term.
    """
    return (1.0 - clip / rho).clamp_min(0.0)
