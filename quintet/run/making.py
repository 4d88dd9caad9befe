"""The cost of making a run's environments, as a number of env_steps.

It is measured once, when the run begins, and is part of its resolved configuration: later no clock
decides when environments are made again.
"""

import math
from contextlib import closing, suppress
from statistics import median
from time import perf_counter

from quintet.checkpoint import RESTARTS_FRAC
from quintet.config.run import RunConfig
from quintet.envs.env_source import can_be_made_again
from quintet.envs.make import make_group_env
from quintet.envs.resolved import ResolvedEnv
from quintet.errors import QuintetError
from quintet.run.sampling import Source
from quintet.system.core_time import own_delay_s
from quintet.system.files import same_folder
from quintet.system.signals import interrupts_for_us_alone

_FREE_S = 0.1  # for each stream, within which making is free: MuJoCo took 0.02 to 0.08 s
_LEAST_STEP_S = 20e-6  # that acting and learning add to an env_step
_ROWS, _ROWS_S = 100, 1.0  # stepped to measure a step; seconds after which no further one is


def unhindered_s() -> float:
    """A clock that stops while this thread waits for a core."""
    return perf_counter() - own_delay_s()


def with_restart_cost(config: RunConfig, source: Source, opened_s: float) -> RunConfig:
    """The configuration with ``checkpoint.restart_env_steps`` resolved.

    opened_s: seconds for making the environments of `source`.
    """
    if config.checkpoint.restart_env_steps != "auto":
        return config
    steps = _restart_env_steps(config, source, opened_s)
    return config.changed("checkpoint", {"restart_env_steps": steps})


def _restart_env_steps(config: RunConfig, source: Source, opened_s: float) -> int:
    """env_steps that a run makes while all its streams restart once; 0: making counts as free."""
    env, runtime = source.env, config.runtime
    made_anew = env.backend.in_python and can_be_made_again(env.source)
    if runtime.kind == "async" or not made_anew:
        return 0
    make_s = opened_s / sum(group.num_streams for group in source.envs)
    if make_s < _FREE_S:
        return 0
    size = config.env.streams_per_group
    alone = size if size and env.kind == "group maker" else env.streams_of(1)
    trial_s, step_s = _trial(env, alone)
    # The first environment of a process may have imported what makes it.
    make_s = min(make_s, trial_s)
    if make_s < _FREE_S:
        return 0
    asked = config.env.num_processes if runtime.kind == "serial" else runtime.num_workers
    processes = min(asked or 1, config.env.num_streams)
    restart_s = config.env.num_streams * make_s / processes
    return coarse(restart_s / (step_s / processes + _LEAST_STEP_S))


def coarse(steps: float) -> int:
    """The nearest power of 4, so that two measurements rarely differ."""
    return int(4 ** round(math.log(max(steps, 1.0), 4)))


def _trial(env: ResolvedEnv, num_streams: int) -> tuple[float, float]:
    """Seconds to make a stream, and of one env_step by random actions; infinity and 0 where no
    further environments can be made, or they fail: the run itself says why.
    """
    from quintet.uniform import random_rows

    make_s, step_s = math.inf, 0.0
    with suppress(QuintetError), interrupts_for_us_alone(), same_folder():
        begin = unhindered_s()
        with closing(make_group_env(env, num_streams)) as made:
            make_s = (unhindered_s() - begin) / num_streams
            seconds: list[float] = []
            for row in random_rows(made, _ROWS, seed=0):
                seconds += [row.seconds] if row.number else []  # not of the reset
                # Most rows are stepped without another process coming between.
                step_s = median(seconds or [0.0]) / num_streams
                if sum(seconds) > _ROWS_S:
                    break
    return make_s, step_s


def restarts_told(config: RunConfig, interval: int, exact_interval: int, total: int) -> str | None:
    """A sentence if the cost of making environments makes exact checkpoints rare or impossible.

    interval, exact_interval, total: iterations between checkpoints and exact ones, and in all.
    """
    steps = config.checkpoint.restart_env_steps
    if steps == "auto" or exact_interval <= interval:
        return None
    cost = (
        "an exact checkpoint makes all environments again, which takes as long as about "
        f"{steps:,} env_steps (checkpoint.restart_env_steps), and this may take "
        f"{100 * RESTARTS_FRAC:g}% of the run's {config.total_env_steps:,}"
    )
    if exact_interval >= total:
        return f"this run can be resumed, but not with the same bytes: {cost}"
    return f"exact checkpoints are at least {exact_interval:,} iterations apart: {cost}"
