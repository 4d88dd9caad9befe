"""Metrics of learners that correct by ratios, by the names of quintet.observe.metrics."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from quintet.algorithms.parts.statistics import Statistics
from quintet.ops import policy_losses

METRICS = ("policy/ratio_min", "policy/ratio_max", "policy/rho_clip_frac", "policy/c_clip_frac")
"""The metrics of `statistics` in addition to those of all learners."""

_TARGET, _ERROR, _ADVANTAGE = "value/target_mean", "value/error_mean", "advantage/mean"
_SQUARED = "_squared"

CLIPPED = 1.001
"""Multiple of the cap from which a ratio counts as clipped: on-policy ratios are 1 up to rounding,
so half of them are above 1.
"""


class Terms(NamedTuple):
    """Values from which statistics follow, by row ``[T, B]``.

    entropy: the policy's entropy.
    log_rho, rho: ratio of pi to mu; 0 and 1 in invalid rows.
    v_tm1, target_tm1: the critic's prediction and its target; pg_advantage_tm1: the advantage in
        the policy's gradient.
    reward: 0 in invalid rows.
    """

    entropy: Tensor
    log_rho: Tensor
    rho: Tensor
    v_tm1: Tensor
    target_tm1: Tensor
    pg_advantage_tm1: Tensor
    reward: Tensor


@torch.no_grad()
def statistics(
    losses: Mapping[str, Tensor],
    terms: Terms,
    valid: Tensor,
    whole: tuple[Tensor, int],
    bars: tuple[float | Tensor, float | Tensor],
) -> Statistics:
    """Statistics of a batch, or of one rank's columns of it.

    losses: the weighted terms and their sum, by metric's name.
    valid: ``[T, B]``.
    whole: numbers of the whole batch's valid rows, at least 1, and of all its rows.
    bars: caps of the ratio in errors (or the policy's terms) and in traces; infinity: no cap.
    """
    count, rows_of_batch = whole
    used = valid.double()
    spread = torch.stack(
        (terms.target_tm1, terms.target_tm1 - terms.v_tm1, terms.pg_advantage_tm1)
    ).double()
    over = [(terms.rho > CLIPPED * bar).to(terms.rho.dtype) for bar in bars]
    rows = torch.stack(
        (
            terms.entropy,
            policy_losses.approx_kl(terms.log_rho),
            terms.rho,
            *over,
            terms.v_tm1,
            terms.reward,
        )
    )
    names = (
        "policy/entropy",
        "policy/approx_kl",
        "policy/ratio_mean",
        "policy/rho_clip_frac",
        "policy/c_clip_frac",
        "value/prediction_mean",
        "reward/mean",
    )
    means = dict(zip(names, ((rows * used).sum((1, 2)) / count).unbind(), strict=True))
    spreads = (_TARGET, _ERROR, _ADVANTAGE)
    means |= dict(zip(spreads, ((spread * used).sum((1, 2)) / count).unbind(), strict=True))
    squares = ((spread.square() * used).sum((1, 2)) / count).unbind()
    means |= {f"{name}{_SQUARED}": x for name, x in zip(spreads, squares, strict=True)}
    means["data/valid_frac"] = valid.sum() / rows_of_batch
    return Statistics(
        {**losses, **means},
        least={"policy/ratio_min": torch.where(valid, terms.rho, math.inf).min()},
        greatest={"policy/ratio_max": torch.where(valid, terms.rho, -math.inf).max()},
    )


def with_spreads(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics with spreads over all rows of the interval in place of the means of squares."""
    values = dict(metrics)
    if _TARGET not in values:
        return values

    square = values.pop(f"{_ADVANTAGE}{_SQUARED}")
    values["advantage/std"] = math.sqrt(max(square - values[_ADVANTAGE] ** 2, 0.0))
    return with_fit(values)


@torch.no_grad()
def critic_means(q: Tensor, target: Tensor, count: int) -> dict[str, Tensor]:
    """Means of a critic's predictions and their targets ``[N]``, with those that
    `with_critic_fit` reads; `count`: rows of all ranks."""
    return {
        "q/prediction_mean": q.sum() / count,
        "q/target_mean": target.sum() / count,
        "q/error_abs_mean": (q - target).abs().sum() / count,
        **fit(q, target, count),
    }


def with_critic_fit(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an interval from its `critic_means`, if there are any."""
    if _TARGET not in metrics:
        return dict(metrics)
    values = with_fit(metrics)
    del values[_TARGET]  # the same as q/target_mean
    return values


@torch.no_grad()
def fit(value: Tensor, target: Tensor, count: int) -> dict[str, Tensor]:
    """The means that `with_fit` reads, of values and targets ``[N]``; `count`: all ranks' rows."""
    # One by one: stacked, they made a compiled step slower.
    each = {_TARGET: target.double(), _ERROR: (target - value).double()}
    squares = {f"{name}{_SQUARED}": x.square() for name, x in each.items()}
    return {name: x.sum() / count for name, x in (each | squares).items()}


def with_fit(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics with ``value/explained_variance`` and ``value/error_frac``, over all rows of the
    interval, which replace the mean error and the means of squares.
    """
    values = dict(metrics)
    target_squares, error_squares = (values.pop(f"{x}{_SQUARED}") for x in (_TARGET, _ERROR))
    target = max(target_squares - values[_TARGET] ** 2, 0.0)
    error = max(error_squares - values.pop(_ERROR) ** 2, 0.0)
    if target > 1e-12:
        values["value/explained_variance"] = 1.0 - error / target
    if target_squares > 1e-12:
        values["value/error_frac"] = error_squares / target_squares
    return values
