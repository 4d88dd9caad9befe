"""Runs in environments whose tensors stay on their device."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from quintet.algorithms.parts.setup import Compute
from quintet.envs.tensor import TensorVectorEnv
from quintet.envs.tensors_as_arrays import same_device, tensors_of
from quintet.envs.vector import VectorEnv
from quintet.errors import ConfigError
from quintet.observe.timing import PhaseTimer
from quintet.options.machine import FOR_TENSORS, host_needed, in_one_process
from quintet.options.resolve import Loaded
from quintet.options.run import RunConfig
from quintet.protocols import DataPlan
from quintet.runtime.sampler import GroupSampler, RowsOnGpu
from quintet.runtime.slots import Slot


def in_this_process(loaded: Loaded, env: VectorEnv) -> Loaded:
    """The configuration with the kind serial, if it is free and tensors could stay on their device;
    else the same object.
    """
    if tensors_of(env) is None:
        return loaded
    sources = dict(loaded.sources)
    config = in_one_process(loaded.config, sources)
    return loaded if config is loaded.config else replace(loaded, config=config, sources=sources)


def on_their_device(loaded: Loaded, env: VectorEnv) -> Loaded:
    """The configuration with the learner on the device of the environment's tensors, if they stay
    there; raises ConfigError if it names another one.
    """
    tensors = tensors_of(env)
    if tensors is None or host_needed(loaded.config):
        return loaded
    runtime = loaded.config.runtime
    given: dict[str, str] = {}
    if runtime.device == "auto":
        given["device"] = str(tensors.device)
    elif not same_device(torch.device(runtime.device), tensors.device):
        raise ConfigError(
            f"runtime.device must be {tensors.device}, where the tensors of {loaded.env.config.id} "
            f"are, got {runtime.device}: leave it out, or make the environment there"
        )
    if tensors.device.type == "cuda":
        if runtime.inference not in ("auto", "device"):
            raise ConfigError(
                f"runtime.inference must be device where tensors stay on {tensors.device}, got "
                f"{runtime.inference}: leave it out"
            )
        given["inference"] = "device"
    sources = {f"runtime.{name}": FOR_TENSORS for name in given}
    config = loaded.config.changed("runtime", given)
    return replace(loaded, config=config, sources=loaded.sources | sources)


def staying(config: RunConfig, env: VectorEnv, plan: DataPlan) -> TensorVectorEnv | None:
    """The environments, if their tensors stay on their device in this run."""
    if host_needed(config) or plan.replay is not None:
        return None
    return tensors_of(env)


def through_host(config: RunConfig, env: VectorEnv, plan: DataPlan) -> str:
    """The reason why tensors pass through the host at every step; "": they don't."""
    if tensors_of(env) is None or staying(config, env, plan) is not None:
        return ""
    return host_needed(config) or f"{config.algo}, which keeps a replay"


def on_gpu(
    env: TensorVectorEnv, plan: DataPlan, compute: Compute
) -> tuple[Compute, Callable[[GroupSampler, Slot, PhaseTimer], RowsOnGpu]]:
    """Precision and graphs of actors where rows stay on a GPU, and what makes these rows."""
    from quintet.runtime.device_rows import DeviceRows, may_record

    whole = compute.graph and may_record(env, plan)  # then the unroll's graph contains the act
    compute = replace(compute, act_on=str(env.device), graph=compute.graph and not whole)
    return compute, partial(DeviceRows, env=env, graph=whole)
