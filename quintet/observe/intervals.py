"""Means over runs and their bootstrap intervals; intervals of fractions and of mean returns."""

import math

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 2000
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


def iqm(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interquartile mean over the last axis, of ``[..., N]`` scores: the mean without the lowest
    and the highest quarter, rounded down; for fewer than 4 scores simply the mean.

    Source: Agarwal et al. 2021 (arXiv 2108.13264).  Runs of one task are drawn with replacement, as
        in their stratified bootstrap with a single task.
    """
    cut = scores.shape[-1] // 4
    kept = np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut]
    return np.asarray(kept.mean(axis=-1))


def iqm_interval(scores: NDArray[np.float64]) -> tuple[float, float]:
    """The 95% bootstrap interval of the interquartile mean of scores ``[N]``."""
    drawn = np.random.default_rng(0).integers(len(scores), size=(_RESAMPLES, len(scores)))
    low, high = np.percentile(iqm(scores[drawn]), _BAND)
    return float(low), float(high)


def fraction_interval(fraction: float, count: float) -> tuple[float, float]:
    """The 95% interval of a probability, from the fraction of `count` trials.  Unlike that of
    standard errors it is no point where all trials, or none, succeeded.

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
    standard errors, and where they have but two values (lost or won) that of a fraction.  None for
    one number, and where all are equal, which says nothing of how far others may be.
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
