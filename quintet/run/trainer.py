"""One run: its policies, its folder, what a person is told, and how it ends."""

import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TextIO, final

import numpy as np
import torch

from quintet import checkpoint
from quintet.config.run import RunConfig
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import EnvDescription
from quintet.errors import ConfigError
from quintet.observe.log import Voice
from quintet.observe.pace import Pace
from quintet.observe.progress import Progress, first_stage, make_progress, stage_of
from quintet.observe.report_files import MARK
from quintet.observe.timing import Phase, PhaseTimer
from quintet.observe.view import View
from quintet.run.evaluations import Evaluations
from quintet.run.facts import facts_of
from quintet.run.folder import RunFolder
from quintet.run.long_episodes import LongEpisodes
from quintet.run.policy_run import PolicyRun
from quintet.run.reports import Reports
from quintet.run.saving import Saving
from quintet.runtime import loop
from quintet.runtime.delivery import Batch
from quintet.runtime.processes.watch import Watch
from quintet.system import provenance, saved_options, signature, trust
from quintet.types import Rollout

OnReport = Callable[[dict[str, float]], object]
"""Gets every report; True asks for a stop, anything else for nothing."""


@final
class Trainer:
    """Leads the policies of one run and keeps its folder while the loop trains.

    max_cut_frac: as `loop.Budget` has it, which depends on where the run goes on.
    finished: whether its budget was spent when it was opened.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        policies: Sequence[PolicyRun],
        env: EnvDescription,
        on_report: OnReport | None,
        resolved: ResolvedEnv,
    ):
        self.config, self.folder, self.policies, self.env = config, folder, policies, env
        self.on_report = on_report
        self.system = provenance.system(env.backend, config.runtime.device)
        self.counters = loop.Counters()
        self.timer = PhaseTimer(self._phase_begins)
        self.saving = Saving(config, folder, policies, self.system)
        self.evaluations = Evaluations(config, resolved)
        self.reports = Reports(config, policies, env, self.timer)
        self.voice = Voice()
        self.facts = facts_of(
            config,
            policies[0].learner.plan,
            policies[0].spaces,
            env,
            resolved,
            on_report is not None,
        )
        self.max_cut_frac: float | None = None
        self.long_episodes = LongEpisodes(config.total_env_steps, self.saving.interval, None)
        self.finished = self.stop_requested = False
        self._ended, self._telling = False, threading.Lock()  # the loop; what a stop waits for
        self.watch: Watch | None = None
        self._raised: BaseException | None = None

    def beware(self, warnings: Iterable[str]) -> None:
        """What is to be said of the folder once there is a log; before `open`."""
        self.saving.warnings += warnings

    def warm_start(self) -> None:
        """Gives the learners what `init_from` donates, unless the run has begun already.

        Raises:
            ConfigError: it is no policy, or does not fit.
        """
        if checkpoint.any_of_run(self.folder.checkpoints):
            return
        notes = [policy.warm_start() for policy in self.policies]
        self.saving.notes += dict.fromkeys(note for note in notes if note is not None)

    def open(self) -> None:
        """Makes the folder, or goes on from its newest checkpoint.

        Raises:
            CheckpointError: no checkpoint that fits can be read.
            ConfigError: fewer steps are asked for than were trained.
        """
        self.folder.open()
        for policy in self.policies:
            policy.folder.open()
        saving = self.saving
        found, self.counters = saving.restore()
        # Off the uninterrupted run's path there is nothing to begin anew for.
        exact = saving.on_path and self.config.runtime.kind != "async"
        self.max_cut_frac = self.config.checkpoint.max_cut_frac if exact else None
        self.long_episodes = LongEpisodes(
            self.config.total_env_steps, saving.interval, self.max_cut_frac, saving.reach
        )
        trained, asked = self.counters.env_steps, self.config.total_env_steps
        if trained > asked:
            raise ConfigError(
                f"total_env_steps of at least the {trained:,} that {self.folder.path} has trained "
                f"is required, got {asked:,}; leave it out or raise it"
            )
        self.finished = trained == asked
        self._write_options()
        self._open_log()
        for warning in saving.warnings:
            self.warn(warning)
        for note in saving.notes:
            self.say(note)
        if self.finished:
            assert found is not None
            self.reports.mend(found, self.voice)
        else:
            self.reports.open(found, self.counters, self.voice)
        self.evaluations.evaluated_steps = self.counters.env_steps

    def _write_options(self) -> None:
        """What stands in the folder of how the run was started; that of a finished run stays."""
        warn = self.saving.warnings.append
        saved = saved_options.read(self.folder.path)
        if not self.finished or saved is None or saved.fault is not None:
            self.folder.write_options(self.saving.options, warn)
            if self.folder.signed and (reason := signature.why_no_key()) is not None:
                self.saving.notes.append(
                    f"the run can't be signed as this user's: {reason}; {trust.UNSIGNED}"
                )
        if self.finished:
            self.folder.check_record(warn)
        else:
            self.folder.begin_record(self.system)

    def _open_log(self) -> None:
        log = self.folder.open_log()
        scores = [policy.best for policy in self.policies if policy.best is not None]

        def make(stream: TextIO) -> Progress:
            view = View(
                f"{self.config.algo} on {self.env.id} ({self.env.backend})",
                Pace(self.config.total_env_steps, self.counters.env_steps),
                str(self.folder.path),
                self.facts,
                max(scores, default=None),
            )
            return make_progress(view, stream)

        self.voice = Voice(make, sys.stdout if self.config.report.progress else io.StringIO(), log)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Says within where this process's environments hang, and what a stop waits for."""
        timeout_s = self.config.runtime.worker_timeout_s
        self.watch = Watch(self.timer, self.env, timeout_s, self.say)
        with self.watch.running():
            yield

    def say_finished(self) -> None:
        """What there is to say, and to write, of a run that has spent its budget already."""
        self.say(
            f"this run is finished: {self.counters.env_steps:,} env_steps; raise "
            "--total-steps to go on, or give another --run-dir"
        )
        self.save_policy()  # a kill may have come between the last checkpoint and it

    def train(self, sampling: loop.Sampling) -> Literal["finished", "stopped"]:
        """Runs the loop to its end or to a stop."""
        self.reports.sampling = sampling.report
        self.voice.stage(first_stage(self.facts))
        runtime = self.config.runtime
        # Several learners take their columns from where they were collected, each to its device.
        device = runtime.device if runtime.num_learners == 1 else "cpu"
        learners = [policy.learner for policy in self.policies]
        replays = [each.replay.replay for each in self.policies if each.replay is not None]
        status = loop.run(
            loop.Parts(learners, sampling, replays, torch.device(device)),
            self.counters,
            loop.Budget(
                self.config.total_env_steps,
                self.saving.interval,
                self.max_cut_frac,
                runtime.publish_interval_updates,
            ),
            loop.Hooks(self.save, self.after_iteration, self.keep_batch),
            self.timer,
        )
        with self._telling:  # what is told from here on comes after the stop
            self._ended = True
        if status == "finished":
            self.save_policy()
        if self._raised is not None:
            self._raised.add_note(f"The run was saved; the same call goes on: {self.folder.path}")
            raise self._raised
        if status == "stopped":
            self.say(
                f"stopped at {self.counters.env_steps:,} env_steps; the same command goes on from "
                "there"
            )
        return status

    def _phase_begins(self, phase: Phase) -> None:
        stage = stage_of(phase, self.facts)
        if stage is not None:
            self.voice.stage(stage)

    def save_policy(self) -> None:
        """Writes the final policies to ``policy/``, unless they stand there."""
        for policy in self.policies:
            policy.save_policy(self.warn)

    def save(self, exact: bool) -> None:
        """Writes a checkpoint, unless it costs too much for one that is only due."""
        wanted = exact or self.stop_requested
        if not (wanted or self.saving.worth_writing(self.counters, self.reports.wall_s)):
            return
        self.folder.check()
        before = self.timer.switch("checkpoint")
        said = {"wall_s": self.reports.wall_s, MARK: self.reports.reporter.sync()}
        self.saving.write(self.counters, exact, said, self.warn)
        self.timer.switch(before)

    def after_iteration(self, batch: Batch) -> bool:
        """Evaluates and reports when it is time; says whether to stop."""
        self.policies[batch.policy].add(batch)
        for index, episodes in batch.others.items():
            self.policies[index].add_episodes(episodes)
        for policy in self.policies:
            if policy.replay is not None and (found := policy.replay.describe_once()) is not None:
                self.say(found)
        for notice in self.long_episodes.notices(self.counters):
            self.say(notice)
        steps = self.counters.env_steps
        finished = steps >= self.config.total_env_steps
        evaluated = False
        if not self.stop_requested and self.evaluations.due(steps, self.reports.wall_s):
            evaluated = self._evaluate()
        if finished or evaluated or self.stop_requested or self.reports.due:
            self.folder.check()
            self.reports.write(self.counters, self.voice)
            if self.on_report is not None:
                self._ask(self.on_report)
        return self.stop_requested

    def _ask(self, on_report: OnReport) -> None:
        """Hands out the last report; what the user's code raises waits until all is saved."""
        try:
            answer = on_report(self.reports.last)
        except BaseException as error:  # sys.exit() and Ctrl-C as well
            if isinstance(error, KeyboardInterrupt) and self.stop_requested:
                raise  # the second Ctrl-C, which ends the run at once
            self._raised = error
            self.request_stop()
            return
        if isinstance(answer, (bool, np.bool_)) and answer:
            self.request_stop()

    def _evaluate(self) -> bool:
        """Plays the evaluation episodes of all policies; says whether any was played to its end."""
        self.voice.stage("evaluating")
        before = self.timer.switch("evaluation")
        steps, evaluated = self.counters.env_steps, False
        for each in self.policies:
            policy = each.policy()
            scores = self.evaluations.play(policy, steps, self._stop_evaluating)
            if scores is not None:
                each.score(policy, scores)
                evaluated = True
        self.timer.switch(before)
        return evaluated

    def _stop_evaluating(self) -> bool:
        """Asked at every step of an evaluation, which the watch takes for a sign of life."""
        self.timer.switch("evaluation")
        return self.stop_requested

    def keep_batch(self, batch: Rollout, policy: int) -> str:
        """Keeps the batch on which an update failed; says where, and what else remains."""
        meta = {"iteration": self.counters.iteration, "env_steps": self.counters.env_steps}
        which = {} if len(self.policies) == 1 else {"policy": policy}
        return self.folder.keep_batch(batch, meta | which, self.warn)

    def say(self, message: str) -> None:
        """One line for the person and for log.txt."""
        self.voice.say(message)

    def warn(self, message: str) -> None:
        """A line on standard error, unless a dashboard has the terminal, and in log.txt."""
        self.voice.warn(message)

    def waiting(self, text: str) -> None:
        """Tells the person what has been waited for, for seconds."""
        self.voice.waiting(text)

    def request_stop(self) -> None:
        """Asks for a stop at the end of the iteration; called by signal handlers."""
        self.stop_requested = True

    def tell_stopping(self) -> None:
        """Tells the person what a stop waits for, from another thread."""
        with self._telling:
            if self._ended:
                self.say("waiting for the environments to close; a second Ctrl-C ends at once")
            elif self.watch is not None:
                self.say(
                    f"stopping after {self.watch.where()}; a second Ctrl-C ends at once, and the "
                    "same command goes on from the last checkpoint"
                )

    def abandon(self) -> None:
        """Gives the terminal back, as the process ends at once."""
        if self.watch is not None:
            self.voice.close()

    def ended(self, state: str, error: BaseException | None = None) -> None:
        """Puts down how the run ended: finished, stopped or failed."""
        self.folder.end_record(state, self.counters.env_steps, error)

    def close(self) -> None:
        """Gives the terminal and the files back."""
        self.voice.close()
        self.reports.reporter.close()
        self.folder.close()
