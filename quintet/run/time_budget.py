"""A budget in minutes, which becomes a number of env_steps before the run begins.

The speed is measured by training in a temporary folder, whose weights are thrown away.  The number
is stored in the run's options, as if it had been given: no clock decides anything in the run, and a
resume never measures again.
"""

import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from quintet.bounds import MOST_STEPS
from quintet.config.resolve import Loaded, batch_steps, resolved, size_faults
from quintet.envs.env_source import can_be_made_again
from quintet.errors import CheckpointError, ConfigError, QuintetError
from quintet.run.callbacks import OnReport
from quintet.run.folder import clear
from quintet.system import manifest, run_record, saved_options
from quintet.system.inside import holder_of, in_use, is_ours

_SHARE, _LEAST_S, _MOST_S = 0.02, 3.0, 30.0  # of the time, that a measurement takes
_STEPS = 10_000_000  # that a measurement has at least, so that its time ends it
_CHECKPOINT_STEPS = 50_000  # from one checkpoint of a measurement to the next
_LARGEST_SHARE = 0.2  # of the time, after which a slow measurement ends
_OF_TRAINING = 0.94  # of the time left; the rest is for evaluations and checkpoints
_CHECK_SHARE = 0.05  # of the time, after which the speed is looked at again
_FAR_OFF = 1.3  # factor
_LATE = 0.5  # of the time that must be left, so that a run begins again
_REPORTS_S = 0.25
_DIGITS = 2

TrainOnce = Callable[[Loaded, OnReport], object]
"""Trains with a function that gets the reports; raises KeyboardInterrupt after a signal."""


def timed(loaded: Loaded, budget: "TimeBudget", train: TrainOnce) -> Loaded:
    """The configuration with the env_steps that fit the time; unchanged for a run that has begun.
    See `measure`.

    Raises CheckpointError if a process trains in its folder, or began to while this one measured.
    """
    if has_begun(loaded):
        budget.checks = False
        note = no_effect(loaded, budget.minutes)
        budget.notes += [] if note is None else [note]
        return loaded
    if loaded.config.report.progress:
        print(f"minutes={budget.minutes:g}: measuring the speed of training", flush=True)
    assert loaded.config.run_dir is not None
    place = Place.of(loaded.config.run_dir)
    found = measure(loaded, budget, train)
    place.require_same()
    # What was there before can't be told from what the run makes, and is kept.
    budget.checks = loaded.overwrite or not place.holds_ours
    return found


@final
@dataclass(frozen=True)
class Place:
    """The folder of a new run while its speed is measured.

    runs: names of the files of a run that it holds.
    holds_ours: whether it holds anything that a run may make.
    """

    folder: Path
    runs: tuple[str, ...]
    holds_ours: bool

    @classmethod
    def of(cls, folder: Path) -> "Place":
        """The folder as it is now; raises CheckpointError if a process trains in it."""
        if (holder := holder_of(folder)) is not None:
            raise in_use(folder, holder)
        try:
            names = os.listdir(folder)
        except OSError:  # which the run itself tells
            names = []
        config = [saved_options.FILE] * (saved_options.FILE in names)
        return cls(
            folder,
            (*config, *manifest.numbered(folder / "checkpoints")),
            any(is_ours(name) and name != ".lock" for name in names),
        )

    def require_same(self) -> None:
        """Raises CheckpointError if another process trains or has trained in it since."""
        if Place.of(self.folder).runs != self.runs:
            raise CheckpointError(
                f"another process began a run in {self.folder} while this one measured its speed: "
                "the same command resumes that run, another run_dir begins a new one"
            )


def timed_group(
    group: Sequence[Loaded],
    minutes: float,
    measure: Callable[[], Sequence[Mapping[str, Any]]],
    say: Callable[[str], None],
) -> list[Loaded]:
    """The runs of a seed group with the same number of env_steps: that of a run that has begun,
    else one that fits the time of each.

    measure: measures several runs at the same time; returns the answers of their processes.
    """
    begun = [each for each in group if has_begun(each)]
    known = {each.config.total_env_steps for each in begun}
    other = next(filter(None, (no_effect(each, minutes) for each in begun)), None)
    if other is not None:
        say(other)
    if len(begun) == len(group):
        return list(group)
    if not known:
        answers = measure()
        if any("total" not in answer for answer in answers):
            told = next((answer["error"] for answer in answers if "error" in answer), None)
            if told is None:
                raise KeyboardInterrupt
            raise QuintetError(told)
        known = {answer["total"] for answer in answers}
    total = min(known)
    if other is None:
        say(f"minutes={minutes:g}: each run has {total:,} env_steps")
    else:
        say(f"the runs that have not begun have {total:,} env_steps too")
    return [each if has_begun(each) else with_total(each, total, minutes) for each in group]


def begun_anew(loaded: Loaded, total: int, minutes: float) -> Loaded:
    """The configuration of a run that begins again with another budget, in its cleared folder."""
    assert loaded.config.run_dir is not None
    clear(loaded.config.run_dir)
    return with_total(loaded, total, minutes)


def has_begun(loaded: Loaded) -> bool:
    """Whether the run continues, so that its number of env_steps is known."""
    return run_record.SAVED in loaded.sources.values()


def source(minutes: float) -> str:
    """The source of a number of env_steps that follows from minutes."""
    return f"measured (minutes={minutes:g})"


def with_total(loaded: Loaded, total: int, minutes: float) -> Loaded:
    """The configuration with this budget."""
    config = loaded.config.model_copy(update={"total_env_steps": total})
    return replace(
        loaded, config=config, sources={**loaded.sources, "total_env_steps": source(minutes)}
    )


def no_effect(loaded: Loaded, minutes: float) -> str | None:
    """A sentence if a run that has begun was not begun with these minutes."""
    assert loaded.config.run_dir is not None
    record = run_record.read(loaded.config.run_dir)
    if record is not None and record.sources.get("total_env_steps") == source(minutes):
        return None
    return (
        f"minutes={minutes:g} has no effect on a run that has begun: it has "
        f"{loaded.config.total_env_steps:,} env_steps; raise --total-steps to train for longer"
    )


@final
class _Probe:
    """Receives the reports of a measurement and ends it.

    speed: env_steps per second after the first update; start_s, start_steps: seconds and env_steps
        up to then.
    """

    def __init__(self, seconds: float, most_s: float):
        self.speed = self.start_s = self.start_steps = 0.0
        self.done = False
        self._seconds, self._most_s = seconds, most_s
        self._first: tuple[float, float] | None = None

    def __call__(self, report: dict[str, float]) -> bool:
        steps, now = report["env_steps"], report["wall_s"]
        updated = any(x > 0 for name, x in report.items() if name.split("/")[-1] == "updates")
        if self._first is None and updated:
            self._first = self.start_steps, self.start_s = steps, now
        elif self._first is not None and now > self._first[1]:
            self.speed = (steps - self._first[0]) / (now - self._first[1])
            self.done = now - self._first[1] >= self._seconds
        if now >= self._most_s:
            if not self.speed:
                self.speed = steps / max(now, 1e-9)
            self.done = True
        return self.done


@final
@dataclass
class TimeBudget:
    """A run's time, from `begin` on by `time.monotonic`.

    notes: what was measured, for the user; said: what was seen too late, "" without it.
    checks: whether the number of env_steps may still be corrected.
    speed: env_steps per second; start_s, start_steps: seconds and env_steps until the first update,
        once the run begins.
    """

    minutes: float
    begin: float = field(default_factory=time.monotonic)
    notes: list[str] = field(default_factory=list)
    said: str = ""
    checks: bool = True
    speed: float = 0.0
    start_s: float = 0.0
    start_steps: float = 0.0
    _began: float = 0.0
    _first: tuple[int, float] | None = None

    def run_begins(self) -> None:
        """Called when the run itself begins."""
        self._began = time.monotonic()

    @property
    def total_s(self) -> float:
        return 60.0 * self.minutes

    def steps_left(self) -> float:
        """The env_steps that fit into the time that is left."""
        left_s = self.total_s - (time.monotonic() - self.begin) - self.start_s
        return self.start_steps + self.speed * max(left_s, 0.0) * _OF_TRAINING

    def correction(self, env_steps: int, total: int, seconds: float) -> int | None:
        """Another number of env_steps if the run, looked at once, is far too fast or too slow.

        seconds: of training so far, without evaluations and checkpoints.
        """
        if not self.checks:
            return None
        if self._first is None:
            self._first = env_steps, seconds
            self.start_s, self.start_steps = time.monotonic() - self._began, env_steps
            return None
        passed = seconds - self._first[1]
        if passed < max(_CHECK_SHARE * self.total_s, min(_LEAST_S, _LARGEST_SHARE * self.total_s)):
            return None
        self.checks = False
        speed = (env_steps - self._first[0]) / passed
        left_s = self.total_s - (time.monotonic() - self.begin)
        needed_s = (total - env_steps) / max(speed, 1e-9) / _OF_TRAINING
        if left_s / _FAR_OFF <= needed_s <= _FAR_OFF * left_s:
            return None
        if left_s < _LATE * self.total_s:
            self.said = (
                f"minutes={self.minutes:g}: the run makes {speed:,.0f} env_steps/s, not "
                f"{self.speed:,.0f}, and will end in about {needed_s / 60:,.2g} minutes; this was "
                "seen too late to begin again"
            )
            return None
        before, self.speed = self.speed, speed
        fits = rounded(self.steps_left())
        self.notes = [
            f"minutes={self.minutes:g}: the run makes {speed:,.0f} env_steps/s, not "
            f"{before:,.0f}, so it begins again with {fits:,} env_steps in place of {total:,}; "
            "this is done only once"
        ]
        return fits


def rounded(steps: float) -> int:
    """A round number of steps, at most `steps`."""
    whole = int(min(max(steps, 1.0), MOST_STEPS))
    unit = 10 ** max(len(str(whole)) - _DIGITS, 0)
    return int(whole // unit * unit)


def measure(loaded: Loaded, budget: TimeBudget, train: TrainOnce) -> Loaded:
    """The configuration of a new run with the number of env_steps that its time allows.

    Raises:
        ConfigError: the environments can't be made twice, or the time is too short.
        KeyboardInterrupt: the measurement was stopped.
    """
    if not can_be_made_again(loaded.env.source):
        raise ConfigError(
            f"minutes must have environments that can be made again, got {loaded.env.source}: "
            "give a function that makes it, or total_steps"
        )
    automatic = loaded.config.runtime.compile == "auto"
    if automatic and loaded.config.runtime.device != "cpu":
        automatic = resolved(loaded)[0]["runtime.compile"] != "graph"
    # Whether compiling pays off depends on the number of env_steps.
    _measured(_compiling(loaded, "off") if automatic else loaded, budget, train)
    timed = _fitting(loaded, budget)
    if automatic and resolved(timed)[0]["runtime.compile"] == "on":
        _measured(_compiling(timed, "on"), budget, train)
        timed = _fitting(loaded, budget)
    total = timed.config.total_env_steps
    budget.notes.append(
        f"minutes={budget.minutes:g}: at {budget.speed:,.0f} env_steps/s the run has {total:,} "
        "env_steps"
    )
    return timed


def _compiling(loaded: Loaded, how: str) -> Loaded:
    return replace(loaded, config=loaded.config.changed("runtime", {"compile": how}))


def _fitting(loaded: Loaded, budget: TimeBudget) -> Loaded:
    """The configuration with the env_steps that fit, at least one batch of each policy."""
    config = loaded.config
    policies = config.population.size
    total = max(rounded(budget.steps_left()), batch_steps(config) * policies)
    timed = with_total(loaded, total, budget.minutes)
    if faults := size_faults(timed.config, total // policies):
        raise ConfigError(
            f"minutes must be enough for one iteration, got {budget.minutes:g}: at "
            f"{budget.speed:,.0f} env_steps/s {faults[0]}"
        )
    return timed


def _measured(loaded: Loaded, budget: TimeBudget, train: TrainOnce) -> None:
    """Trains for some seconds in a temporary folder, and stores the speed in `budget`."""
    seconds = min(max(_SHARE * budget.total_s, _LEAST_S), _MOST_S, 0.05 * budget.total_s + 0.1)
    probe = _Probe(seconds, _LARGEST_SHARE * budget.total_s + 0.1)
    assert loaded.config.run_dir is not None
    # On the disk of the run, which its replay needs anyway.
    with TemporaryDirectory(prefix=".quintet-", dir=_existing(loaded.config.run_dir)) as folder:
        steps = max(loaded.config.total_env_steps, _STEPS)
        report = {"interval_s": _REPORTS_S, "sinks": (), "progress": False}
        quiet = loaded.config.changed("report", report).changed("eval", {"episodes": 0})
        replays = any(name.startswith("replay_") for name in vars(quiet.learner))
        if replays and quiet.checkpoint.interval_iterations == "auto":
            # Replay has room for the rows between two checkpoints, which here would be many.
            interval = max(1, _CHECKPOINT_STEPS // batch_steps(quiet))
            quiet = quiet.changed("checkpoint", {"interval_iterations": interval})
        config = quiet.model_copy(
            update={"total_env_steps": steps, "run_dir": Path(folder) / "run"}
        )
        trial = replace(loaded, config=config, overwrite=False)
        # The run itself will say it again.
        with redirect_stderr(io.StringIO()):
            train(trial, probe)
    budget.speed = max(probe.speed, 1e-6)
    budget.start_s, budget.start_steps = probe.start_s, probe.start_steps


def _existing(folder: Path) -> Path | None:
    """The nearest folder around `folder` that exists; None: no file can be made there."""
    near = next(each for each in folder.absolute().parents if each.is_dir())
    return near if os.access(near, os.W_OK) else None
