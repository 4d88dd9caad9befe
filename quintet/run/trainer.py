"""One run and its folder: resume, checkpoints, reports, evaluation, and how it ends."""

import dataclasses
import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch

from quintet import checkpoint
from quintet.checkpoint import Checkpoint
from quintet.config.run import RunConfig
from quintet.config.saved import require_same
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import EnvDescription
from quintet.errors import CheckpointError, ConfigError
from quintet.observe.log import Voice, silent
from quintet.observe.machine import MachineUse
from quintet.observe.metrics import EpisodeStats
from quintet.observe.progress import Begin, first_stage, make_progress, stage_of
from quintet.observe.report_files import MARK, mark_in
from quintet.observe.sinks import Reporter, mend_reports, open_sinks
from quintet.observe.timing import Phase, PhaseTimer
from quintet.policy import POLICY, Policy, describe, misfit
from quintet.protocols import Actor, Learner
from quintet.run.evaluations import Evaluations
from quintet.run.folder import BEST, RunFolder
from quintet.run.long_episodes import LongEpisodes
from quintet.run.replay import RunReplay
from quintet.run.setting import setting_of
from quintet.run.warm_start import donated
from quintet.runtime import loop
from quintet.runtime.batch import Episode
from quintet.runtime.processes.watch import Watch
from quintet.system import provenance, saved_options, signature, trust
from quintet.types import LearnerState, Publication, Rollout, Spaces

OnReport = Callable[[dict[str, float]], object]
"""Gets every report; True asks for a stop, anything else for nothing."""

_CHECKPOINT_FRAC = 0.01
"""Of a run's time; more is not spent on checkpoints that may be left out."""


@final
class Trainer:
    """Keeps the folder of one run while the loop trains."""

    def __init__(
        self,
        config: RunConfig,
        learner: Learner,
        spaces: Spaces,
        env: EnvDescription,
        on_report: OnReport | None,
        resolved: ResolvedEnv,
    ):
        assert config.run_dir is not None
        self.config, self.learner, self.env = config, learner, env
        self.on_report = on_report
        self.run_dir: Path = config.run_dir
        # All that the configuration names was given, or vouched for, by who began this process.
        self.folder = RunFolder(self.run_dir, signed=not trust.all_harmless(config.flat()))
        self.checkpoints = self.folder.checkpoints
        self.options = {k: v for k, v in config.flat().items() if k != "run_dir"}
        self.system = provenance.system(env.backend, config.runtime.device)
        self.description = describe(config.algo, config.learner, config.model, config.env, spaces)
        self.counters = loop.Counters()
        self.timer = PhaseTimer(self._phase_begins)
        self.machine = MachineUse()
        self.episodes = EpisodeStats()
        self.evaluations = Evaluations(config, resolved)
        self.last_report: dict[str, float] = {}
        self.stop_requested = False
        self.reporter = Reporter(())
        self.voice = silent()
        self.setting = setting_of(
            config, learner.plan, spaces, env, resolved, on_report is not None
        )
        batch = learner.plan.unroll_steps * learner.plan.columns_per_batch
        self.iterations = -(-config.total_env_steps // batch)
        self.interval = config.checkpoint.interval(self.iterations)
        # Whether the run lies on the path of the one that was never interrupted; runs of which no
        # two are the same have no such path, and can't leave it.
        self.exact = True
        self._wall_before_s = 0.0
        self._checkpoint_s = 0.0
        self.replay: RunReplay | None = None
        self._notes: list[str] = []
        self._warnings: list[str] = []
        self._raised: BaseException | None = None
        self.watch: Watch | None = None

    def beware(self, warnings: Iterable[str]) -> None:
        """What is to be said of the folder once there is a log; before `open`."""
        self._warnings += warnings

    def warm_start(self) -> None:
        """Gives the learner what `init_from` donates, unless the run has begun already.

        Raises:
            ConfigError: it is no policy, or does not fit.
        """
        if self.config.init_from is None or checkpoint.any_of_run(self.checkpoints):
            return
        publication, note = donated(
            self.config.init_from,
            self.config.init_from_keys,
            self.learner.publication(),
            self.description,
        )
        self.learner.warm_start(publication)
        self._notes.append(note)

    def make_replay(self, actor: Actor, spaces: Spaces) -> None:
        """The memory of old data, where the learner's plan asks for one; before `open`.

        Raises:
            ConfigError: it does not fit on the disk.
        """
        plan = self.learner.plan
        if plan.replay is not None:
            self.replay = RunReplay.make(plan, self.config, self.interval, spaces, actor)

    def open(self) -> None:
        """Makes the folder, or goes on from its newest checkpoint.

        Raises:
            CheckpointError: no checkpoint that fits can be read.
            ConfigError: fewer steps are asked for than were trained.
        """
        self.folder.open()
        notes = self._notes
        exact = self.config.resume == "exact"
        found = self.folder.newest(exact, self._warnings.append)
        if found is not None:
            try:
                self._restore(found, notes)
            except KeyError as error:
                raise CheckpointError(
                    f"a run's own checkpoint is required, {found.path} holds none (it lacks "
                    f"{error}); remove it to go on from the one before, or give another --run-dir"
                ) from error
            if exact:
                notes += self.folder.remove_newer(found.path)
        # Off the uninterrupted run's path there is nothing to begin anew for.
        exact = self.exact and self.config.runtime.kind != "async"
        self.max_cut_frac = self.config.checkpoint.max_cut_frac if exact else None
        self.long_episodes = LongEpisodes(
            self.config.total_env_steps,
            self.interval,
            self.max_cut_frac,
            None if self.replay is None else self.replay.reach,
        )
        trained, asked = self.counters.env_steps, self.config.total_env_steps
        if trained > asked:
            raise ConfigError(
                f"total_env_steps of at least the {trained:,} that {self.run_dir} has trained is "
                f"required, got {asked:,}; leave it out or raise it"
            )
        self.finished = trained == asked
        saved = saved_options.read(self.run_dir)
        if not self.finished or saved is None or saved.fault is not None:
            self.folder.write_options(self.options, self._warnings.append)
            if self.folder.signed and (reason := signature.why_no_key()) is not None:
                notes.append(f"the run can't be signed as this user's: {reason}; {trust.UNSIGNED}")
        if self.finished:
            self.folder.check_record(self._warnings.append)
        else:
            self.folder.begin_record(self.system)
        self._open_log()
        for warning in self._warnings:
            self.warn(warning)
        for note in notes:
            self.say(note)
        if self.finished:
            assert found is not None
            reports = mend_reports(self.run_dir, mark_in(found.meta), self.warn)
            self.last_report = (reports or [{}])[-1]
        else:
            self.reporter = open_sinks(
                self.config.report,
                self.run_dir,
                resume_env_steps=self.counters.env_steps if found is not None else None,
                notice=self.say,
                warn=self.warn,
                mark=None if found is None else mark_in(found.meta),
            )
        self._started = time.perf_counter()
        self._reported_at = self._started
        self._reported_steps = self.counters.env_steps
        self._reported_updates = self.learner.updates
        self.evaluations.evaluated_steps = self.counters.env_steps

    def _open_log(self) -> None:
        log = self.folder.open_log()
        make = partial(
            make_progress,
            self.config.total_env_steps,
            f"{self.config.algo} on {self.env.id} ({self.env.backend})",
            folder=str(self.run_dir),
            begin=Begin(self.counters.env_steps, self.evaluations.best),
            setting=self.setting,
        )
        self.voice = Voice(make, sys.stdout if self.config.report.progress else io.StringIO(), log)

    def _restore(self, found: Checkpoint, notes: list[str]) -> None:
        meta = found.meta
        require_same(found.path, meta.get(saved_options.CONFIG, {}), self.options)
        tensors = found.tensors["learner"] | found.tensors[POLICY]
        try:
            self.learner.load(LearnerState(tensors, meta["learner"]))
        except RuntimeError as error:
            raise misfit(self.config.model.encoder, error) from error
        self.counters = loop.Counters.of(meta)
        evaluations = self.evaluations
        evaluations.best, evaluations.best_version = meta["best"], meta.get("best_version")
        ended = self.counters.env_steps >= self.config.total_env_steps
        told, lost = self.folder.mend_best(meta, ended)
        if told is not None:
            self._warnings.append(told)
        if lost and not ended:
            evaluations.best = evaluations.best_version = None
        self._restore_replay(found, notes)
        self._wall_before_s = meta["wall_s"]
        total = meta["total_env_steps"]
        same_total = total == self.config.total_env_steps
        free = self.config.runtime.kind == "async"
        self.exact = free or (meta.get("exact", False) and same_total)
        path = "" if self.exact else ", which is off the uninterrupted run's path"
        notes.append(
            f"resumed at update {self.learner.updates:,}, {self.counters.env_steps:,} env_steps, "
            f"from {found.path}{path}"
        )
        if not free:
            self._warnings += provenance.warnings(found.path, meta, self.system)
        if self.counters.env_steps < self.config.total_env_steps and not same_total:
            notes.append(
                f"the budget was {total:,} env_steps and is {self.config.total_env_steps:,} now: "
                "schedules go on as shares of the new one, so a falling rate rises at once"
            )

    def _restore_replay(self, found: Checkpoint, notes: list[str]) -> None:
        """Takes the checkpoint's rows; their rings keep their length, so an interval that is longer
        now is shortened to what they have slack for.
        """
        if self.replay is None:
            return
        self.replay.load(found.path, found.meta["replay"], [*self._warnings, *notes])
        if found.meta["replay"]["rows"] is None:
            return
        most = self.replay.reach
        if self.interval > most:
            notes.append(
                f"checkpoints are written every {most:,} iterations, not every "
                f"{self.interval:,}: the replay was made with room for no more between two"
            )
            self.interval = most

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Says within where this process's environments hang, and what a stop waits for."""
        timeout_s = self.config.runtime.worker_timeout_s
        self.watch = Watch(self.timer, self.env, timeout_s, self.say)
        with self.watch.running():
            yield

    def train(self, sampling: loop.Sampling) -> Literal["finished", "stopped"]:
        """Runs the loop to its end or to a stop."""
        self.sampling = sampling
        self.voice.progress.stage(first_stage(self.setting))
        runtime = self.config.runtime
        # Several learners take their columns from where they were collected, each to its device.
        device = runtime.device if runtime.num_learners == 1 else "cpu"
        replay = None if self.replay is None else self.replay.replay
        status = loop.run(
            loop.Parts([self.learner], sampling, replay, torch.device(device)),
            self.counters,
            loop.Budget(
                self.config.total_env_steps,
                self.interval,
                self.max_cut_frac,
                runtime.publish_interval_updates,
            ),
            loop.Hooks(self.save, self.after_iteration, self.keep_batch),
            self.timer,
        )
        if status == "finished":
            self.save_policy()
        if self._raised is not None:
            self._raised.add_note(f"The run was saved; the same call goes on: {self.run_dir}")
            raise self._raised
        if status == "stopped":
            self.say(
                f"stopped at {self.counters.env_steps:,} env_steps; the same command goes on from "
                "there"
            )
        return status

    def _phase_begins(self, phase: Phase) -> None:
        stage = stage_of(phase, self.setting)
        if stage is not None:
            self.voice.progress.stage(stage)

    def save_policy(self) -> None:
        """Writes the final policy to ``policy/``, unless it stands there."""
        self.folder.renew_policy(self.policy(), self.warn)

    def save(self, exact: bool) -> None:
        """Writes a checkpoint and removes those that are not kept."""
        counters = self.counters
        milestone = self.config.checkpoint.is_milestone(
            self.iterations, counters.checkpoint_iteration, counters.iteration
        )
        costly = self._checkpoint_s > _CHECKPOINT_FRAC * self._wall_s()
        # A replay keeps the rows that a checkpoint needs for one interval and no longer.
        automatic = self.config.checkpoint.interval_updates == "auto" and self.replay is None
        if automatic and costly and not (exact or milestone or self.stop_requested):
            return
        counters.checkpoint_iteration = counters.iteration
        self.folder.check()
        before, begin = self.timer.switch("checkpoint"), time.perf_counter()
        state, publication = self.learner.save(), self.learner.publication()
        best = self.evaluations.best
        rest = {k: v for k, v in state.tensors.items() if k not in publication.tensors}
        meta = {
            # Only these can be resumed from with the bytes of the uninterrupted run.
            "exact": exact and self.exact,
            "total_env_steps": self.config.total_env_steps,
            "milestone": milestone,
            "iteration": counters.iteration,
            "env_steps": counters.env_steps,
            "counters": dataclasses.asdict(counters),
            "version": publication.version,
            "wall_s": self._wall_s(),
            "best": best,
            "best_version": self.evaluations.best_version,
            "best_mark": None if best is None else self.folder.best_mark(),
            saved_options.CONFIG: self.options,
            provenance.SYSTEM: self.system,
            MARK: self.reporter.sync(),
            "learner": state.scalars,
            "policy": self.description,
            "replay": None if self.replay is None else self.replay.replay.save(),
        }
        self.folder.write_checkpoint(
            f"{counters.iteration:09d}",  # unlike updates it always grows
            {POLICY: publication.tensors, "learner": rest},
            meta,
        )
        keep = self.config.checkpoint.keep
        self.folder.prune(keep, lambda kept: bool(kept.get("milestone")), self.warn)
        self._checkpoint_s += time.perf_counter() - begin
        self.timer.switch(before)

    def after_iteration(self, episodes: list[Episode]) -> bool:
        """Evaluates and reports when it is time; says whether to stop."""
        for episode in episodes:
            self.episodes.add(episode.return_, episode.length, episode.success)
        if self.replay is not None and (description := self.replay.describe_once()) is not None:
            self.say(description)
        for notice in self.long_episodes.notices(self.counters):
            self.say(notice)
        steps = self.counters.env_steps
        finished = steps >= self.config.total_env_steps
        if not self.stop_requested and self.evaluations.due(steps, self._wall_s()):
            self._evaluate()
        if (
            finished
            or self.evaluations.metrics
            or self.stop_requested
            or time.perf_counter() - self._reported_at >= self.config.report.interval_s
        ):
            self._report()
        return self.stop_requested

    def _report(self) -> None:
        self.folder.check()
        now, steps, updates = time.perf_counter(), self.counters.env_steps, self.learner.updates
        passed_s = now - self._reported_at
        report = {
            "env_steps": float(steps),
            "env_frames": float(steps * self.env.action_repeat),
            "wall_s": self._wall_s(),
            "updates": float(updates),
            "iterations": float(self.counters.iteration),
            "data/executed_env_steps": float(self.counters.executed_env_steps),
            "data/discarded_env_steps": float(self.counters.discarded_env_steps),
            "episode/cut_frac": self.counters.cut_frac,
            "version": float(self.learner.publication().version),
            "throughput/env_steps_per_s": (steps - self._reported_steps) / passed_s,
            "throughput/updates_per_s": (updates - self._reported_updates) / passed_s,
            **self.episodes.report(),
            **self.learner.metrics(),
            **({} if self.replay is None else self.replay.replay.metrics()),
            **self.timer.report(),
            **self.machine.report(),
            **self.sampling.report(),
            **self.evaluations.metrics,
        }
        self.evaluations.metrics = {}
        self._reported_at, self._reported_steps, self._reported_updates = now, steps, updates
        self.last_report = self.reporter.write(report, self.learner.histograms())
        self.voice.progress.update(
            self.last_report, self.episodes.recent_return, self.episodes.recent_success
        )
        if self.on_report is not None:
            self._ask(self.on_report)

    def _ask(self, on_report: OnReport) -> None:
        """Hands out the last report; what the user's code raises waits until all is saved."""
        try:
            answer = on_report(self.last_report)
        except BaseException as error:  # sys.exit() and Ctrl-C as well
            if isinstance(error, KeyboardInterrupt) and self.stop_requested:
                raise  # the second Ctrl-C, which ends the run at once
            self._raised = error
            self.request_stop()
            return
        if isinstance(answer, (bool, np.bool_)) and answer:
            self.request_stop()

    def _wall_s(self) -> float:
        return self._wall_before_s + time.perf_counter() - self._started

    def _evaluate(self) -> None:
        """Plays the evaluation episodes; keeps the policy if it is the best so far."""
        self.voice.progress.stage("evaluating")
        before = self.timer.switch("evaluation")
        self.evaluations.play(
            self.policy(),
            self.counters.env_steps,
            self._stop_evaluating,
            partial(self.folder.write_policy, BEST),
        )
        self.timer.switch(before)

    def _stop_evaluating(self) -> bool:
        """Asked at every step of an evaluation, which the watch takes for a sign of life."""
        self.timer.switch("evaluation")
        return self.stop_requested

    def keep_batch(self, batch: Rollout) -> str:
        """Keeps the batch on which an update failed; says where, and what else remains."""
        meta = {"iteration": self.counters.iteration, "env_steps": self.counters.env_steps}
        return self.folder.keep_batch(batch, meta, self.warn)

    def policy(self) -> Policy:
        """A copy of the current policy."""
        current = self.learner.publication()
        tensors = {name: x.detach().cpu().clone() for name, x in current.tensors.items()}
        return Policy(self.description, Publication(current.version, tensors), trust.OWN)

    def say(self, message: str) -> None:
        """One line for the person and for log.txt."""
        self.voice.say(message)

    def warn(self, message: str) -> None:
        """A line on standard error, unless a dashboard has the terminal, and in log.txt."""
        self.voice.warn(message)

    def waiting(self, text: str) -> None:
        """Tells the person what has been waited for, for seconds."""
        self.voice.progress.waiting(text)

    def request_stop(self) -> None:
        """Asks for a stop at the end of the iteration; called by signal handlers."""
        self.stop_requested = True

    def tell_stopping(self) -> None:
        """Tells the person what a stop waits for."""
        if self.watch is not None:
            self.say(
                f"stopping after {self.watch.where()}; a second Ctrl-C ends at once, and the same "
                "command goes on from the last checkpoint"
            )

    def abandon(self) -> None:
        """Gives the terminal back, as the process ends at once."""
        if self.watch is not None:
            self.voice.progress.close()

    def ended(self, state: str, error: BaseException | None = None) -> None:
        """Puts down how the run ended: finished, stopped or failed."""
        self.folder.end_record(state, self.counters.env_steps, error)

    def close(self) -> None:
        """Gives the terminal and the files back."""
        self.voice.progress.close()
        self.reporter.close()
        self.folder.close()
