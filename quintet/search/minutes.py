"""Times in minutes, from which numbers of env_steps follow before runs begin.

The speed is measured by training in a temporary folder, whose weights are thrown away.  The number
is stored in the run's options, as if it had been given, and a resume never measures again.
"""

import gc
import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, redirect_stderr, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from quintet.checkpoints import manifest, run_record, saved_options
from quintet.checkpoints.links import is_ours
from quintet.checkpoints.lock import require_free
from quintet.envs.env_source import can_be_made_again
from quintet.envs.make import make_group_env
from quintet.errors import BudgetChanged, CheckpointError, ConfigError, TimeIsOver
from quintet.observe.pace import Meter
from quintet.options.resolve import Loaded, batch_steps, resolved, size_faults
from quintet.run import launch
from quintet.run.callbacks import Callbacks, OnReport
from quintet.run.folder import clear
from quintet.run.launch import Result, memory_told
from quintet.run.time_budget import (
    LARGEST_SHARE,
    LEAST_S,
    SLACK_S,
    TimeBudget,
    rounded,
)
from quintet.system.printing import note, say
from quintet.system.user_code import no_exit

_SHARE, _MOST_S = 0.02, 30.0  # share of the time, and seconds, of a measurement
_STEPS = 10_000_000  # least steps of a measurement, so that its time ends it
_CHECKPOINT_STEPS = 50_000  # steps between two checkpoints of a measurement
_FULL = 0.9  # share of the time above which the least run is told to be too long
_MAKING_SHARE = 0.25  # share of the time above which environments are not made to measure a speed
_REPORTS_S = 0.25
_LOOK_ROWS = 1_000
_EVALUATION_STREAMS = 25  # at most, as in `quintet.policies.evaluation`


@no_exit()
@memory_told()
def train(
    loaded: Loaded,
    minutes: float,
    on_report: OnReport | None = None,
    callbacks: Callbacks | None = None,
    *,
    measured: bool = False,
) -> Result:
    """Trains for a time, see `quintet.run.launch.run`.

    minutes: time of a new run, from which its number of env_steps follows.
    measured: whether the configuration has this number already.
    """
    here = Path.cwd()  # environments may change it
    budget = TimeBudget(minutes, checks=not measured)
    if not measured:
        loaded = timed(loaded, budget)
    try:
        return launch.run(loaded, on_report, callbacks, budget, here)
    except BudgetChanged as anew:
        (total,) = anew.args
    gc.collect()  # frees the shared memory that the traceback held
    return launch.run(begun_anew(loaded, total, minutes), on_report, callbacks, budget, here)


def train_trial(loaded: Loaded, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Trains a run of a seed group, which ends with the payload's `minutes` if it has some; see
    `quintet.search.trial`.
    """
    minutes: float | None = payload.get("minutes")
    result = launch.run(loaded) if minutes is None else train(loaded, minutes, measured=True)
    return {"status": result.status, "metrics": result.metrics}


@no_exit()
@memory_told()
def measure_trial(loaded: Loaded, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Finds the env_steps of a new run that fit the `minutes` of the payload."""
    total = timed(loaded, TimeBudget(payload["minutes"])).config.total_env_steps
    return {"status": "measured", "total": total}


def timed(loaded: Loaded, budget: TimeBudget) -> Loaded:
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
    folder = loaded.config.run_dir
    assert folder is not None
    runs, ours = _contents(folder)
    found = measure(loaded, budget)
    if _contents(folder)[0] != runs:
        raise CheckpointError(
            f"another process began a run in {folder} while this one measured its speed: the same "
            "command resumes that run, another run_dir begins a new one"
        )
    # Older files can't be told from what the run makes, and are kept.
    budget.checks = loaded.overwrite or not ours
    return found


def _contents(folder: Path) -> tuple[list[str], bool]:
    """The files of a run in a folder, and whether it holds anything that a run may make; raises
    CheckpointError if a process trains in it.
    """
    require_free(folder)
    names: list[str] = []
    with suppress(OSError):  # the run itself says so
        names = os.listdir(folder)
    config = [saved_options.FILE] * (saved_options.FILE in names)
    ours = any(is_ours(name) and name != ".lock" for name in names)
    return [*config, *manifest.numbered(folder / "checkpoints")], ours


def timed_group(
    group: Sequence[Loaded],
    minutes: float,
    measure: Callable[[], Sequence[int]],
    say: Callable[[str], None],
) -> list[Loaded]:
    """Gives all runs of a seed group the same number of env_steps, taken from a run that has begun,
    else one that fits the time of each run.

    measure: measures several runs at the same time; returns the env_steps that fit each.
    """
    started = [each for each in group if has_begun(each)]
    known = {each.config.total_env_steps for each in started}
    other = next(filter(None, (no_effect(each, minutes) for each in started)), None)
    if other is not None:
        say(other)
    if len(started) == len(group):
        return list(group)
    if not known:
        known = {*measure()}
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
    return replace(with_total(loaded, total, minutes), overwrite=False)


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
    """Receives the reports of a measurement, and ends it some seconds after the first update.

    speed: env_steps per second after the first update; start_s, start_steps: seconds and env_steps
        up to then.
    """

    def __init__(self, seconds: float, most_s: float):
        self.speed = self.start_s = self.start_steps = 0.0
        self.done = False
        self._seconds, self.most_s = seconds, most_s
        self._meter = Meter()

    def __call__(self, report: dict[str, float]) -> bool:
        """Takes in a report; returns whether the measurement is over (also after `most_s` s)."""
        steps, now = report["env_steps"], report["wall_s"]
        if self._meter.first is not None or any(
            x > 0 for name, x in report.items() if name.split("/")[-1] == "updates"
        ):
            self._meter.advance(steps, now)
            assert self._meter.first is not None
            self.start_steps, self.start_s = self._meter.first
            self.speed = self._meter.steps_per_s
            self.done = self.speed > 0 and self._meter.passed_s >= self._seconds
        if now >= self.most_s:
            self.speed = self.speed or steps / max(now, 1e-9)
            self.done = True
        return self.done


def measure(loaded: Loaded, budget: TimeBudget) -> Loaded:
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
    if (why := _slow_making(loaded, budget)) is not None:
        budget.notes.append(why)
        return with_total(loaded, max(rounded(budget.steps_left()), _least(loaded)), budget.minutes)
    automatic = loaded.config.runtime.compile == "auto"
    if automatic and loaded.config.runtime.device != "cpu":
        automatic = resolved(loaded)[0]["runtime.compile"] != "graph"
    # Whether compiling pays off depends on the number of env_steps.
    _measured(_compiling(loaded, "off") if automatic else loaded, budget)
    timed = _fitting(loaded, budget)
    if automatic and resolved(timed)[0]["runtime.compile"] == "on":
        _measured(_compiling(timed, "on"), budget)
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
    """Makes one environment, plays it for a moment, and stores in `budget` the speed and the start
    that follow for all of them; False if a single one can't be made.
    """
    from quintet.envs.random_play import random_rows

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
        f"warning: minutes={budget.minutes:g} is too short: in about {least_s / 60:.2g} minutes "
        f"the run makes its environments ({budget.making_s:.2g} s), learns from one batch, "
        f"evaluates ({budget.evaluation_s:.2g} s or more), and ends; give it more minutes, fewer "
        "streams, shorter unrolls or --eval.episodes 0"
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


def _measured(loaded: Loaded, budget: TimeBudget) -> None:
    """Trains for some seconds in a temporary folder, and stores the speed in `budget`."""
    seconds = min(max(_SHARE * budget.total_s, LEAST_S), _MOST_S, 0.05 * budget.total_s + 0.1)
    probe = _Probe(seconds, LARGEST_SHARE * budget.total_s + 0.1)
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
        limit = TimeBudget((probe.most_s + SLACK_S) / 60.0, checks=False, least_batches=0)
        # The run itself will say it again.
        with redirect_stderr(io.StringIO()), suppress(TimeIsOver):
            launch.run(trial, probe, budget=limit, measures=True)
    if not probe.speed:  # the speed of one environment is not far off
        probe.speed, probe.start_s, probe.start_steps = budget.speed, budget.start_s, 0.0
    budget.speed, budget.making_s = max(probe.speed, 1e-6), limit.making_s
    budget.start_s, budget.start_steps = probe.start_s, probe.start_steps


def _existing(folder: Path) -> Path | None:
    """The nearest folder around `folder` that exists; None: no file can be made there."""
    near = next(each for each in folder.absolute().parents if each.is_dir())
    return near if os.access(near, os.W_OK) else None
