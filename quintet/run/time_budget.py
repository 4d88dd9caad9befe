"""A budget in minutes, which becomes a number of env_steps before the run begins.

The speed is measured by training in a temporary folder, whose weights are thrown away.  The number
is stored in the run's options, as if it had been given, and a resume never measures again.  A clock
decides only where a run would take far longer than its time: it ends where it is, with a policy, an
evaluation and its env_steps as the number.
"""

import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from quintet.bounds import MOST_STEPS
from quintet.config.resolve import Loaded, batch_steps, resolved, size_faults
from quintet.envs.env_source import can_be_made_again
from quintet.envs.make import make_group_env
from quintet.errors import CheckpointError, ConfigError, QuintetError, TimeIsOver
from quintet.run.callbacks import OnReport
from quintet.run.folder import clear
from quintet.system import manifest, run_record, saved_options
from quintet.system.inside import is_ours, require_free
from quintet.system.printing import note, say

_SHARE, _LEAST_S, _MOST_S = 0.02, 3.0, 30.0  # share of the time, and seconds, of a measurement
_STEPS = 10_000_000  # least steps of a measurement, so that its time ends it
_CHECKPOINT_STEPS = 50_000  # steps between two checkpoints of a measurement
_LARGEST_SHARE = 0.2  # share of the time after which a slow measurement ends
_OF_TRAINING = 0.94  # share of the time left; the rest is for evaluations and checkpoints
_CHECK_SHARE = 0.05  # share of the time after which the speed is looked at again
_FAR_OFF = 1.3  # factor
_LATE = 0.5  # share of the time that must be left to begin a run again
_LAST, _SLACK_S = 1.0, 0.5  # share of the time, and seconds more, at which a run ends where it is
_FULL = 0.9  # share of the time above which the least run is told to be too long
_LAST_EVALUATION = 1.02  # share of the time after which the last evaluation is left out
_EVALUATION_SHARE = 0.1  # share of the time that another evaluation may take
_EXPECTED_SHARE = 0.5  # largest share of the time that is kept for the last evaluation
_MAKING_SHARE = 0.25  # share of the time above which environments are not made to measure a speed
_REPORTS_S = 0.25
_DIGITS = 2
_LOOK_ROWS = 1_000
_EVALUATION_STREAMS = 25  # at most, as in `quintet.evaluation`

TrainOnce = Callable[[Loaded, OnReport, "TimeBudget"], object]
"""Trains with a function that gets the reports, for some time; raises KeyboardInterrupt after a
signal, TimeIsOver if the time is over before the first batch.
"""


def timed(loaded: Loaded, budget: "TimeBudget", train: TrainOnce) -> Loaded:
    """The configuration with the env_steps that fit the time; unchanged for a run that has begun.
    See `measure`.

    Raises CheckpointError if a process trains in its folder, or began to while this one measured.
    """
    if has_begun(loaded):
        budget.checks = budget.bounded = False
        idle = no_effect(loaded, budget.minutes)
        budget.notes += [] if idle is None else [idle]
        return loaded
    if loaded.config.report.progress:
        say(f"minutes={budget.minutes:g}: measuring the speed of training")
    assert loaded.config.run_dir is not None
    place = Place.of(loaded.config.run_dir)
    found = measure(loaded, budget, train)
    place.require_same()
    # Older files can't be told from what the run makes, and are kept.
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
        require_free(folder)
        try:
            names = os.listdir(folder)
        except OSError:  # the run itself says so
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
        self._seconds, self.most_s = seconds, most_s
        self._first: tuple[float, float] | None = None

    def __call__(self, report: dict[str, float]) -> bool:
        steps, now = report["env_steps"], report["wall_s"]
        updated = any(x > 0 for name, x in report.items() if name.split("/")[-1] == "updates")
        if self._first is None and updated:
            self._first = self.start_steps, self.start_s = steps, now
        elif self._first is not None and now > self._first[1]:
            self.speed = (steps - self._first[0]) / (now - self._first[1])
            self.done = now - self._first[1] >= self._seconds
        if now >= self.most_s:
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
    bounded: whether the run ends where it is when the time is over, once it has learned from
        `least_batches`.
    making_s: seconds in which the environments of training are made.
    evaluation_s: seconds of an evaluation, as far as known.
    rows, batches: number of rows that were stepped here, and of batches that were learned from.
    """

    minutes: float
    begin: float = field(default_factory=time.monotonic)
    notes: list[str] = field(default_factory=list)
    said: str = ""
    checks: bool = True
    speed: float = 0.0
    start_s: float = 0.0
    start_steps: float = 0.0
    bounded: bool = True
    least_batches: int = 1
    making_s: float = 0.0
    evaluation_s: float = 0.0
    rows: int = 0
    batches: int = 0
    _began: float = 0.0
    _batch_at: float = 0.0
    _evaluating_at: float = 0.0
    _first: tuple[int, float] | None = None

    def run_begins(self) -> None:
        """Called when the run itself begins."""
        self._began = time.monotonic()

    def source_opened(self) -> None:
        """Called when the environments of training are made."""
        self.making_s = time.monotonic() - self._began

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self.begin

    def row(self, _: int = 0) -> None:
        """Called before every row; raises TimeIsOver."""
        self.rows += 1
        self._batch_at = self._batch_at or time.monotonic()
        if self._over(0.0):
            raise TimeIsOver("the time is over")

    def batch(self) -> bool:
        """Called after every batch; whether the next one would end too late."""
        self.batches += 1
        before, self._batch_at = self._batch_at, time.monotonic()
        return self._over(self._batch_at - before if before else 0.0)

    def _over(self, ahead_s: float) -> bool:
        kept_s = min(self.evaluation_s, _EXPECTED_SHARE * self.total_s)
        over = self.passed_s + ahead_s + kept_s > _LAST * self.total_s + _SLACK_S
        return over and self.bounded and self.batches >= self.least_batches

    def evaluation_begins(self) -> None:
        self._evaluating_at = time.monotonic()

    def evaluation_ends(self) -> None:
        """The next one may take as long, or longer if this one was not played to its end."""
        self.evaluation_s = max(self.evaluation_s, time.monotonic() - self._evaluating_at)
        self._batch_at = time.monotonic()

    def evaluation_late(self, is_last: bool) -> bool:
        """Whether an evaluation takes too long, as it may where episodes are long."""
        took_s = time.monotonic() - self._evaluating_at
        late = took_s > _EVALUATION_SHARE * self.total_s + _SLACK_S
        if is_last:
            late = late and self.passed_s > _LAST_EVALUATION * self.total_s
        return late and self.bounded

    @property
    def total_s(self) -> float:
        return 60.0 * self.minutes

    def steps_left(self) -> float:
        """The env_steps that fit into the time that is left."""
        left_s = self.total_s - self.passed_s - self.start_s
        # A run that has begun has made them.
        left_s -= 0.0 if self._began else self.making_s
        left_s -= min(self.evaluation_s, _EXPECTED_SHARE * self.total_s)
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
        left_s = self.total_s - self.passed_s
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
    if (told := _slow_making(loaded, budget)) is not None:
        budget.notes.append(told)
        return with_total(loaded, max(rounded(budget.steps_left()), _least(loaded)), budget.minutes)
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
    _tell_too_short(loaded, budget, total)
    budget.notes.append(
        f"minutes={budget.minutes:g}: at {budget.speed:,.0f} env_steps/s the run has {total:,} "
        "env_steps"
    )
    return timed


def _compiling(loaded: Loaded, how: str) -> Loaded:
    return replace(loaded, config=loaded.config.changed("runtime", {"compile": how}))


def _slow_making(loaded: Loaded, budget: TimeBudget) -> str | None:
    """A note if making the environments takes so much of the time that they are not made only to
    measure a speed.
    """
    if not look(loaded, budget) or budget.making_s <= _MAKING_SHARE * budget.total_s:
        return None
    _tell_too_short(loaded, budget, 0)
    count = loaded.config.env.num_streams
    return (
        f"minutes={budget.minutes:g}: the {count} environments take about {budget.making_s:.2g} s "
        "to be made, so the speed is not measured, and the run ends when the time is over"
    )


def look(loaded: Loaded, budget: TimeBudget) -> bool:
    """Makes one of the environments, which plays for a moment, and stores in `budget` what the
    run's environments take by it; False if a single one can't be made.
    """
    from quintet.uniform import random_rows

    env, config = loaded.env, loaded.config
    if not env.can_be_spread:
        return False
    count, runtime = config.env.num_streams, config.runtime
    together = 1 if runtime.kind == "serial" else max(1, runtime.num_workers or 1)
    begin = time.monotonic()
    with redirect_stderr(io.StringIO()), closing(make_group_env(env, env.streams_of(1))) as made:
        make_s = (time.monotonic() - begin) / made.num_streams
        played_s, rows, first_s = 1e-6, 0, 0.0
        for row in random_rows(made, _LOOK_ROWS, seed=0):
            rows = row.number - 1
            if rows < 1:  # the reset, and the first step, in which more may be made
                first_s += row.seconds / made.num_streams
            elif played_s < min(1.0, _SHARE * budget.total_s):
                played_s += row.seconds
            else:
                break
        budget.speed = max(rows, 1) * made.num_streams * together / played_s
    budget.start_s = first_s * count / together + _least(loaded) / budget.speed
    budget.making_s = make_s * count / together
    # Evaluations have environments of their own.
    budget.evaluation_s = (make_s + first_s) * min(config.eval.episodes, _EVALUATION_STREAMS)
    return True


def _least(loaded: Loaded) -> int:
    """Env_steps of a batch of each policy."""
    return batch_steps(loaded.config) * loaded.config.population.size


def _tell_too_short(loaded: Loaded, budget: TimeBudget, total: int) -> None:
    """Tells at once that the least run takes longer than the time."""
    least_s = budget.passed_s + least_run_s(loaded, budget)
    if total <= _least(loaded) and least_s > _FULL * budget.total_s:
        _tell(budget, least_s)


def least_run_s(loaded: Loaded, budget: TimeBudget) -> float:
    """Seconds until a run has made its environments, learned from one batch, and evaluated."""
    learned_s = max(budget.start_s, _least(loaded) / budget.speed)
    return budget.making_s + learned_s + budget.evaluation_s


def _tell(budget: TimeBudget, least_s: float) -> None:
    note(
        f"warning: minutes={budget.minutes:g} is too short for this run, which takes about "
        f"{least_s / 60:.2g} minutes to make its environments ({budget.making_s:.2g} s), to learn "
        f"from one batch and to evaluate ({budget.evaluation_s:.2g} s or more), and ends "
        "then: give it more, or fewer streams, shorter unrolls or --eval.episodes 0"
    )


def _fitting(loaded: Loaded, budget: TimeBudget) -> Loaded:
    """The configuration with the env_steps that fit, at least one batch of each policy."""
    config = loaded.config
    policies = config.population.size
    total = max(rounded(budget.steps_left()), _least(loaded))
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
    # The measurement's replay goes to the disk of the run, which needs the room anyway.
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
        limit = TimeBudget((probe.most_s + _SLACK_S) / 60.0, checks=False, least_batches=0)
        # The run itself will say it again.
        try:
            with redirect_stderr(io.StringIO()):
                train(trial, probe, limit)
        except TimeIsOver:
            pass
    if not probe.speed:  # the speed of one environment is not far off
        probe.speed, probe.start_s, probe.start_steps = budget.speed, budget.start_s, 0.0
    budget.speed, budget.making_s = max(probe.speed, 1e-6), limit.making_s
    budget.start_s, budget.start_steps = probe.start_s, probe.start_steps


def _existing(folder: Path) -> Path | None:
    """The nearest folder around `folder` that exists; None: no file can be made there."""
    near = next(each for each in folder.absolute().parents if each.is_dir())
    return near if os.access(near, os.W_OK) else None
