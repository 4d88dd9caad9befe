"""Measures the speed that the bare parts of a workload allow on this machine.

The parts are stepping with random actions, the policy's forward at the acting batch, and one
gradient update.  Each is measured alone, without quintet's code around it, in its best variant,
with one thread or all.  Training is faster than this only if it makes a part faster or overlaps
parts.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import torch

from fixed_work import environments
from fixed_work.bare import CPU, observations
from fixed_work.work import Work
from quintet.models.precision import Precision, autocast
from quintet.system.cpus import usable_cores
from quintet.types import Spaces

SECONDS = 1.5
"""Seconds for which each variant is measured."""


@final
@dataclass(frozen=True)
class Limits:
    """Microseconds per env_step of each part in its best variant; core-microseconds if `cores` work
    on all parts at once.
    """

    env_us: float
    act_us: float
    update_us: float
    cores: int = 1

    @property
    def env_steps_per_s(self) -> float:
        """Speed if the parts run one after the other, or all at once on all cores, without
        overhead."""
        return self.cores * 1e6 / (self.env_us + self.act_us + self.update_us)


def measure(
    work: Work,
    spaces: Spaces,
    precision: Precision,
    updates_per_step: float,
    compiled: bool,
    overlapped: bool = False,
) -> Limits:
    """Measures the parts; takes about ten seconds, and half a minute more to compile.

    precision: precision of training.
    updates_per_step: optimizer steps per env_step in the measured run.
    compiled: whether there is a C++ compiler.
    overlapped: whether the parts run side by side, in processes, so that core time counts.
    """
    threads = sorted({1, usable_cores()})
    updates = [False, True] if compiled else [False]

    def cost(seconds: Callable[[int], float]) -> float:
        return 1e6 * min(seconds(n) * (n if overlapped else 1) for n in threads)

    before = torch.get_num_threads()
    try:
        return Limits(
            env_us=cost(lambda n: _in_child(_env_s, work, n)),
            act_us=cost(lambda n: _act_s(work, spaces, precision, n)),
            update_us=updates_per_step
            * min(
                cost(lambda n, c=c: _update_s(work, spaces, precision, n, c))  # type: ignore[misc]
                for c in updates
            ),
            cores=usable_cores() if overlapped else 1,
        )
    finally:
        torch.set_num_threads(before)


def _in_child(function: Callable[..., float], *arguments: Any) -> float:
    """The result of a call in a new process, without other threads or warm caches."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def _seconds_per_call(function: Callable[[], object], rounds: int = 3) -> float:
    """Median over rounds of the mean seconds of a call."""
    for _ in range(3):
        function()
    times = []
    for _ in range(rounds):
        begin, calls = time.perf_counter(), 0
        while (spent := time.perf_counter() - begin) < SECONDS / rounds or calls < 2:
            function()
            calls += 1
        times.append(spent / calls)
    return sorted(times)[rounds // 2]


def _env_s(work: Work, cores: int) -> float:
    """Seconds per env_step of bare environments on `cores` cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    step = environments.STEPS[work.env_backend](work.env_id, work.num_envs, cores)
    return _seconds_per_call(step) / work.num_envs


def _act_s(work: Work, spaces: Spaces, precision: Precision, threads: int) -> float:
    """Seconds per env_step of the network's forward with all environments as one batch."""
    torch.set_num_threads(threads)
    forward, obs = work.acting(spaces), observations(work, spaces, work.num_envs)
    with torch.inference_mode(), autocast(precision, CPU):
        return _seconds_per_call(lambda: forward(obs)) / work.num_envs


def _update_s(
    work: Work, spaces: Spaces, precision: Precision, threads: int, compiled: bool
) -> float:
    """Seconds of one optimizer step."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    return _seconds_per_call(work.update(spaces, precision, compiled))
