"""Measures the speed that the bare parts of a workload allow on this machine.

The parts are stepping with random actions, the policy's forward at the acting batch, and one
gradient update.  Each is measured by itself, without quintet's code around it, in its best variant,
with one thread or all.  Training is faster only if it makes a part itself faster or hides one
behind another.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from quintet.bench import bare_acer, bare_ddpg
from quintet.bench.bare_adam import BareAdam
from quintet.bench.bare_networks import (
    BareActorCritic,
    action_size,
    in_channels_last,
    observations,
)
from quintet.bench.workloads import ACERWork, OnPolicyWork, ReplayWork, Workload
from quintet.envs.envpool_library import load_opengl
from quintet.models.precision import Precision, autocast
from quintet.system.cpus import usable_cores
from quintet.types import Spaces

CPU = torch.device("cpu")

SECONDS = 1.5
"""Seconds for which each variant is measured."""


@final
@dataclass(frozen=True)
class Limits:
    """Microseconds per env_step of each part in its best variant; core-microseconds where `cores`
    work on all parts at once.
    """

    env_us: float
    act_us: float
    update_us: float
    cores: int = 1

    @property
    def env_steps_per_s(self) -> float:
        """Speed of the parts one after the other, or all at once on all cores; no overhead."""
        return self.cores * 1e6 / (self.env_us + self.act_us + self.update_us)


def measure(
    work: Workload,
    spaces: Spaces,
    precision: Precision,
    updates_per_step: float,
    compiled: bool,
    overlapped: bool = False,
) -> Limits:
    """Measures the parts; takes about ten seconds, and half a minute more to compile.

    precision: that of training.
    updates_per_step: optimizer steps for each env_step, those that were made.
    compiled: whether there is a C++ compiler.
    overlapped: whether the parts run side by side, in processes, so that the time of cores counts.
    """
    threads = sorted({1, usable_cores()})
    updates = [False, True] if compiled else [False]

    def cost(seconds: Callable[[int], float]) -> float:
        return 1e6 * min(seconds(n) * (n if overlapped else 1) for n in threads)

    env_s = _python_env_s if work.env_backend == "gymnasium" else _env_s
    before = torch.get_num_threads()
    try:
        return Limits(
            env_us=cost(lambda n: _in_child(env_s, work, n)),
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


def _env_s(work: Workload, cores: int) -> float:
    """Seconds per env_step of a bare pool with as many threads as cores."""
    load_opengl()
    import envpool

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    pool = envpool.make_gymnasium(work.env_id, num_envs=work.num_envs, num_threads=cores)
    actions = np.array([pool.action_space.sample() for _ in range(work.num_envs)])
    if actions.dtype.kind == "i":
        actions = actions.astype(np.int32)
    pool.reset()
    return _seconds_per_call(lambda: pool.step(actions)) / work.num_envs


def _python_env_s(work: Workload, _: int) -> float:
    """Seconds per env_step of one bare environment in a plain loop, on one core."""
    env: Any = gymnasium.make(work.env_id)
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(64)]

    def step() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return _seconds_per_call(step) / len(actions)


def _act_s(work: Workload, spaces: Spaces, precision: Precision, threads: int) -> float:
    """Seconds per env_step of the network's forward with all environments as one batch."""
    torch.set_num_threads(threads)
    forward: Callable[[Tensor], object]
    if isinstance(work, ReplayWork):
        forward = bare_ddpg.BareNetworks(work, spaces).policy
    else:
        network = in_channels_last(BareActorCritic(work, spaces))
        forward = network.act if isinstance(work, ACERWork) else network
    obs = observations(work, spaces, work.num_envs)
    with torch.inference_mode(), autocast(precision, CPU):
        return _seconds_per_call(lambda: forward(obs)) / work.num_envs


def _update_s(
    work: Workload, spaces: Spaces, precision: Precision, threads: int, compiled: bool
) -> float:
    """Seconds of one optimizer step."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if isinstance(work, ReplayWork):
        make = bare_ddpg.compiled_update if compiled else bare_ddpg.eager_update
        networks = bare_ddpg.BareNetworks(work, spaces)
        return _seconds_per_call(make(work, networks, precision, bare_ddpg.batch(work, spaces)))
    network = in_channels_last(BareActorCritic(work, spaces))
    if isinstance(work, ACERWork):
        step = bare_acer.compiled_update if compiled else bare_acer.eager_update
        return _seconds_per_call(step(work, network, precision, bare_acer.batch(work, spaces)))
    data = _batch(work, spaces, work.minibatch)
    update = (_compiled_update if compiled else _eager_update)(work, network, precision, data)
    return _seconds_per_call(update)


def _batch(work: OnPolicyWork, spaces: Spaces, rows: int) -> tuple[Tensor, ...]:
    """Observation, action, advantage, return, log-probability of random rows."""
    obs = observations(work, spaces, rows)
    size = action_size(spaces)
    discrete = not spaces.action.shape
    action = torch.randint(0, size, (rows,)) if discrete else torch.randn(rows, size)
    logp = torch.full((rows,), -0.7 if discrete else -8.0)
    return obs, action, torch.randn(rows), torch.randn(rows), logp


def _loss(
    work: OnPolicyWork, network: nn.Module, precision: Precision, parameters: Mapping[str, Tensor],
    data: tuple[Tensor, ...],
) -> Tensor:  # fmt: skip
    """PPO's loss in its shortest form."""
    obs, action, advantage, target, logp_mu = data
    with autocast(precision, CPU):
        policy, value = functional_call(network, dict(parameters), (obs,))
    policy, value = policy.float(), value.float()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    if "log_std" in parameters:
        log_std = parameters["log_std"]
        error = (action - policy) / log_std.exp()
        logp = (-0.5 * error**2 - log_std - 0.9189385).sum(-1)
        entropy = (log_std + 1.4189385).sum()
    else:
        log_p = policy.log_softmax(-1)
        logp = log_p.gather(-1, action[:, None]).squeeze(-1)
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
    rho = (logp - logp_mu).exp()
    clipped = rho.clamp(1 - work.clip, 1 + work.clip)
    loss = -torch.min(rho * advantage, clipped * advantage).mean()
    error = (value - target).square().mean()
    return torch.add(loss + work.value_coef * error, entropy, alpha=-work.entropy_coef)


def _eager_update(
    work: OnPolicyWork, network: nn.Module, precision: Precision, data: tuple[Tensor, ...]
) -> Callable[[], None]:
    parameters = dict(network.named_parameters())
    adam = torch.optim.Adam(
        network.parameters(), lr=work.learning_rate, eps=work.adam_eps, fused=True
    )

    def update() -> None:
        adam.zero_grad()
        torch.autograd.backward(_loss(work, network, precision, parameters, data))
        nn.utils.clip_grad_norm_(network.parameters(), work.max_grad_norm)
        adam.step()

    return update


def _compiled_update(
    work: OnPolicyWork, network: nn.Module, precision: Precision, data: tuple[Tensor, ...]
) -> Callable[[], None]:
    """Gradient, clipping and Adam as one graph."""
    keep = torch.preserve_format
    parameters = {k: p.detach().clone(memory_format=keep) for k, p in network.named_parameters()}
    adam = BareAdam(parameters, work.learning_rate, work.adam_eps)
    loss = partial(_loss, work, network, precision)

    def update() -> None:
        grads = torch.func.grad(loss)(parameters, data)
        norm = torch.stack([g.square().sum() for g in grads.values()]).sum().sqrt()
        adam.step(grads, (work.max_grad_norm / (norm + 1e-6)).clamp_max(1.0))

    torch._dynamo.reset()
    compiled: Callable[[], None] = torch.compile(update, fullgraph=True)
    return compiled
