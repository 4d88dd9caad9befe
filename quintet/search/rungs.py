"""Successive halving over time: how many entries run in each rung, and for how long.

Each rung has the same time, which the entries of the rung share; the last one has the rest.
"""

from math import ceil
from typing import NamedTuple, final

HALVING_SHARE = 0.5
"""Share of the time in which entries fall out; the last of them have the rest."""

LEAST_S = 12.0
"""Least seconds of an entry in a rung, in which it starts, trains and is evaluated."""

LEAST_STEPS = 3_000
"""Least env_steps of an entry in its first leg, in which it learns something."""

SHORTEST_S = 5.0
"""Seconds that an entry gets even if the time of its rung is over, as after a slow start."""

_EVALUATION_SHARE, _LEAST_EVALUATION_S, _MOST_EVALUATION_S = 0.15, 3.0, 30.0
_ENDING_SHARE, _MOST_ENDING_S = 0.02, 5.0  # reserve for checkpoints and the end of a process


@final
class Plan(NamedTuple):
    """counts: number of entries in each rung, then of finalists; leg_s: seconds of each entry in
    these parts."""

    counts: tuple[int, ...]
    leg_s: tuple[float, ...]


def kept(count: int, jobs: int) -> int:
    """Number of `count` entries that stay: half, rounded up to whole rounds of `jobs`."""
    return max(1, min(count, ceil(count / 2 / jobs) * jobs))


def plan(entries: int, jobs: int, seconds: float, step_s: float = 0.0) -> Plan:
    """The plan for the first entries, as many of them as there is time for.

    step_s: seconds of a step of the environment.
    """
    least_s = max(LEAST_S, LEAST_STEPS * step_s)
    for count in range(entries, jobs, -1):
        found = _plan(count, jobs, seconds)
        if found.leg_s[0] >= least_s:
            return found
    return _plan(min(entries, jobs), jobs, seconds)


def halved(count: int, jobs: int) -> list[int]:
    """Number of entries in each rung, then of finalists."""
    counts = [count]
    while counts[-1] > jobs:
        counts.append(kept(counts[-1], jobs))
    return counts


def _plan(count: int, jobs: int, seconds: float) -> Plan:
    counts = halved(count, jobs)
    *rungs, _ = counts
    rung_s = HALVING_SHARE * seconds / max(1, len(rungs))
    legs = [rung_s / batches(each, jobs) for each in rungs]
    return Plan(tuple(counts), (*legs, seconds - rung_s * len(rungs)))


def batches(count: int, jobs: int) -> int:
    """Number of times that `jobs` entries run side by side until all of `count` have run."""
    return ceil(count / jobs)


def evaluation_s(leg_s: float, used_s: float | None = None) -> float:
    """Seconds of a leg that are for its evaluation; used_s: of the last one, if known."""
    least_s = min(_LEAST_EVALUATION_S, leg_s / 3)
    share_s = min(max(_EVALUATION_SHARE * leg_s, least_s), _MOST_EVALUATION_S)
    # Episodes of a better policy may be longer.
    return share_s if used_s is None else min(share_s, max(2.0 * used_s, least_s))


def training_s(leg_s: float, used_s: float | None = None) -> float:
    """Seconds of a leg until its training stops; used_s: of its last evaluation, if known."""
    return leg_s - evaluation_s(leg_s, used_s) - min(_ENDING_SHARE * leg_s, _MOST_ENDING_S)
