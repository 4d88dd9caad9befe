"""Means over runs and their bootstrap intervals."""

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 2000
_BAND = (2.5, 97.5)


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
