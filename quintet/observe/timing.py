"""A timer of the phases of a run, and shares of its processes' time by phase."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from types import MappingProxyType
from typing import Literal, NamedTuple, final, get_args

Phase = Literal[
    "stepping",
    "making",
    "acting",
    "learning",
    "replay",
    "waiting",
    "checkpoint",
    "evaluation",
    "other",
]
"""Phases of a process; "making" is the whole restart of its streams, "other" everything without a
name.
"""

PHASES: tuple[Phase, ...] = get_args(Phase)


@final
class PhaseTimer:
    """Adds up seconds by phase: `switch` ends one phase and begins the next.

    It may be used by one thread only.  A switch takes about a tenth of a microsecond, so the step
    loop may call it.
    """

    __slots__ = ("_begins", "_phase", "_reported", "_seconds", "_since")

    def __init__(self, begins: Callable[[Phase], None] = lambda _: None) -> None:
        """begins: called with a phase when that begins for the first time."""
        self._begins = begins
        self._seconds: dict[Phase, float] = {"other": 0.0}  # a phase enters when it begins
        self._reported: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self._phase: Phase = "other"
        self._since = perf_counter()

    def switch(self, phase: Phase) -> Phase:
        """Begins `phase`; returns the phase that ended, so that callers can switch back to it."""
        now = perf_counter()
        before = self._phase
        self._seconds[before] += now - self._since
        self._phase = phase
        self._since = now
        if phase not in self._seconds:
            self._seconds[phase] = 0.0
            self._begins(phase)
        return before

    def now(self) -> tuple[Phase, float]:
        """The current phase and its start by `perf_counter`; may be called from other threads."""
        return self._phase, self._since

    def seconds(self) -> dict[Phase, float]:
        """Seconds by phase since the timer was made."""
        self.switch(self._phase)
        return {phase: self._seconds.get(phase, 0.0) for phase in PHASES}

    def report(self) -> dict[str, float]:
        """Shares of the time since the last report as ``time/PHASE_frac``, which sum to 1.

        Phases that took no time are absent.
        """
        total = self.seconds()
        passed = {phase: total[phase] - self._reported[phase] for phase in PHASES}
        self._reported = total
        whole = sum(passed.values())
        if whole <= 0:
            return {}
        return {f"time/{phase}_frac": s / whole for phase, s in passed.items() if s > 0}

    def summary(self) -> str:
        """The seconds since the timer was made, and the share of each phase, as text."""
        seconds = {phase: s for phase, s in self.seconds().items() if s > 0}
        whole = sum(seconds.values())
        largest = sorted(seconds, key=lambda phase: -seconds[phase])
        parts = [f"{phase} {100 * seconds[phase] / whole:.0f}%" for phase in largest]
        return f"{whole:.1f} s: {', '.join(parts)}"


WINDOW_S = 30.0
"""Seconds over which shares are averaged: several iterations even of a slow run."""

LEARNER, SERVER = "time", "server"
"""Prefixes of the learner's and the inference server's shares; workers' shares begin with
worker/INDEX.
"""

Shares = Mapping[Phase, float]
"""Shares of a process's time by phase; they sum to 1."""


class Cores(NamedTuple):
    """Numbers of cores kept busy by this process with its children, and by others.

    waited_for: cores that they would also have kept busy if free; None if the system does not
        report this.
    """

    used: float = 0.0
    by_others: float = 0.0
    waited_for: float | None = None


@final
class Load(NamedTuple):
    """Shares of the time of a run's processes, and the use of the machine's cores.

    beside: shares of other processes than the learner, by name.
    env_processes: number of processes that step environments for the learner's process; 0: it steps
        them itself.
    """

    learner: Shares
    beside: Mapping[str, Shares] = MappingProxyType({})
    cores: Cores = Cores()
    env_processes: int = 0

    @property
    def workers(self) -> list[Shares]:
        return [shares for name, shares in self.beside.items() if name != SERVER]

    @property
    def server(self) -> Shares:
        """Shares of the inference server; empty without one."""
        return self.beside.get(SERVER, {})


@final
class TimeShares:
    """Shares of the time, by process and phase, over the last half minute.

    The first report of a process, which includes its start, is dropped when the second arrives.
    """

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {LEARNER: _Window()}
        self._cores, self._env_processes = _Window(), 0

    def add(self, report: Mapping[str, float]) -> None:
        """Adds ``time/PHASE_frac``, ``worker/INDEX/PHASE_frac`` and ``server/PHASE_frac`` of a
        report.
        """
        found = _shares(report)
        if LEARNER not in found:
            return
        wall_s = report.get("wall_s", 0.0)
        # A process is absent if it has reported nothing since: its last shares count.
        for name, shares in found.items():
            self._windows.setdefault(name, _Window()).add(wall_s, shares)
        self._env_processes = int(report.get("data/env_processes", 0))
        cores = {field: report[name] for field, name in _CORES.items() if name in report}
        self._cores.add(wall_s, cores)

    @property
    def starting(self) -> bool:
        """Whether there has been at most one report."""
        return self._windows[LEARNER].starting

    def recent(self) -> Load:
        """Mean shares; the learner's are empty before the first report."""
        workers = self._windows.keys() - {LEARNER, SERVER}
        names = sorted(workers, key=lambda name: int(name.removeprefix("worker/")))
        names += [SERVER] if SERVER in self._windows else []
        return Load(
            self._windows[LEARNER].shares(),
            {name: self._windows[name].shares() for name in names},
            Cores(**self._cores.mean()),
            self._env_processes,
        )


_CORES = {
    "used": "machine/cores_used",
    "by_others": "machine/cores_used_by_others",
    "waited_for": "machine/cores_waited_for",
}


@final
class _Window:
    """Values of the last half minute, weighted by the time they cover."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, float, Mapping[str, float]]] = deque()
        self._wall_s: float | None = None
        self.starting = True

    def add(self, wall_s: float, values: Mapping[str, float]) -> None:
        passed_s = 1.0 if self._wall_s is None else max(wall_s - self._wall_s, 1e-9)
        if self.starting and self._entries:
            self._entries.clear()
            self.starting = False
        self._wall_s = wall_s
        self._entries.append((wall_s, passed_s, values))
        while wall_s - self._entries[0][0] > WINDOW_S:
            self._entries.popleft()

    def mean(self) -> dict[str, float]:
        """Weighted means; an absent value counts as 0."""
        whole = sum(passed_s for _, passed_s, _ in self._entries)
        sums: dict[str, float] = {}
        for _, passed_s, values in self._entries:
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + passed_s * value / whole
        return sums

    def shares(self) -> dict[Phase, float]:
        """The means scaled to sum to 1, in the order of PHASES."""
        mean = self.mean()
        whole = sum(mean.values())
        return {phase: mean[phase] / whole for phase in PHASES if mean.get(phase, 0.0) > 0}


def _shares(report: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The shares in a report, by process and phase."""
    found: dict[str, dict[str, float]] = {}
    for name, value in report.items():
        process, _, last = name.rpartition("/")
        phase = last.removesuffix("_frac")
        ours = process in (LEARNER, SERVER) or process.startswith("worker/")
        if ours and last != phase and phase in PHASES:
            found.setdefault(process, {})[phase] = value
    return found


def mean(shares: Sequence[Shares]) -> dict[Phase, float]:
    """Mean of the shares of several processes."""
    sums = {phase: sum(each.get(phase, 0.0) for each in shares) for phase in PHASES}
    return {phase: value / len(shares) for phase, value in sums.items() if value > 0}
