"""Makes the learners and the policies of a run from a resolved configuration."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from quintet.algorithms import registry
from quintet.algorithms.parts.setup import ALONE, Setup
from quintet.options.run import RunConfig
from quintet.options.runtime import RuntimeConfig
from quintet.protocols import Learner, Ranks
from quintet.run.folder import RunFolder
from quintet.run.policy_folder import PolicyFolder
from quintet.run.policy_run import PolicyRun
from quintet.run.sampling import row_specs
from quintet.runtime.seed_tree import Role, generator_seed
from quintet.runtime.torch_settings import OwnTorch
from quintet.types import Spaces

if TYPE_CHECKING:
    from quintet.runtime.parallel.learners import Learners


@OwnTorch()
def make_learner(
    config: RunConfig, spaces: Spaces, ranks: Ranks = ALONE, policy: int = 0
) -> Learner:
    """The learner of policy `policy`; with several learners, one rank's."""
    seeds = tuple(
        generator_seed(config.seed, Role.LEARNER, 2 * policy + index) for index in range(2)
    )
    setup = Setup(
        config.env.num_streams,
        config.total_env_steps,
        (seeds[0], seeds[1]),
        torch.device(_devices(config.runtime, policy)[ranks.index]),
        config.runtime.compute,
        ranks,
    )
    return registry.find(config.algo).make_learner(config.learner, config.model, spaces, setup)


def _devices(runtime: RuntimeConfig, policy: int = 0) -> tuple[str, ...]:
    """Devices of a policy's learners: several have a GPU each, policies take turns, from the
    current GPU on."""
    device, count = runtime.device, runtime.num_learners
    if count > 1 and device != "cpu":
        return tuple(f"{device}:{index}" for index in range(count))
    gpus = torch.cuda.device_count() if device == "cuda" else 1
    if gpus < 2:
        return (device,) * count
    return (f"{device}:{(torch.cuda.current_device() + policy) % gpus}",) * count


def batch_device(runtime: RuntimeConfig, policy: int) -> torch.device:
    """Device of a learner's batches; several learners move their columns to their own devices."""
    return torch.device("cpu" if runtime.num_learners > 1 else _devices(runtime, policy)[0])


@OwnTorch()
def make_learners(config: RunConfig, spaces: Spaces) -> "Learners":
    """The learners of a resolved configuration that share every batch."""
    from quintet.runtime.parallel.learners import Learners, LearnersSpec

    runtime = config.runtime
    assert runtime.threads is not None
    spec = LearnersSpec(
        make_learner=partial(make_learner, config, spaces),
        devices=_devices(runtime),
        rows=row_specs(config, spaces),
        threads=runtime.threads,
        timeout_s=runtime.learner_timeout_s,
        gpu=runtime.gpu_math,
    )
    return Learners(spec)


def make_policies(config: RunConfig, spaces: Spaces, folder: RunFolder) -> list[PolicyRun]:
    """The policies of a run."""
    runtime, count = config.runtime, config.population.size
    policies = []
    for index in range(count):
        learner: Learner
        if runtime.num_learners == 1:
            learner = make_learner(config, spaces, policy=index)
        else:
            learner = make_learners(config, spaces)
        own = PolicyFolder(folder, index, count)
        policies.append(PolicyRun(learner, config, spaces, own, batch_device(runtime, index)))
    return policies


def several(policies: Sequence[PolicyRun]) -> "list[Learners]":
    """The policies' learners that have other processes."""
    found = [each.learner for each in policies if each.config.runtime.num_learners > 1]
    return cast("list[Learners]", found)
