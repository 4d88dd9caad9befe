"""Statistics of updates, kept on the device until a report reads them."""

import math
from collections.abc import Mapping
from typing import NamedTuple, final

import torch
from torch import Tensor

from quintet.system.transfer import to_host

SUM_EVERY = 64
"""Number of vectors that an interval sums at once, with as many operations as for one."""

NOTHING: Mapping[str, Tensor] = {}


class Statistics(NamedTuple):
    """Scalars by metric's name; NaN without data.

    means: each of several ranks gives its share; the shares sum to the whole batch's mean.
    least, greatest: minima and maxima over the rank's rows.
    """

    means: Mapping[str, Tensor]
    least: Mapping[str, Tensor] = NOTHING
    greatest: Mapping[str, Tensor] = NOTHING

    @property
    def names(self) -> "Names":
        return Names(tuple(self.means), tuple(self.least), tuple(self.greatest))

    def pack(self) -> Tensor:
        """All as one float64 vector: means, negated minima, and maxima."""
        least = [-x for x in self.least.values()]
        values = [*self.means.values(), *least, *self.greatest.values()]
        return torch.stack(values).detach().double()


def plain(outputs: Mapping[str, Tensor], _batch: object, _knobs: object) -> Statistics:
    """The statistics of a loss whose outputs are means by metric's name."""
    return Statistics(outputs)


class Names(NamedTuple):
    """The names of the numbers in the vectors of `Statistics.pack`, in order."""

    means: tuple[str, ...]
    least: tuple[str, ...] = ()
    greatest: tuple[str, ...] = ()

    def over_ranks(self, vectors: Tensor) -> Tensor:
        """The whole batch's vector from each rank's ``[ranks, N]``."""
        split = len(self.means)
        return torch.cat((vectors[:, :split].sum(0), vectors[:, split:].amax(0)))

    def by_name(self, vectors: Tensor) -> dict[str, Tensor]:
        """Means, minima and maxima over some updates ``[K, N]``."""
        split = len(self.means)
        extremes, count = vectors[:, split:].amax(0), len(self.least)
        parts = vectors[:, :split].mean(0), -extremes[:count], extremes[count:]
        each = [x for part in parts for x in part.unbind()]
        return dict(zip((*self.means, *self.least, *self.greatest), each, strict=True))


@final
class Interval:
    """Means, minima and maxima over all updates since they were last read.

    Nothing is read from the device before `read`.  A mean is over the updates that have the metric.
    """

    def __init__(self) -> None:
        self._waiting: dict[Names, list[Tensor]] = {}
        # Sums and counts of the means, and extremes, over vectors of the same names.
        self._sums: dict[Names, tuple[Tensor, Tensor, Tensor]] = {}
        self._numbers: dict[str, list[float]] = {}

    def add(self, statistics: Statistics) -> None:
        """Adds the statistics of one update."""
        self.add_vectors(statistics.names, statistics.pack().unsqueeze(0))

    def add_vectors(self, names: Names, vectors: Tensor) -> None:
        """Adds packed statistics of some updates ``[K, N]``."""
        waiting = self._waiting.setdefault(names, [])
        waiting.append(vectors)
        if len(waiting) >= SUM_EVERY:
            self._fold(names)

    def _fold(self, names: Names) -> None:
        """Adds the waiting vectors to the sums."""
        vectors = torch.cat(self._waiting.pop(names))
        split = len(names.means)
        means, extremes = vectors[:, :split], vectors[:, split:]
        present = ~means.isnan()
        total, count = means.where(present, 0.0).sum(0), present.sum(0)
        highest = extremes.nan_to_num(-math.inf, math.inf, -math.inf).amax(0)
        if names in self._sums:
            old_total, old_count, old_highest = self._sums[names]
            total, count = old_total + total, old_count + count
            highest = torch.maximum(old_highest, highest)
        self._sums[names] = total, count, highest

    def add_numbers(self, means: Mapping[str, float]) -> None:
        """Takes plain numbers of one update."""
        for name, x in means.items():
            self._numbers.setdefault(name, []).append(x)

    def read(self) -> dict[str, float]:
        """All finite values by name; starts the next interval."""
        for names in [*self._waiting]:
            self._fold(names)
        sums: dict[str, tuple[float, int]] = {}
        values: dict[str, float] = {}
        found = to_host({(n, k): x for n, each in self._sums.items() for k, x in enumerate(each)})
        for names in self._sums:
            total, count, extremes = (found[names, k].tolist() for k in range(3))
            for name, x, n in zip(names.means, total, count, strict=True):
                so_far, steps = sums.get(name, (0.0, 0))
                sums[name] = so_far + x, steps + n
            for name, x in zip(names.least, extremes[: len(names.least)], strict=True):
                values[name] = min(-x, values.get(name, math.inf))
            for name, x in zip(names.greatest, extremes[len(names.least) :], strict=True):
                values[name] = max(x, values.get(name, -math.inf))
        values = {name: x / n for name, (x, n) in sums.items() if n} | values
        values |= {name: math.fsum(x) / len(x) for name, x in self._numbers.items()}
        self._sums, self._numbers = {}, {}
        return {name: x for name, x in values.items() if math.isfinite(x)}
