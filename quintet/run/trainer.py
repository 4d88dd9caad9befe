"""Directs one run: its policies, its folder, its messages, and its end."""

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TextIO, final

from quintet.algorithms import registry
from quintet.algorithms.parts.acting import as_trained
from quintet.checkpoints import checkpoint, saved_options, signature
from quintet.envs.vector import EnvDescription
from quintet.errors import EnvironmentFault, NonFiniteError, QuintetError, TimeIsOver
from quintet.observe.log import RunLog
from quintet.observe.pace import Pace
from quintet.observe.progress import Progress, first_stage, make_progress, stage_of
from quintet.observe.report_files import MARK
from quintet.observe.timing import Phase, PhaseTimer
from quintet.observe.view import View
from quintet.options.resolve import Loaded
from quintet.options.run import RunConfig
from quintet.run.callbacks import LiveRun, UserCalls, UserCode
from quintet.run.evaluations import Evaluations
from quintet.run.findings import Findings
from quintet.run.folder import RunFolder
from quintet.run.policy_run import PolicyRun, holds_policies, write_policies
from quintet.run.reports import Reports, facts_of
from quintet.run.saving import LongEpisodes, Saving
from quintet.runtime import loop
from quintet.runtime.delivery import Batch
from quintet.runtime.processes.hang_notice import Watch
from quintet.system import provenance, trust
from quintet.system.files import shown
from quintet.system.signals import StopRequest
from quintet.types import Publication, Rollout

if TYPE_CHECKING:
    from quintet.population.self_play import PastWeights
    from quintet.run.population import Population
    from quintet.run.tasks import RunTasks
    from quintet.run.time_budget import TimeBudget


@final
class Trainer:
    """Directs the policies of one run and its folder while the loop trains.

    finished: whether the budget was spent, and no evaluation left out, when the run was opened.
    budget: its time, from which its env_steps follow; None: they were given.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        policies: Sequence[PolicyRun],
        env: EnvDescription,
        user: UserCode,
        loaded: Loaded,
        population: "Population | None" = None,
    ):
        self.config, self.folder, self.policies, self.env = config, folder, policies, env
        self.on_report, self.callbacks = user
        self.population = population
        simulators = loaded.env.backend.packages
        self.system = provenance.system(env.backend, config.runtime.device, simulators)
        if package := registry.LEARNERS.package_of(config.algo):
            self.system["learner"] = package
        self.counters = loop.Counters()
        self.timer = PhaseTimer(self._phase_begins)
        own = config.self_play
        self.past: "PastWeights | None" = None
        if own.on:
            from quintet.population.self_play import PastWeights

            self.past = PastWeights(own, config.seed, config.total_env_steps)
        self.saving = Saving(config, folder, policies, self.system, population, self.past)
        self.log = RunLog()
        self.evaluations = Evaluations(config, loaded, self.log.say, self.log.waiting)
        if elsewhere := self.evaluations.elsewhere:
            self.saving.notes.append(
                f"evaluations, which choose the best policy, are played in {elsewhere}"
            )
        self.reports = Reports(config, policies, env, self.timer, population)
        plan, spaces = policies[0].learner.plan, policies[0].spaces
        self.facts = facts_of(config, plan, spaces, env, loaded.env, user != UserCode())
        self.findings = Findings(config, loaded.config.model, spaces, folder, self.log)
        self.tasks: RunTasks | None = None
        if config.env.curriculum is not None:
            self._make_tasks()
        self.live = LiveRun(
            folder.path,
            policies,
            lambda: self.counters.env_steps,
            lambda *x: self._make_tasks().set_value(*x),
        )
        self.finished = self._save_requested = False
        self.budget: TimeBudget | None = None
        self.stop = StopRequest(self._tell_stopping, self.log.close)
        self._saved_at = time.monotonic()  # time of the last save, or of the start
        self._ended, self._telling = False, threading.Lock()  # the loop; what a stop waits for
        self.watch: Watch | None = None
        self._calls = UserCalls(self.stop)
        self._saved_for_stop = False

    def warm_start(self, anew: bool = False) -> None:
        """Gives the learners the weights of `init_from`, unless the run has begun already.

        anew: whether this is a new run, whatever is in the folder.
        """
        if not anew and checkpoint.any_of_run(self.folder.checkpoints):
            return
        notes = [policy.warm_start() for policy in self.policies]
        self.saving.notes += dict.fromkeys(note for note in notes if note is not None)

    def open(self) -> None:
        """Makes the folder, or resumes from its newest checkpoint.  Raises CheckpointError if no
        suitable one can be read, ConfigError if the budget is smaller than the steps trained.
        """
        self.folder.open()
        for policy in self.policies:
            policy.folder.open()
        saving = self.saving
        found, self.counters = saving.restore()
        if found is not None and found.meta.get("tasks"):
            self._make_tasks().load(found.meta)
        # Off the uninterrupted run's path no checkpoint is exact.
        exact = saving.on_path and self.config.runtime.exact and not saving.unrepeatable
        self.long_episodes = LongEpisodes(
            self.config.total_env_steps,
            saving.interval,
            self.config.checkpoint.max_cut_frac if exact else None,
            saving.replay_holds,
        )
        if saving.unrepeatable:
            saving.notes.append(f"resumes of this run are not exact: {saving.unrepeatable}")
        trained = self.counters.env_steps
        self.evaluations.resumes({} if found is None else found.meta, trained)
        self.finished = self._trained and not self.evaluations.left_out(trained)
        self._write_options()
        self._open_log()
        for warning in saving.warnings:
            self.log.warn(warning)
        for note in saving.notes:
            self.log.say(note)
        if self.population is not None:
            self.population.write()
        if self.finished:
            assert found is not None
            self.reports.mend(found, self.log)
        else:
            self.findings.spaces_known(trained)
            self.reports.open(found, self.counters, self.log)

    @property
    def _trained(self) -> bool:
        """Whether the budget is spent."""
        return self.counters.env_steps >= self.config.total_env_steps

    def _make_tasks(self) -> "RunTasks":
        """The task of the environments, which few runs have."""
        if self.tasks is None:
            from quintet.run.tasks import RunTasks

            self.tasks = RunTasks(self.config, self.policies[0].plan, self.log.say)
            if self.saving.sampling is not None:
                self.tasks.begin(self.saving.sampling)
        return self.tasks

    def _write_options(self) -> None:
        """Writes ``config.yaml`` and ``run.json``; a finished run keeps its files."""
        if not self.finished or not (self.folder.path / saved_options.FILE).is_file():
            self.folder.write_options(self.saving.options)
            if self.folder.signed and (reason := signature.why_no_key()) is not None:
                self.saving.notes.append(
                    f"the run can't be signed as this user's: {reason}; {trust.UNSIGNED}"
                )
        self.findings.resumes()
        if self.finished:
            self.folder.check_record(self.saving.warnings.append)
        else:
            self.folder.begin_record(self.system, self.evaluations.elsewhere)

    def _open_log(self) -> None:
        file = self.folder.open_log()
        returns = self.config.checkpoint.best_by == "eval/return_mean"
        scores = [each.best for each in self.policies if returns and each.best is not None]

        def make(stream: TextIO) -> Progress:
            view = View(
                f"{self.config.algo} on {self.env.id} ({self.env.backend})",
                Pace(self.config.total_env_steps, self.counters.env_steps),
                str(shown(self.folder.path)),
                self.facts,
                max(scores, default=None),
                self.findings.judged(self.reports.parts),
                evaluated=self.evaluations.elsewhere,
                choices=self.findings.choices,
                marks=self.findings.marks,
            )
            return make_progress(view, stream)

        out = sys.stdout if self.config.report.progress else None
        self.log.begin(make, out, file)

    def watched(self) -> AbstractContextManager[None]:
        """Reports, within the block, where environments hang, and what a stop waits for."""
        timeout_s = self.config.runtime.worker_timeout_s
        self.watch = Watch(self.timer, self.env, timeout_s, self.log.say)
        return self.watch.running()

    def say_finished(self) -> None:
        """Reports that the budget was already spent, and writes the final policies."""
        self.log.answer(
            f"this run is finished: {self.counters.env_steps:,} env_steps; raise "
            "--total-steps to continue, or give another --run-dir, or --overwrite, for a new run"
        )
        if not holds_policies(self.policies, self.folder):
            self.save_policy()

    def train(self, sampling: loop.Sampling) -> Literal["finished", "stopped"]:
        """Runs the loop to its end or to a stop."""
        self.reports.sampling, self.reports.own = sampling.report, self._own_metrics
        if (tasks := self.tasks) is not None:
            tasks.begin(sampling)
            self.reports.sampling = lambda: sampling.report() | tasks.metrics()
        self.saving.goes_on(sampling)
        self._calls.ask(self.callbacks.begin, self.live)
        if self._calls.raised is not None:
            raise self._calls.raised
        self.log.stage(first_stage(self.facts))
        if self._trained:  # a stop, a kill or an error left out the last evaluation
            self.log.say(
                "the run is trained, but its last evaluation was left out: it is played now"
            )
            self.after_iteration(None)
            self.save(True)
        else:
            self._loop(sampling).run()
        status: Literal["finished", "stopped"] = "finished" if self._trained else "stopped"
        with self._telling:  # messages from here on come after the stop
            self._ended = True
        if status == "finished":
            self.save_policy()
        self.live.may_set = False
        self._calls.ask(self.callbacks.end, self.live, status)
        if (error := self._calls.raised) is not None:
            error.add_note(f"The run was saved; the same call resumes: {self.folder.path}")
            raise error
        self.log.last_lines()
        self.log.say(f"time: {self.timer.summary()}")
        if status == "stopped":
            how = "" if self.config.resume == "latest" else " with --resume latest"
            steps = f"{self.counters.env_steps:,} env_steps"
            self.log.answer(f"stopped at {steps}; the same command{how} resumes there")
        return status

    def _loop(self, sampling: loop.Sampling) -> loop.TrainingLoop:
        learners = [policy.learner for policy in self.policies]
        devices = [policy.device for policy in self.policies]
        replays = [each.replay.replay for each in self.policies if each.replay is not None]
        hooks = loop.Hooks(
            self.save, self.after_iteration, self.keep_batch, self.learned, self.diverged,
            partial(self._published, sampling), self.asks_to_save, self.quiet, self._stops,
            lambda: self.stop.made,
        )  # fmt: skip
        return loop.TrainingLoop(
            loop.Components(
                learners, sampling, replays, devices, lambda k: self.policies[k].publication()
            ),
            self.counters,
            loop.Budget(
                self.config.total_env_steps,
                self.saving.interval,
                self.long_episodes.max_cut_frac,
                self.config.runtime.publish_interval_iterations,
            ),
            hooks,
            self.timer,
        )

    def _phase_begins(self, phase: Phase) -> None:
        if (stage := stage_of(phase, self.facts)) is not None:
            self.log.stage(stage)

    def save_policy(self) -> None:
        """Writes the final policies, and the best of several as the run's own."""
        write_policies(self.policies, self.folder, self.reports.last)
        if self.population is not None:
            self.log.say(self.population.winner())

    def save(self, exact: bool) -> None:
        """Writes a checkpoint, unless it is merely due and costs too much."""
        wanted = exact or self.stop.made or self._trained or self.asks_to_save()
        if not (wanted or self.saving.worth_writing(self.counters, self.reports.wall_s)):
            return
        self.folder.check()
        before = self.timer.switch("checkpoint")
        said: dict[str, Any] = {"wall_s": self.reports.wall_s, MARK: self.reports.reporter.sync()}
        said |= self.evaluations.saved() | ({} if self.tasks is None else self.tasks.saved())
        path = self.saving.write(self.counters, exact, said, self.log.warn)
        self.timer.switch(before)
        if self._save_requested:
            self.log.say(f"saved as asked: {path}, {self.counters.env_steps:,} env_steps")
        self._save_requested, self._saved_at = False, time.monotonic()
        self.live.may_set = False
        self._calls.ask(self.callbacks.checkpoint, self.live, path)
        self.live.may_set = True

    def learned(self, batch: Batch) -> bool:
        """Counts a batch and considers its policy; returns whether that now has another policy's
        weights."""
        steps, own = self.counters.env_steps, self.policies[batch.policy]
        self.findings.rows(batch, steps)
        own.add(batch)
        for index, episodes in batch.others.items():
            self.policies[index].add_episodes(episodes)
        if self.tasks is not None:
            self.tasks.learned(batch, own.learner, steps)
        if self.population is None:
            return False
        if (fault := own.fault()) is not None:
            self.population.replace(batch.policy, fault, steps, self.log.warn)
            return True
        return self.population.consider(batch, steps, self.log.say)

    def quiet(self, batch: Batch) -> bool:
        """Whether nothing that follows this batch reads another policy; the batch is counted."""
        counters, wall_s = self.counters, self.reports.wall_s
        others = self.budget, self.past, self.tasks
        if self.stop.made or self.reports.due or any(each is not None for each in others):
            return False
        due = self.saving.due(counters, wall_s) or self.evaluations.due(counters.env_steps, wall_s)
        return not due and (self.population is None or self.population.rests(batch))

    def diverged(self, policy: int, error: NonFiniteError) -> None:
        """Replaces a policy whose update became NaN, if the population can."""
        if self.population is None:
            raise error
        self.population.replace(policy, str(error), self.counters.env_steps, self.log.warn)

    def _published(self, sampling: loop.Sampling, publication: Publication) -> None:
        """Publishes opponents in self-play, and keeps weights that will play later."""
        if self.past is not None:
            self.past.consider(as_trained(publication), self.counters.env_steps)
            opponent = self.past.opponent(publication.version)
            sampling.publish(replace(opponent, policy=publication.policy + 1))

    def after_iteration(self, batch: Batch | None) -> bool:
        """Evaluates and reports when due; returns whether to stop the run."""
        for policy in self.policies:
            if policy.replay is not None and (found := policy.replay.describe_once()) is not None:
                self.log.say(found)
        for name, notice in self.long_episodes.notices(self.counters).items():
            # Exactness is told on the screen by the resume that it concerns.
            (self.log.say if name == "endless" else self.log.note)(notice)
        steps, budget, evaluated = self.counters.env_steps, self.budget, False
        if budget is not None and not (self._trained or self.stop.made):
            if batch is None or budget.batch():
                self._end_here(budget)
            elif any(each.learner.updates for each in self.policies):
                total = self.config.total_env_steps
                budget.look(steps, total, self.timer.seconds(), self.log.say)
        # A stop waits for the last one, without which a finished run would keep an older score.
        due = self._trained or not self.stop.made
        if due and self.evaluations.due(steps, self.reports.wall_s):
            try:
                evaluated = self._evaluate()
            except QuintetError as error:  # the run first saves what was trained
                self._calls.raised = self._calls.raised or error
                self.stop.made = True
        if self._trained or evaluated or self.stop.made or self.reports.due:
            self.folder.check()
            self.reports.write(self.counters, self.log)
            self.findings.report(steps)
            self._calls.ask(self.on_report, self.reports.last)
        else:
            self.reports.show(self.counters, self.log)
        return self.stop.made or self._trained

    def _end_here(self, budget: "TimeBudget") -> None:
        """Makes the env_steps so far the whole budget of the run, as its time is over."""
        steps, total = self.counters.env_steps, self.config.total_env_steps
        self.config = self.config.model_copy(update={"total_env_steps": steps})
        self.evaluations.config = self.saving.config = self.config
        self.saving.options["total_env_steps"] = steps
        self.folder.write_options(self.saving.options)
        self.counters.discard_waiting()
        self.log.say(
            f"minutes={budget.minutes:g}: the time is over after {steps:,} of {total:,} env_steps, "
            "so the run ends here, before the end of its schedules"
        )

    def _own_metrics(self, report: dict[str, float]) -> dict[str, float]:
        self._calls.ask(self.callbacks.report, self.live, report)
        return self.live.take_logged()

    def _evaluate(self) -> bool:
        """Evaluates all policies; returns whether any evaluation was completed."""
        self.log.stage("evaluating")
        before = self.timer.switch("evaluation")
        steps, found = self.counters.env_steps, {}
        if self.budget is not None:
            self.budget.evaluation_begins()
        with suppress(QuintetError):  # checkpoints tell it
            self.saving.look_at_environments()
        policies = [each.policy() for each in self.policies]
        for index, each in enumerate(self.policies):
            scores = self.evaluations.play(policies, index, steps, self._stop_evaluating)
            if scores is not None:
                who = "" if each.alone else f"policy {index}: "
                if told := each.score(policies[index], scores):
                    self.evaluations.say(who + told)
                self.evaluations.compare(scores, each.episodes.recent_returns, who)
                found[index] = scores
        for index, scores in found.items():  # a stop in one of them leaves out no evaluation
            self.live.evaluated = index
            self._calls.ask(self.callbacks.evaluation, self.live, scores)
        self.live.evaluated = 0
        self.timer.switch(before)
        late = not self.stop.made and self.evaluations.left_out(steps)
        if self.budget is None:
            return bool(found)
        self.budget.evaluation_ends()
        if late and self._trained:
            self.log.warn(
                "the last evaluation was left out, as the time is over: the same command plays it"
            )
        elif late:
            self.evaluations.evaluated_steps = steps
            self.log.say("an evaluation was left out, as it takes too long for the time of the run")
        return bool(found)

    def _stops(self, error: QuintetError) -> bool:
        """Whether to stop after an error of sampling: one of an environment is raised when the run
        is saved; others are only told, if a stop was made."""
        if isinstance(error, TimeIsOver) and self.counters.env_steps:
            self.after_iteration(None)
            return True
        if isinstance(error, EnvironmentFault) and self.counters.env_steps and not self.stop.made:
            self._calls.raised, self.stop.made = error, True
        elif self.stop.made:
            self.log.warn(f"while the run stopped: {error}")
        return self.stop.made

    def _stop_evaluating(self) -> bool:
        """Called at every step of an evaluation; the timer's switch shows `Watch` that it is not
        stuck."""
        self.timer.switch("evaluation")
        if self.budget is not None and self.budget.evaluation_late(self._trained):
            return True
        if not (self.stop.made and self._trained):
            return self.stop.made
        if not self._saved_for_stop:  # the sender of a signal may not wait for the end
            self._saved_for_stop = True
            self.save(True)
        return self.config.eval.max_steps is None  # an evaluation without a limit may have no end

    def keep_batch(self, batch: Rollout, policy: int) -> str:
        """Writes the batch on which an update failed; returns a sentence that says where."""
        meta = {"iteration": self.counters.iteration, "env_steps": self.counters.env_steps}
        which = {} if len(self.policies) == 1 else {"policy_index": policy}
        return self.folder.keep_batch(batch, meta | which, self.log.warn)

    def request_save(self) -> None:
        """Requests a checkpoint at the end of the iteration; called by a signal handler."""
        self._save_requested = True

    def asks_to_save(self) -> bool:
        """Whether a checkpoint is requested, by the user or the clock.  It cuts no episode, so
        bytes of an exact run stay the same.
        """
        interval_s = self.config.checkpoint.interval_s
        late = interval_s is not None and time.monotonic() - self._saved_at >= interval_s
        return late or self._save_requested

    def _tell_stopping(self) -> None:
        with self._telling:
            if self._ended:
                self.log.answer(
                    "waiting for the environments to close; a second Ctrl-C ends at once"
                )
            elif self.watch is not None:
                self.log.answer(
                    f"stopping after {self.watch.where()}; a second Ctrl-C ends at once, and "
                    "the same command resumes from the last checkpoint"
                )

    def ended(self, state: str, error: BaseException | None = None) -> None:
        """Records how the run ended: finished, stopped or failed."""
        self.folder.end_record(state, self.counters.env_steps, error)

    def close(self) -> None:
        self.log.close()
        self.reports.reporter.close()
        self.folder.close()
