"""The course of a sweep: trials in batches, then the best ones again on fresh seeds."""

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any, Literal, final

from quintet.checkpoints import run_record, saved_options
from quintet.checkpoints.lock import await_left, run_lock
from quintet.errors import CheckpointError, ConfigError, FileFault
from quintet.jobs.job import Job, Outcome
from quintet.observe.metrics import describe, signed
from quintet.options.layers import Layer
from quintet.options.placing import Placing, placing_of
from quintet.options.population import number_fault
from quintet.options.resolve import Loaded, resolved
from quintet.options.saved import held_in, load_config, name_in_folder
from quintet.search import placement, space
from quintet.search import sweep_journal as journal
from quintet.search.engine import Engine, Stopped, fault_of, is_blameless, was_killed
from quintet.search.journal import Damaged
from quintet.search.pruning import Watch, last_score
from quintet.search.space import Dimension
from quintet.search.study import OF_OPTUNA, STEPS, Study
from quintet.search.sweep_asked import Asked
from quintet.search.sweep_journal import Trial
from quintet.system import files
from quintet.system.files import shown
from quintet.system.printing import QuietStream

TRIALS, FRESH = "trials", "fresh"

_MOST_WITHOUT = 100  # trials of a lost journal that failed before they had a folder
_TRIES = 3  # starts of a run whose process is killed


@final
@dataclass
class Found:
    """The result of a sweep; fresh: scores of the best trials on fresh seeds, by trial number.

    options: of all trials, by dotted name, without the searched ones.
    unknown: why there are no importances.
    """

    folder: Path
    space: Sequence[Dimension]
    metric: str
    trials: list[Trial]
    options: Mapping[str, Any]
    importances: Mapping[str, float] = field(default_factory=dict)
    unknown: str = ""
    fresh: dict[int, list[float]] = field(default_factory=dict)
    status: Literal["finished", "stopped"] = "stopped"

    def values(self, trial: Trial) -> dict[str, Any]:
        """The searched options of a trial."""
        return {one.name: one.value(trial.drawn[one.key]) for one in self.space}

    @property
    def ranked(self) -> list[Trial]:
        """Trials that trained to their end, the best first."""
        complete = [each for each in self.trials if each.state == "complete"]
        return sorted(complete, key=lambda x: (-(x.score or 0.0), x.number))

    @property
    def winner(self) -> Trial | None:
        """The trial with the best mean on fresh seeds, among those of which most seeds trained to
        their end; else the best trial.
        """
        again = [each for each in self.ranked if self.fresh.get(each.number)]
        rank = {k: (len(x), sum(x) / len(x)) for k, x in self.fresh.items() if x}
        return max(again, key=lambda x: rank[x.number]) if again else next(iter(self.ranked), None)


def sweep(asked: Asked) -> Found:
    """Runs or continues a sweep in its folder.

    Raises:
        ConfigError: any fault of the options, or the folder holds something else.
        CheckpointError: another process has the folder, or it was moved or removed.
    """
    layers, placing = placing_of(asked.layers)
    asked = replace(asked, layers=layers)
    base = load_config(
        asked.algo, asked.layers[:-1], asked.layers[-1], trust=asked.trust, beside=True
    )
    metric = signed(asked.metric or "")[0]
    if asked.metric is not None and describe(metric) is None:
        raise ConfigError(
            f"--metric must be a metric that runs report, got {asked.metric}: docs/metrics.md "
            "lists them"
        )
    if metric.startswith("eval/") and not base.config.eval.episodes:
        raise ConfigError(
            f"--metric must be a metric that these runs report, got {asked.metric} with "
            "eval.episodes=0: raise eval.episodes, or give --metric episode/return_mean"
        )
    if fault := number_fault("--metric", metric, base.config.env):
        raise ConfigError(fault)
    if not {"jsonl", "csv"} & {*base.config.report.sinks}:
        raise ConfigError(
            "report.sinks of a sweep must have jsonl or csv, from which scores are read, got "
            f"{', '.join(base.config.report.sinks) or 'none'}: add one"
        )
    searched = (
        space.parse(asked.search, base.config, asked.values)
        if asked.search
        else [one for one in space.usual(base.config) if one.name not in asked.values]
    )
    if not searched:
        raise ConfigError("--search needs an option to search: give one")
    return _Search(asked, base, searched, placing).run()


def folder_of(asked: Asked) -> Path:
    """The given folder, else ``runs/sweep-ALGO-ENV``."""
    run_dir = asked.values.get("run_dir")
    if run_dir is not None:
        return files.given_path(run_dir)
    name = name_in_folder(asked.values.get("env.id"))
    return Path("runs").absolute() / f"sweep-{asked.algo}-{name}"


@final
class _Search:
    """One start of a sweep."""

    def __init__(
        self,
        asked: Asked,
        base: Loaded,
        searched: Sequence[Dimension],
        placing: Placing | None,
    ) -> None:
        """placing: the cluster on whose nodes the trials run; None: they run here."""
        self.asked, self.base, self.space, self.placing = asked, base, searched, placing
        self.folder = folder_of(asked)
        config = base.config
        self.metric = asked.metric or (
            "eval/return_mean" if config.eval.episodes else "episode/return_mean"
        )
        self.total = config.total_env_steps
        self.options = {k: x for k, x in asked.values.items() if k not in ("run_dir", "seed")}
        self.interval = asked.values.get("eval.interval", max(1, self.total // STEPS))
        self.say = QuietStream(sys.stdout).line
        self.journal_lost = False

    def run(self) -> Found:
        asked = self.asked
        names = held_in(self.folder)
        if names and not any(name.startswith((journal.FILE, OF_OPTUNA)) for name in names):
            raise ConfigError(
                f"run_dir must be a new or empty folder, or one with a sweep, got {self.folder} "
                f"with {', '.join(sorted(names)[:3])}: give another --run-dir"
            )
        with run_lock(self.folder) as own:
            self.engine = Engine(own, asked.jobs, self.say, self.say)
            self.study = self._opened()
            self.study.require_same(
                {
                    "algo": asked.algo,
                    **self.options,
                    "total_env_steps": self.total,
                    "seed": self.base.config.seed,
                    "search": [one._asdict() for one in self.space],
                    "metric": self.metric,
                    "sampler": asked.sampler,
                    "pruner": asked.pruner,
                    "jobs": asked.jobs,
                }
            )
            if asked.jobs > 1 or self.placing is not None:
                self.values = resolved(self.base)[0]
            if self.journal_lost:
                self._rebuild()
            with self._cluster():
                trained = False
                with suppress(Stopped):
                    self._trials()
                    trained = True
                self.study.write_for_optuna()
                found = Found(
                    self.folder, self.space, self.metric, self.study.trials(), self.options
                )
                found.importances, found.unknown = self.study.importances()
                if trained:
                    with suppress(Stopped):
                        self._train_best_again(found)
                        found.status = "finished"
            return found

    def _opened(self) -> Study:
        """The study of the folder; one whose journal is damaged or lost begins anew."""
        stored, of_optuna = None, self.folder / OF_OPTUNA
        try:
            stored = journal.read(self.folder, self.space)
            if stored is None and of_optuna.exists():  # an older version read this file
                files.set_aside(of_optuna, "old")
        except Damaged as fault:
            place = files.set_aside(self.folder / journal.FILE)
            self.say(f"{fault}; kept as {place.name}")
        self.journal_lost = stored is None and (self.folder / TRIALS).is_dir()
        return Study(self.folder, self.space, stored)

    def _rebuild(self) -> None:
        """Stores the trials that the folder holds, as they ended."""
        asked, study, place = self.asked, self.study, self.folder / TRIALS
        numbers = [int(name) for name in held_in(place) if re.fullmatch(r"\d{4,6}", name)]
        most = len(numbers) + _MOST_WITHOUT
        last = max((number for number in numbers if number <= most), default=0)
        for number in range(last):
            run_dir = place / f"{number + 1:04}"
            drawn = self._drawn_in(run_dir)
            if drawn is None:
                study.begin(asked.sampler, self.base.config.seed, asked.jobs, self._usual())
                continue
            study.add(drawn)
            try:
                self._loaded(study.trials()[number], run_dir)
            except ConfigError as fault:
                raise FileFault(
                    f"{self.folder} must hold trials of this sweep, got {TRIALS}/{run_dir.name}: "
                    f"{fault}"
                ) from fault
            others = study.facts_for_pruning(number, asked.jobs)
            watch = Watch(self.metric, self.total, asked.pruner, others)
            pruned, record = watch.reread(run_dir), run_record.read(run_dir)
            if pruned:
                study.end(number, "pruned", watch.answer("pruned"))
            elif record is not None and record.state == "finished" and watch.score is not None:
                study.end(number, "complete", watch.answer("finished"))
            study.spend(last_score(run_dir, "wall_s") or 0.0)
        known = [each.state != "running" for each in study.trials()]
        self.say(f"{sum(known)} of {last} trials are taken from {shown(place)}")

    def _drawn_in(self, run_dir: Path) -> dict[str, Any] | None:
        """The values drawn for the trial in a folder; None if its checkpoints do not tell."""
        try:
            saved = saved_options.read(run_dir)
        except CheckpointError:
            saved = None
        values = {} if saved is None else saved.values
        drawn = {one.key: one.drawn(values[one.name]) for one in self.space if one.name in values}
        return drawn if journal.drawn_of(drawn, self.space) else None

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        """The nodes of the cluster, if there is one."""
        if self.placing is None:
            yield
            return
        config = self.base.config.model_copy(update={"run_dir": self.folder / TRIALS})
        runs = [replace(self.base, config=config)]
        with placement.on_nodes(runs, self.placing, self.values, self.say) as nodes:
            self.engine.place = nodes
            yield

    # Trials

    def _trials(self) -> None:
        """Trials in batches, until there are enough or the time is over."""
        asked, study = self.asked, self.study
        for first in count(0, asked.jobs):
            known = study.trials()
            if first >= len(known) and self._late():
                return
            end = (
                first + asked.jobs
                if asked.trials is None
                else min(first + asked.jobs, asked.trials)
            )
            if first >= end:
                return
            for _ in range(len(known), end):
                study.begin(asked.sampler, self.base.config.seed, asked.jobs, self._usual())
            left = [each for each in study.trials()[first:end] if each.state == "running"]
            begin = time.monotonic()
            try:
                for attempt in range(1, _TRIES + 1):
                    left = self._batch(left, last=attempt == _TRIES)
                    if not left:
                        break
            except Stopped:
                study.spend(time.monotonic() - begin)
                raise
            study.spend(time.monotonic() - begin)

    def _late(self) -> bool:
        """Whether the minutes have no room for further trials: these have at least half of them,
        and more where the best again need less.
        """
        asked, batch_s = self.asked, self.study.longest_s
        if asked.minutes is None:
            return False
        again_s = batch_s * ceil(asked.best * asked.seeds_of_best / asked.jobs)
        all_s = 60.0 * asked.minutes
        return self.study.spent_s + batch_s + min(again_s, all_s / 2) > all_s

    def _usual(self) -> dict[str, Any] | None:
        """The draw for the values of a run by itself; None if it is not in the space."""
        values = self.base.config.flat()
        drawn = {one.key: one.drawn(values[one.name]) for one in self.space}
        return None if None in drawn.values() else drawn

    def _batch(self, trials: Sequence[Trial], *, last: bool) -> list[Trial]:
        """Runs trials at the same time and stores how they ended; returns those whose processes
        were killed, unless it is their last try.
        """
        started: list[Trial] = []
        jobs: list[Job] = []
        for each in trials:
            self.say(f"[{name_of(each)}] {values_text(self.space, each.drawn)}")
            try:
                loaded = self._loaded(each, self.folder / TRIALS / name_of(each))
            except ConfigError as error:
                self._failed(each, str(error))
                continue
            watch = {
                "metric": self.metric,
                "total": self.total,
                "pruner": self.asked.pruner,
                "others": self.study.facts_for_pruning(each.number, self.asked.jobs),
            }
            jobs.append(self._job(name_of(each), loaded, {"watch": watch}))
            started.append(each)
        with self.engine.run(jobs) as ended:
            for each, how in zip(started, ended, strict=True):
                self._hear(each, how, last=last)
        killed = [each for each, how in zip(started, ended, strict=True) if was_killed(how)]
        return [] if last else killed

    def _hear(self, trial: Trial, how: Outcome, *, last: bool) -> None:
        """Stores how a trial ended, unless it is to go on."""
        answer, name = how.answer or {}, name_of(trial)
        if answer.get("status") == "pruned":
            self.study.end(trial.number, "pruned", answer)
        elif answer.get("status") == "finished" and answer.get("score") is not None:
            self.study.end(trial.number, "complete", answer)
            self.say(f"[{name}] {self.metric} {answer['score']:,.4g}")
        elif answer.get("status") == "finished":
            self._failed(trial, f"it reported no {self.metric}: give another --metric")
        elif was_killed(how) and last:
            self._failed(trial, f"{fault_of(how)} {_TRIES} times")
        elif fault_of(how) and not (was_killed(how) or is_blameless(how)):
            self._failed(trial, fault_of(how))

    def _failed(self, trial: Trial, error: str) -> None:
        self.say(f"[{name_of(trial)}] failed: {error}")
        self.study.end(trial.number, "fail", {"error": error})

    def _job(self, name: str, loaded: Loaded, more: Mapping[str, Any]) -> Job:
        return placement.job(name, "quintet.search.pruning:train_trial", loaded, more)

    def _loaded(self, trial: Trial, run_dir: Path, **more: Any) -> Loaded:
        """The configuration of a run with the values of a trial; raises ConfigError."""
        await_left(run_dir)  # an earlier process may still change it
        found = {one.name: one.value(trial.drawn[one.key]) for one in self.space}
        found |= {"eval.interval": self.interval, "run_dir": str(run_dir), **more}
        # An exact resume keeps results; async runs have none, and a finished run needs none.
        kind = found.get("runtime.kind", self.base.config.runtime.kind)
        found["resume"] = "latest" if kind == "async" or _is_finished(run_dir) else "exact"
        loaded = load_config(
            self.asked.algo, self.asked.layers, Layer("sweep", found), trust=self.asked.trust
        )
        if self.placing is not None:
            return placement.as_here(loaded, self.values)
        return (
            loaded
            if self.asked.jobs == 1
            else placement.sharing(loaded, self.values, self.asked.jobs)
        )

    # The best again

    def _train_best_again(self, found: Found) -> None:
        """Trains the best trials on seeds that no trial had."""
        asked, first = self.asked, self.base.config.seed + 1
        fresh = range(first, first + asked.seeds_of_best)
        best = found.ranked[: asked.best] if fresh else []
        if asked.minutes is not None and best:
            left_s = 60.0 * asked.minutes - self.study.spent_s
            fitting = int(left_s / max(1.0, self.study.longest_s)) * asked.jobs // len(fresh)
            best = best[:fitting]
        most = min(asked.best, len(found.ranked))
        if fresh and len(best) < most:
            assert asked.minutes is not None
            part = f"only the best {len(best)}" if best else "none of the best trials"
            self.say(f"minutes={asked.minutes:g}: {part} can be trained again in time, not {most}")
        fresh_runs = self.folder / FRESH
        runs = {
            fresh_runs / name_of(each) / f"s{seed}": (each, seed) for each in best for seed in fresh
        }
        left = [run_dir for run_dir in runs if not _is_finished(run_dir)]
        if left:
            self.say(
                f"trains the best {len(best)} of {len(found.trials)} trials again, on seeds "
                + ", ".join(map(str, fresh))
            )
        for attempt in range(1, _TRIES + 1):
            left = self._train_fresh({x: runs[x] for x in left}, last=attempt == _TRIES)
            if not left:
                break
        for run_dir, (each, _) in runs.items():
            score = last_score(run_dir, self.metric)
            if _is_finished(run_dir) and score is not None:
                found.fresh.setdefault(each.number, []).append(score)

    def _train_fresh(self, runs: Mapping[Path, tuple[Trial, int]], *, last: bool) -> list[Path]:
        """Trains trials on other seeds at the same time; returns the runs whose processes were
        killed, unless it is their last try.
        """
        jobs = [
            self._job(f"{name_of(each)}-s{seed}", self._loaded(each, run_dir, seed=seed), {})
            for run_dir, (each, seed) in runs.items()
        ]
        killed: list[Path] = []
        with self.engine.run(jobs) as ended:
            for run_dir, job, how in zip(runs, jobs, ended, strict=True):
                if was_killed(how) and not last:
                    killed.append(run_dir)
                elif (fault := fault_of(how)) and not is_blameless(how):
                    self.say(f"[{job.name}] failed: {fault}")
        return killed


def _is_finished(run_dir: Path) -> bool:
    record = run_record.read(run_dir)
    return record is not None and record.state == "finished"


def name_of(trial: Trial) -> str:
    """Name of a trial's folder."""
    return f"{trial.number + 1:04}"


def values_text(searched: Sequence[Dimension], drawn: Mapping[str, Any]) -> str:
    """The values of a trial in words."""
    return ", ".join(f"{one.name}={_shown(one.value(drawn[one.key]))}" for one in searched)


def _shown(value: Any) -> str:
    """A value of an option, with few digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
