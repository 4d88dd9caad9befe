"""The reports of a run: when they are due, their metrics, and their sinks."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from quintet.algorithms import registry
from quintet.checkpoints.checkpoint import Checkpoint
from quintet.envs.ids import faster_backend
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import EnvDescription
from quintet.errors import ConfigError
from quintet.findings import health
from quintet.findings.speed import RunFacts
from quintet.models.config import uses_pictures
from quintet.observe.growth import Growth
from quintet.observe.log import RunLog
from quintet.observe.machine_use import MachineUse
from quintet.observe.metrics import ENV, clean, policy_prefix, signed
from quintet.observe.pace import SHOWN_EVERY_S, Score, report_interval_s
from quintet.observe.sinks import Reporter, mend_reports, open_sinks
from quintet.observe.timing import PhaseTimer
from quintet.options.machine import has_compiler, worth_compiling
from quintet.options.run import RunConfig
from quintet.protocols import DataPlan
from quintet.run.policy_run import PolicyRun
from quintet.runtime.loop import Counters
from quintet.system.cpus import usable_cores
from quintet.types import Spaces

if TYPE_CHECKING:
    from quintet.run.population import Population

_ENOUGH_EPISODES = 20
"""Episodes after which a number of ``env.metrics`` that none of them had is taken for a mistake."""


@final
class Reports:
    """Collects the metrics of the run, its policies and the machine into reports.

    With several policies, names of policy K's metrics begin with ``policy_K/``.

    parts: parts of the learner, whose states every report has.
    last: the newest report, empty before the first.
    sampling: returns the metrics of the runtime kind.
    own: receives a report and returns what the user's functions add to it.
    """

    def __init__(
        self,
        config: RunConfig,
        policies: Sequence[PolicyRun],
        env: EnvDescription,
        timer: PhaseTimer,
        population: "Population | None" = None,
    ) -> None:
        self.config, self.policies, self.env, self.timer = config, policies, env, timer
        self.population = population
        learner, spaces = policies[0].config.learner, policies[0].spaces
        self.parts = registry.find(config.algo).judged(learner, spaces)
        self.machine = MachineUse()
        self.growth = Growth()
        self._missing, self._episodes = config.env.metric_names, 0.0
        self.sampling: Callable[[], dict[str, float]] = dict
        self.own: Callable[[dict[str, float]], dict[str, float]] = lambda _: {}
        self.last: dict[str, float] = {}
        self.reporter = Reporter(())
        self._before_s, self._started = 0.0, time.perf_counter()
        self._reported_at = self._shown_at = self._started
        self._reported_steps = self._from_steps = 0

    def open(self, found: Checkpoint | None, counters: Counters, log: RunLog) -> None:
        """Opens the sinks of a run that trains from checkpoint `found`, and starts its clock."""
        assert self.config.run_dir is not None
        self.reporter = open_sinks(
            self.config.report,
            self.config.run_dir,
            resume_env_steps=None if found is None else counters.env_steps,
            notice=log.say,
            warn=log.warn,
            meta=None if found is None else found.meta,
            options=self.config.flat(),
        )
        self._before_s = 0.0 if found is None else found.meta["wall_s"]
        self._started = self._reported_at = time.perf_counter()
        self._reported_steps = self._from_steps = counters.env_steps

    def mend(self, found: Checkpoint, log: RunLog) -> None:
        """Repairs the reports of a finished run."""
        assert self.config.run_dir is not None
        reports = mend_reports(self.config.run_dir, found.meta, log.warn)
        self.last = (reports or [{}])[-1]

    @property
    def wall_s(self) -> float:
        """Seconds that the run has taken so far, over all its starts."""
        return self._before_s + time.perf_counter() - self._started

    @property
    def due(self) -> bool:
        given = self.config.report.interval_s
        interval_s = self._auto_interval_s if given == "auto" else given
        return time.perf_counter() - self._reported_at >= interval_s

    @property
    def _auto_interval_s(self) -> float:
        """Seconds between reports; few before the first one of this process."""
        return report_interval_s(self.wall_s if self._reported_steps > self._from_steps else 0.0)

    def write(self, counters: Counters, log: RunLog) -> None:
        now, steps = time.perf_counter(), counters.env_steps
        passed_s = now - self._reported_at
        report = {
            "env_steps": float(steps),
            "env_frames": float(steps * self.env.action_repeat),
            "wall_s": self.wall_s,
            "iterations": float(counters.iteration),
            "data/executed_env_steps": float(counters.executed_env_steps),
            "data/discarded_env_steps": float(counters.discarded_env_steps),
            "episode/cut_frac": counters.cut_frac,
        }
        if steps > self._reported_steps:
            rate = (steps - self._reported_steps) / passed_s
            report["throughput/env_steps_per_s"] = rate
        histograms: dict[str, Tensor] = {}
        reports = [policy.report(passed_s) for policy in self.policies]
        self._look_for_numbers(reports, log)
        if self.population is not None:
            for own, found in zip(reports, self.population.metrics(), strict=True):
                own |= found
        for index, (policy, own) in enumerate(zip(self.policies, reports, strict=True)):
            prefix = policy_prefix(index, len(self.policies))
            own |= health.metrics(self.parts, clean(own))
            report |= {prefix + name: x for name, x in own.items()}
            histograms |= {prefix + name: x for name, x in policy.learner.histograms().items()}
        report |= self.timer.report() | self.machine.report() | self.sampling()
        self._reported_at, self._shown_at, self._reported_steps = now, now, steps
        self._say_growth(counters, log)
        report |= self.own(clean(report))
        self.last = self.reporter.write(report, histograms)
        log.update(self.last, self._recent)

    def _look_for_numbers(self, reports: Sequence[dict[str, float]], log: RunLog) -> None:
        """Says once which of the environment's own numbers no episode has had so far; raises
        ConfigError where something is chosen by one of them.
        """
        seen = {name for own in reports for name in own}
        missing = tuple(name for name in self._missing if f"{ENV}{name}" not in seen)
        self._episodes += sum(own.get("episode/count", 0.0) for own in reports)
        self._missing = missing if self._episodes < _ENOUGH_EPISODES else ()
        if self._missing or not missing:
            return
        fault = (
            f"env.metrics must name numbers in info, got {', '.join(missing)}, which none of the "
            f"first {self._episodes:.0f} episodes had"
        )
        for by in (self.config.checkpoint.best_by, self.config.population.objective):
            if signed(by)[0].removeprefix("eval/").removeprefix(ENV) in missing:
                raise ConfigError(f"{fault}, and policies are chosen by {by}: correct it")
        log.warn(f"{fault}: correct the name unless it comes later")

    def _say_growth(self, counters: Counters, log: RunLog) -> None:
        """Reports which processes may use up all memory before the run's end."""
        trained = counters.env_steps - self._from_steps
        if trained:
            left = self.config.total_env_steps - counters.env_steps
            left_s = left * (time.perf_counter() - self._started) / trained
            for line in self.growth.look(self.machine.memory_by_process(), left_s):
                log.warn(line)

    def show(self, counters: Counters, log: RunLog) -> None:
        """Shows once a second, between two reports, how far the run is and how it scores."""
        now = time.perf_counter()
        if now - self._shown_at < SHOWN_EVERY_S:
            return
        self._shown_at = now
        found = {
            "env_steps": float(counters.env_steps),
            "wall_s": self.wall_s,
            "iterations": float(counters.iteration),
        }
        if len(self.policies) == 1:
            found["updates"] = float(self.policies[0].learner.updates)
        log.update(found, self._recent)

    @property
    def _recent(self) -> Score:
        """Scores of the last episodes, averaged over the policies."""
        return Score(
            _mean(policy.episodes.recent_return for policy in self.policies),
            _mean(policy.episodes.recent_success for policy in self.policies),
        )


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are not None."""
    found = [x for x in values if x is not None]
    return math.fsum(found) / len(found) if found else None


def facts_of(
    config: RunConfig,
    plan: DataPlan,
    spaces: Spaces,
    env: EnvDescription,
    resolved: ResolvedEnv,
    callback: bool,
) -> RunFacts:
    """Facts for advice on speed, of a resolved configuration on this machine."""
    runtime, batch_steps = config.runtime, plan.unroll_steps * plan.columns_per_batch
    pictures = uses_pictures(config.model, spaces)
    size = config.env.num_streams // config.env.num_groups
    worth = worth_compiling(config, config.model, spaces, runtime.device)
    return RunFacts(
        env=env.id,
        source=resolved.kind,
        single_only=config.env.mask_from_info is True
        or (resolved.backend.in_python and resolved.backend.singles is None),
        backend=env.backend,
        in_python=resolved.backend.in_python,
        faster=faster_backend(env.id) if resolved.backend.in_python else "",
        num_streams=config.env.num_streams,
        num_groups=config.env.num_groups,
        auto_num_groups=resolved.auto_num_groups,
        env_threads=resolved.num_threads(size),
        auto_env_threads=resolved.auto_num_threads(size),
        env_processes_given=config.env.num_processes is not None,
        large_network=pictures,
        device=runtime.device,
        threads=runtime.threads or torch.get_num_threads(),
        cores=usable_cores(),
        gpu=torch.cuda.is_available()
        and (runtime.num_learners == 1 or torch.cuda.device_count() >= runtime.num_learners),
        compiles=runtime.compile == "on",
        may_compile=worth,
        compiler=not worth or has_compiler(),  # looking takes a moment
        batch_steps=batch_steps,
        update=registry.find(config.algo).advice(config.learner, batch_steps),
        kind=runtime.kind,
        num_workers=runtime.num_workers or 0,
        num_learners=runtime.num_learners,
        lag=runtime.lag,
        inference="server" if runtime.inference == "server" else "local",
        inference_batch_max=runtime.inference_batch_max,
        actor_threads=runtime.actor_threads or 1,
        eval_episodes=config.eval.episodes,
        report_interval_s=1.0 if config.report.interval_s == "auto" else config.report.interval_s,
        sinks=bool(config.report.sinks),
        callback=callback,
    )
