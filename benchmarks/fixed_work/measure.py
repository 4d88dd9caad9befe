"""Trains a workload for a fixed time and measures its speed."""

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import torch

from fixed_work import limits, workloads
from fixed_work.work import Work
from quintet.algorithms import registry
from quintet.algorithms.parts.setup import PLAIN
from quintet.observe.timing import Phase, PhaseTimer
from quintet.options.layers import Layer
from quintet.options.machine import has_compiler
from quintet.options.resolve import compose, resolve
from quintet.options.run import RunConfig
from quintet.protocols import Learner
from quintet.run.learners import make_learner
from quintet.run.sampling import Source, make_sampling, open_source
from quintet.runtime import loop
from quintet.runtime.replay.replay import Replay
from quintet.runtime.seed_tree import Role, generator_seed
from quintet.runtime.slots import RowSpecs
from quintet.runtime.torch_settings import configure_torch
from quintet.system import printing
from quintet.system.provenance import revision
from quintet.types import Spaces

_NEVER = 10**9

SHOWN: tuple[Phase, ...] = ("stepping", "acting", "learning", "replay", "waiting", "other")


@dataclass(frozen=True)
class Mark:
    """The progress of a run at the end of an iteration.

    env_steps: number of rows, including reset rows of environments.
    learned: number of rows without these.
    seconds: time since the timer was made; phases: time by phase.
    """

    seconds: float
    env_steps: int
    learned: int
    updates: int
    phases: Mapping[Phase, float]


@final
@dataclass
class Stopwatch:
    """Measures from the end of the first iteration after the warm-up and the start of replay to the
    end of the first iteration after the measured time.
    """

    work: Work
    learner: Learner
    counters: loop.Counters
    timer: PhaseTimer
    first: Mark | None = None  # the end of the first iteration with an update
    begin: Mark | None = None
    end: Mark | None = None
    on_iteration: Callable[[float, int], None] | None = None  # seconds, env_steps of the region

    def __post_init__(self) -> None:
        self.created_s = sum(self.timer.seconds().values())

    def after_iteration(self, *_: object) -> bool:
        """Called after every iteration; returns whether the measurement is over."""
        # Of one clock, so that the phases of a region add up to its seconds.
        phases = self.timer.seconds()
        now = sum(phases.values())
        if self.learner.updates == 0:
            return False
        if self.first is None:
            self.first = self._mark(now, phases)
        if self.begin is None:
            started = self.counters.env_steps >= self.work.learning_starts
            if started and now - self.created_s >= self.work.warmup_seconds:
                self.begin = self._mark(now, phases)
            return False
        seconds = now - self.begin.seconds
        if self.on_iteration is not None:
            self.on_iteration(seconds, self._env_steps() - self.begin.env_steps)
        if seconds < self.work.seconds:
            return False
        self.end = self._mark(now, phases)
        return True

    def _env_steps(self) -> int:
        # Rows spent on resets count here, as they do in the libraries for comparison.
        plan = self.learner.plan
        return self.counters.iteration * plan.columns_per_batch * plan.unroll_steps

    def _mark(self, now: float, phases: Mapping[Phase, float]) -> Mark:
        learned = self.counters.env_steps
        return Mark(now, self._env_steps(), learned, self.learner.updates, phases)


def run(work: Work, options: Layer) -> dict[str, Any]:
    """The record of a workload: its speed, its work, and the limit of its bare parts.

    options: how the work is scheduled.
    """
    config, spaces, record = train(work, options)
    bare = limits.measure(
        work,
        spaces,
        config.runtime.compute.precision,
        updates_per_step=record["updates"] / record["env_steps"],
        compiled=has_compiler(),
        overlapped=config.runtime.kind != "serial",
    )
    return record | {
        "limit_env_steps_per_s": bare.env_steps_per_s,
        "limit_us_per_env_step": {"env": bare.env_us, "act": bare.act_us, "update": bare.update_us},
        "load_average": os.getloadavg(),
        "commit": revision(Path(__file__).parent, 12),
    }


def train(
    work: Work, options: Layer, on_iteration: Callable[[float, int], None] | None = None
) -> tuple[RunConfig, Spaces, dict[str, Any]]:
    """Trains for the workload's time; returns the resolved configuration, the spaces, and the
    record without its limit.

    on_iteration: called with the seconds and env_steps since the warm-up, after each iteration.
    """
    loaded = compose(work.algo, [workloads.layer(work), options])
    source = open_source(loaded.config, loaded.env)
    try:
        config = resolve(loaded, source.spaces).config
        runtime = config.runtime
        assert runtime.threads is not None
        configure_torch(runtime.threads, runtime.device, runtime.gpu_math)
        watch = _train(work, config, source, on_iteration)
        return config, source.spaces, _record(work, config, watch)
    finally:
        source.close()


def _train(
    work: Work, config: RunConfig, source: Source, on_iteration: Callable[[float, int], None] | None
) -> Stopwatch:
    timer, counters = PhaseTimer(), loop.Counters()
    learner = make_learner(config, source.spaces)
    sampling = make_sampling(
        config, source, [learner], timer, printing.say, printing.say, printing.say
    )

    def nowhere(*_: object) -> str:
        return "The batch is not kept"

    watch = Stopwatch(work, learner, counters, timer, on_iteration=on_iteration)
    with TemporaryDirectory() as folder, closing(sampling):
        devices = [torch.device(config.runtime.device)]
        replays = []
        if learner.plan.replay:  # in files, as that of a run
            actor = registry.find(config.algo).make_actor(
                config.learner, config.model, source.spaces, PLAIN
            )
            rows = RowSpecs.of(source.spaces, actor)
            seed, num_streams = generator_seed(config.seed, Role.REPLAY, 0), config.env.num_streams
            replays = [Replay(learner.plan, rows, num_streams, seed, Path(folder))]
        loop.TrainingLoop(
            loop.Components([learner], sampling, replays, devices),
            counters,
            loop.Budget(config.total_env_steps, _NEVER),
            loop.Hooks(lambda _: None, watch.after_iteration, nowhere),
            timer,
        ).run()
    return watch


def _record(work: Work, config: RunConfig, watch: Stopwatch) -> dict[str, Any]:
    begin, end = watch.begin, watch.end
    assert begin is not None
    assert end is not None
    assert watch.first is not None
    wall_s, env_steps = end.seconds - begin.seconds, end.env_steps - begin.env_steps
    updates = end.updates - begin.updates
    us = {phase: (end.phases[phase] - begin.phases[phase]) / env_steps * 1e6 for phase in SHOWN}
    # The time until the first update, beyond that of as much work later, is compilation.
    first = watch.first
    learning_s = end.phases["learning"] - begin.phases["learning"]
    usual_s = us["acting"] / 1e6 * first.env_steps + learning_s / updates * first.updates
    first_s = first.phases["acting"] + first.phases["learning"]
    weights = watch.learner.weights()
    return {
        "workload": work.name,
        "env_steps": env_steps,
        # They are part of `env_steps`, and so of the speed.
        "reset_rows": env_steps - (end.learned - begin.learned),
        "wall_s": wall_s,
        "env_steps_per_s": env_steps / wall_s,
        "updates": updates,
        "trained_samples": updates * work.update_rows,
        "parameters": sum(x.numel() for k, x in weights.items() if k.startswith("network/")),
        "precision": config.runtime.precision,
        "compile_s": max(0.0, first_s - usual_s) if config.runtime.compile == "on" else 0.0,
        "us_per_env_step": us,
        "threads": config.runtime.threads,
        "streams_per_group": config.env.streams_per_group,
        "kind": config.runtime.kind,
        "num_workers": config.runtime.num_workers,
    }


def in_words(record: dict[str, Any]) -> str:
    speed, limit = record["env_steps_per_s"], record["limit_env_steps_per_s"]
    ours, bare = record["us_per_env_step"], record["limit_us_per_env_step"]
    compiled = f", compiled in {record['compile_s']:.1f} s" if record["compile_s"] else ""
    parts = {"stepping": "env", "acting": "act", "learning": "update", "replay": "", "other": ""}
    rows = [
        f"  {phase:9}{ours[phase]:9.2f} us per env_step"
        + (f", bare {bare[part]:.2f}" if part else "")
        for phase, part in parts.items()
        if part or ours[phase]
    ]
    return "\n".join(
        [
            f"{record['workload']}: {speed:,.0f} env_steps/s, {speed / limit:.0%} of the "
            f"{limit:,.0f} that its bare parts allow ({record['precision']}{compiled}); "
            f"{record['reset_rows'] / record['env_steps']:.1%} of the env_steps are rows in which "
            "environments reset themselves",
            *rows,
        ]
    )
