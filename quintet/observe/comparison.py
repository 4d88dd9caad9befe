"""Statistics that decide between sides, each a group of runs, from the scores of their runs by
task.

Definitions are those of Agarwal et al. 2021 (arXiv 2108.13264): the interquartile mean and the
performance profile over runs and tasks, the probability of improvement as the mean over tasks, and
bootstrap intervals from runs that are drawn within each task.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from quintet.observe.intervals import iqm, of_scipy, resampled

Array = NDArray[np.float64]

_TAUS = 51
_SHUFFLES = 10_000
_CHANCE = 0.05
_Z_DECIDED, _Z_POWER = 1.959964, 0.841621  # quantiles of 97.5% and 80%
MOST_SEEDS = 1000


@final
@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval; without ends where a side has one run of a task."""

    value: float
    low: float | None = None
    high: float | None = None


@final
@dataclass(frozen=True)
class Side:
    """The runs of a side; profile: the fraction of runs above each of `taus`."""

    name: str
    runs: int
    mean: float
    iqm: Estimate
    taus: Sequence[float]
    profile: Sequence[Estimate]


@final
@dataclass(frozen=True)
class Duel:
    """The first side against another: the probability that a run of the first has the higher
    score, a tie counting half.

    chance: fraction of shuffles of the sides' runs that are at least as far from 0.5.
    better: the name of the better side; None: not decided.
    seeds: runs of each task on each side that would probably decide; None: decided, unknown, or
        more than `MOST_SEEDS`.
    """

    names: tuple[str, str]
    improvement: Estimate
    chance: float
    better: str | None = None
    seeds: int | None = None


@final
@dataclass(frozen=True)
class Part:
    """One task, or all of them (""); scale: the scores that are 0 and 1 in pictures."""

    task: str
    sides: Sequence[Side]
    duels: Sequence[Duel]
    scale: tuple[float, float] = (0.0, 1.0)


def compare(
    sides: Mapping[str, Mapping[str, Array]], scales: Mapping[str, tuple[float, float]]
) -> list[Part]:
    """The first side against each other: a part for each task, and one over several tasks, with
    scores on the scale of their task.

    sides: the scores of each side by task; all sides have the same tasks.
    """
    first = next(iter(sides.values()))
    parts = [
        _part(task, {side: [own[task]] for side, own in sides.items()}, scales[task])
        for task in first
    ]
    if len(first) > 1:
        scaled = {
            side: [(own[task] - scales[task][0]) / np.ptp(scales[task]) for task in first]
            for side, own in sides.items()
        }
        parts.append(_part("", scaled, (0.0, 1.0)))
    return parts


def pooled_scale(scores: Sequence[Array]) -> tuple[float, float]:
    """The lowest and the highest score of all sides; one apart where all are equal."""
    low, high = float(min(map(np.min, scores))), float(max(map(np.max, scores)))
    return (low, high) if high > low else (low, low + 1.0)


def _part(task: str, sides: Mapping[str, list[Array]], scale: tuple[float, float]) -> Part:
    """The comparison of the first side with each other one on a task."""
    every = np.concatenate([x for own in sides.values() for x in own])
    taus = np.linspace(every.min(), every.max(), _TAUS)
    (name, first), *others = sides.items()
    return Part(
        task,
        [_side(side, own, taus) for side, own in sides.items()],
        [_duel((name, side), first, own) for side, own in others],
        scale,
    )


def _side(name: str, tasks: list[Array], taus: Array) -> Side:
    def above(*drawn: Array) -> Array:
        shares = [(x > taus.reshape(-1, *[1] * x.ndim)).mean(axis=-1) for x in drawn]
        return np.asarray(np.mean(shares, axis=0))

    mean = float(np.mean([x.mean() for x in tasks]))
    (middle,), profile = _estimates(iqm, tasks), _estimates(above, tasks)
    return Side(name, sum(map(len, tasks)), mean, middle, taus.tolist(), profile)


def _estimates(statistic: Callable[..., Array], strata: Sequence[Array]) -> list[Estimate]:
    """The numbers of a statistic with their intervals."""
    values = np.atleast_1d(statistic(*strata)).tolist()
    found = resampled(statistic, *strata)
    if found is None:
        return [*map(Estimate, values)]
    return [*map(Estimate, values, *(np.atleast_1d(each).tolist() for each in found))]


def improvement(*strata: Array) -> Array:
    """The probability that a run of one side has a higher score than one of the other, over tasks:
    the statistic U of Mann and Whitney as a fraction of pairs.

    strata: ``[..., N]`` of each task, first those of one side, then those of the other.
    """
    tasks = len(strata) // 2
    shares = []
    for a, b in zip(strata[:tasks], strata[tasks:], strict=True):
        n, m = a.shape[-1], b.shape[-1]
        ranks = of_scipy().rankdata(np.concatenate([a, b], axis=-1), axis=-1)
        shares.append((ranks[..., :n].sum(axis=-1) - n * (n + 1) / 2) / (n * m))
    return np.asarray(np.mean(shares, axis=0))


def _duel(names: tuple[str, str], a: list[Array], b: list[Array]) -> Duel:
    """An interval of few runs excludes 0.5 by chance too often, in 19% of comparisons of three runs
    of one task with three, so a side is better only if shuffles say so too."""
    (found,) = _estimates(improvement, [*a, *b])
    chance = _chance(a, b, found.value)
    if found.low is None or found.high is None:
        return Duel(names, found, chance)
    if chance <= _CHANCE and not found.low <= 0.5 <= found.high:
        return Duel(names, found, chance, names[found.value < 0.5])
    return Duel(names, found, chance, seeds=_seeds(a, b, found.value))


def _chance(a: list[Array], b: list[Array], value: float) -> float:
    rng = np.random.default_rng(0)
    together = [np.tile(np.concatenate(runs), (_SHUFFLES, 1)) for runs in zip(a, b, strict=True)]
    drawn = [rng.permuted(each, axis=1) for each in together]
    ours = [each[:, : len(x)] for each, x in zip(drawn, a, strict=True)]
    second = [each[:, len(x) :] for each, x in zip(drawn, a, strict=True)]
    far = np.abs(improvement(*ours, *second) - 0.5) >= abs(value - 0.5) - 1e-9
    return float((far.sum() + 1) / (_SHUFFLES + 1))


def _seeds(a: list[Array], b: list[Array], value: float) -> int | None:
    """The runs of each task on each side with which a comparison decides with a probability of 80%,
    if the probability of improvement stays; more than there are, and as many as shuffles need.

    Source: Noether 1987, for equal sides; the variance of a mean over tasks is a fraction.
    """
    least = 1 + min(map(len, [*a, *b]))
    while 2 / math.comb(2 * least, least) ** len(a) > _CHANCE:
        least += 1
    effect = 6 * (value - 0.5) ** 2 * len(a)
    found = (_Z_DECIDED + _Z_POWER) ** 2 / effect if effect else math.inf
    return max(least, math.ceil(found)) if found <= MOST_SEEDS else None
