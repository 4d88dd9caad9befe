"""What a learner with V-trace reports of an update, by the names of quintet.observe.metrics."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from quintet.algorithms.parts.diagnostics import non_finite
from quintet.errors import NonFiniteError
from quintet.ops import policy_losses

LOSSES = ("loss/policy", "loss/value", "loss/entropy")
"""The weighted terms of the loss but for auxiliary ones, in the order of the sum."""

SUMS = ("loss/total", "loss/total_abs")

MEANS = (
    "policy/entropy",
    "policy/approx_kl",
    "policy/ratio_mean",
    "policy/rho_clip_frac",
    "policy/c_clip_frac",
    "value/prediction_mean",
    "reward/mean",
    "value/target_mean",
    "advantage/mean",
)
"""Over valid rows."""

OTHERS = (
    "data/valid_frac",
    "policy/ratio_min",
    "policy/ratio_max",
    "value/target_variance",
    "value/error_variance",
    "advantage/variance",
)
"""The variances are not reported as such."""

CLIPPED = 1.001
"""A ratio is counted as clipped from this many times its cap on: on-policy ratios are 1 but for
rounding, and half of them above it.
"""


class Terms(NamedTuple):
    """What a loss with V-trace is a sum or mean of, by row ``[T, B]``, unweighted, and what that
    was made of.

    policy, error, entropy: terms of policy and value function, and the policy's entropy; `error` is
        half the squared error.
    aux: auxiliary losses by name, scalars or ``[T, B]``.
    log_rho, rho: of pi to mu; 0 and 1 in rows that are not valid.
    reward: 0 in these.
    """

    policy: Tensor
    error: Tensor
    entropy: Tensor
    aux: dict[str, Tensor]
    logp_pi: Tensor
    log_rho: Tensor
    rho: Tensor
    v_tm1: Tensor
    target_tm1: Tensor
    pg_advantage_tm1: Tensor
    reward: Tensor


@torch.no_grad()
def vtrace_stats(
    losses: Tensor, terms: Terms, valid: Tensor, rho_bar: float | None, c_bar: float | None
) -> Tensor:
    """LOSSES and auxiliary ones, then SUMS, MEANS and OTHERS, as one tensor.

    losses: the weighted terms.
    """
    count = valid.sum().to(losses.dtype)
    weight = valid / count.clamp_min(1.0)

    def mean(*x: Tensor) -> Tensor:
        return (torch.stack(x) * weight).sum((1, 2))

    v_tm1, target, advantage = (
        x.detach() for x in (terms.v_tm1, terms.target_tm1, terms.pg_advantage_tm1)
    )
    rho = terms.rho
    over = [
        (rho > (math.inf if bar is None else CLIPPED * bar)).to(rho.dtype)
        for bar in (rho_bar, c_bar)
    ]
    means = mean(
        terms.entropy.detach(),
        policy_losses.approx_kl(terms.log_rho),
        rho,
        *over,
        v_tm1,
        terms.reward,
        target,
        advantage,
    )
    spread = torch.stack((target, target - v_tm1, advantage))
    centred = spread - mean(*spread.unbind())[:, None, None]
    others = torch.stack(
        (
            count / valid.numel(),
            torch.where(valid, rho, math.inf).min(),
            torch.where(valid, rho, 0.0).max(),
        )
    )
    losses = losses.detach()
    sums = torch.stack((losses.sum(), losses.abs().sum()))
    return torch.cat((losses, sums, means, others, mean(*centred.square().unbind())))


def combined_stats(stats: Tensor, num_aux: int) -> Tensor:
    """`vtrace_stats` of a batch from those of its parts ``[N, S]``, which have equally many columns
    and whose losses are their shares of the batch's.

    A variance over all rows is the parts' own, plus that of their means around the whole mean.
    """
    sizes = [len(LOSSES) + num_aux, len(SUMS), len(MEANS), len(OTHERS)]
    losses, _, means, others = torch.split(stats.double(), sizes, 1)
    losses = losses.sum(0)
    frac, least, most, *variances = others.unbind(1)
    used = (frac > 0)[:, None]  # a part without a valid row has no say, whatever it holds
    weight = torch.where(used, frac[:, None] / frac.sum(), 0.0)

    def mean(x: Tensor) -> Tensor:
        return (weight * torch.where(used, x, 0.0)).sum(0)

    by_name = dict(zip(MEANS, means.unbind(1), strict=True))
    target, value = by_name["value/target_mean"], by_name["value/prediction_mean"]
    centres = torch.stack((target, target - value, by_name["advantage/mean"]), 1)
    spread = torch.stack(variances, 1) + (centres - mean(centres)).square()
    sums = torch.stack((losses.sum(), losses.abs().sum()))
    bounds = torch.stack((frac.mean(), least.min(), most.max()))
    return torch.cat((losses, sums, mean(means), bounds, mean(spread)))


def vtrace_metrics(
    stats: Tensor, aux: tuple[str, ...], max_grad_norm: float | None, update: int
) -> dict[str, float]:
    """The metrics of an update, from its gradient's norm and `vtrace_stats`, read in one go.

    aux: names of the auxiliary losses; update: the update's number in the run.

    Raises:
        NonFiniteError: names the first loss, or the norm, that is not finite.
    """
    losses = (*LOSSES, *(f"loss/aux/{name}" for name in aux), *SUMS)
    names = ("optim/grad_norm", *losses, *MEANS, *OTHERS)
    values = dict(zip(names, stats.tolist(), strict=True))
    for name in (*losses, "optim/grad_norm"):
        if not math.isfinite(values[name]):
            raise NonFiniteError(non_finite(name, values[name], update))
    spread, error = values.pop("value/target_variance"), values.pop("value/error_variance")
    advantage_variance = values.pop("advantage/variance")
    if advantage_variance >= 0.0:
        values["advantage/std"] = math.sqrt(advantage_variance)
    if spread > 1e-12:
        values["value/explained_variance"] = 1.0 - error / spread
    if max_grad_norm is not None:
        values["optim/grad_clip_frac"] = float(values["optim/grad_norm"] > max_grad_norm)
    # Without a cap a ratio may be infinite where the loss is not; and there may be no valid row.
    return {name: x for name, x in values.items() if math.isfinite(x)}
