"""The facts of a run for the dashboard's advice on speed."""

import torch

from quintet.algorithms import registry
from quintet.config.machine import has_compiler, worth_compiling
from quintet.config.run import RunConfig
from quintet.envs.ids import faster_backend
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import EnvDescription
from quintet.models.config import uses_pictures
from quintet.observe.advice import RunFacts
from quintet.protocols import DataPlan
from quintet.system.cpus import usable_cores
from quintet.types import Spaces


def facts_of(
    config: RunConfig,
    plan: DataPlan,
    spaces: Spaces,
    env: EnvDescription,
    resolved: ResolvedEnv,
    callback: bool,
) -> RunFacts:
    """The facts of a resolved configuration on this machine.

    resolved: the environment that `env` describes; callback: whether reports go to user code.
    """
    runtime, batch_steps = config.runtime, plan.unroll_steps * plan.columns_per_batch
    pictures = uses_pictures(config.model, spaces)
    size = config.env.num_streams // config.env.num_groups
    worth = worth_compiling(config, config.model, spaces, runtime.device)
    return RunFacts(
        env=env.id,
        source=resolved.kind,
        single_only=config.env.mask_from_info
        or (resolved.backend.in_python and not resolved.backend.single),
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
        compiler=not worth or has_compiler(),  # which takes a moment
        batch_steps=batch_steps,
        update=registry.find(config.algo).advice(config.learner, config.model, batch_steps),
        kind=runtime.kind,
        num_workers=runtime.num_workers or 0,
        num_learners=runtime.num_learners,
        lag=runtime.lag,
        inference=runtime.inference,
        inference_batch_max=runtime.inference_batch_max,
        actor_threads=runtime.actor_threads or 1,
        eval_episodes=config.eval.episodes,
        report_interval_s=1.0 if config.report.interval_s == "auto" else config.report.interval_s,
        sinks=bool(config.report.sinks),
        callback=callback,
    )
