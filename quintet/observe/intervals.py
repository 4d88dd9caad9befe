"""Means over runs and their bootstrap intervals; intervals of fractions and of mean returns."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quintet.errors import QuintetError

_RESAMPLES = 2000
_BATCH = 250  # resamples at a time, for the memory
_ROUNDING = 1e-9
_BAND = (2.5, 97.5)
_Z = 1.959964
_LEAST_OF_TWO = 10  # numbers from which two values are no chance


def bootstrap_band(curves: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper end ``[N]`` of the 95% bootstrap interval of the mean of `curves` ``[S, N]``.

    Whole runs are drawn with replacement, the same in every call.
    """
    seeds = len(curves)
    drawn = np.random.default_rng(0).integers(seeds, size=(_RESAMPLES, seeds))
    counts = np.stack([(drawn == seed).sum(axis=1) for seed in range(seeds)], axis=1)
    low, high = np.percentile(counts @ curves / seeds, _BAND, axis=0)
    return low, high


def iqm(*tasks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interquartile mean of the scores of tasks, ``[..., N]`` each: the mean without the lowest and
    the highest quarter of all, rounded down; for fewer than 4 scores simply the mean.  Every task
    has the same weight, however many runs it has.

    Source: Agarwal et al. 2021 (arXiv 2108.13264), who have as many runs of every task.
    """
    share = np.concatenate([np.full(x.shape[-1], 1 / x.shape[-1] / len(tasks)) for x in tasks])
    scores = np.concatenate(tasks, axis=-1)
    order = np.argsort(scores, axis=-1)
    count = scores.shape[-1]
    cut = count // 4 / count
    inside = np.clip(np.cumsum(share[order], axis=-1), cut, 1 - cut)
    kept = np.diff(inside, axis=-1, prepend=cut)
    kept[kept < _ROUNDING] = 0.0
    mean = (kept * np.take_along_axis(scores, order, axis=-1)).sum(axis=-1) / kept.sum(axis=-1)
    return np.asarray(mean)


def resampled(
    statistic: Callable[..., NDArray[np.float64]], *strata: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Lower and upper end of the 95% bootstrap interval of a statistic of strata ``[..., N]``, from
    percentiles.  Runs are drawn with replacement within each stratum, the same in every call.  None
    where a stratum has one run, which says nothing of others.

    Source: Agarwal et al. 2021, whose strata are tasks.
    """
    if min(map(len, strata)) < 2:
        return None
    found = of_scipy().bootstrap(
        strata,
        lambda *drawn, axis: statistic(*drawn),  # noqa: ARG005  axis: the last
        n_resamples=_RESAMPLES,
        batch=_BATCH,
        method="percentile",
        random_state=np.random.default_rng(0),
    )
    return found.confidence_interval.low, found.confidence_interval.high


def of_scipy() -> Any:
    """The module ``scipy.stats``; raises QuintetError without it."""
    try:
        from scipy import stats
    except ImportError as fault:
        raise QuintetError(
            'intervals need scipy, which is not installed: pip install "quintet-rl[plot]"'
        ) from fault
    return stats


def fraction_interval(fraction: float, count: float) -> tuple[float, float]:
    """The 95% interval of a probability, from the fraction of `count` trials.  It has a
    width even if all trials or none succeeded, where 1.96 standard errors would be 0.

    Source: Wilson 1927.
    """
    share = _Z**2 / count
    centre = (fraction + share / 2) / (1 + share)
    half = _Z * math.sqrt(fraction * (1 - fraction) / count + share / (4 * count)) / (1 + share)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(
    mean: float, std: float, least: float, most: float, count: float
) -> tuple[float, float] | None:
    """The 95% interval of the mean of numbers with this population standard deviation: 1.96
    standard errors, or the interval of a probability if there are only two values (lost or won).
    None for a single number, and for equal ones, which don't show how far others may be.
    """
    if count < 2 or most <= least:
        return None
    wide = most - least
    # Numbers between two ends have the largest spread only if all are at the ends.
    both = math.isclose(std**2, (most - mean) * (mean - least), rel_tol=1e-9)
    if both and count >= _LEAST_OF_TWO:
        low, high = fraction_interval((mean - least) / wide, count)
        return least + wide * low, least + wide * high
    half = _Z * std / math.sqrt(count - 1)
    return mean - half, mean + half
