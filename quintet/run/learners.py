"""From a resolved configuration to the learners of a run and its policies."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from pydantic import BaseModel

from quintet.algorithms import registry
from quintet.algorithms.parts.setup import ALONE, Setup
from quintet.config.run import RunConfig
from quintet.config.runtime import RuntimeConfig
from quintet.errors import ConfigError
from quintet.protocols import Learner, Ranks
from quintet.run.folder import RunFolder
from quintet.run.policy_folder import PolicyFolder
from quintet.run.policy_run import PolicyRun
from quintet.runtime.parallel.learners import LearnerCrew, Learners
from quintet.runtime.seeds import Role, generator_seed
from quintet.runtime.slots import RowSpecs
from quintet.types import Spaces


def make_learner(
    config: RunConfig, spaces: Spaces, ranks: Ranks = ALONE, policy: int = 0
) -> Learner:
    """The learner of a resolved configuration; of several the one that `ranks` is of.

    policy: whose learner it is, where several share the streams.
    """
    seeds = tuple(
        generator_seed(config.seed, Role.LEARNER, 2 * policy + index) for index in range(2)
    )
    setup = Setup(
        config.env.num_streams,
        config.total_env_steps,
        (seeds[0], seeds[1]),
        torch.device(_devices(config.runtime)[ranks.index]),
        config.runtime.compute,
        ranks,
    )
    return registry.find(config.algo).make_learner(config.learner, config.model, spaces, setup)


def _devices(runtime: RuntimeConfig) -> tuple[str, ...]:
    """Where each learner computes."""
    if runtime.num_learners == 1 or runtime.device == "cpu":
        return (runtime.device,) * runtime.num_learners
    return tuple(f"{runtime.device}:{index}" for index in range(runtime.num_learners))


def make_learners(config: RunConfig, spaces: Spaces) -> Learners:
    """The learners of a resolved configuration that share every batch."""
    runtime = config.runtime
    assert runtime.threads is not None
    compute = replace(runtime.compute, compile=False)  # only to see what it records
    actor = registry.find(config.algo).make_actor(config.learner, config.model, spaces, compute)
    crew = LearnerCrew(
        make_learner=partial(make_learner, config, spaces),
        devices=_devices(runtime),
        rows=RowSpecs.of(spaces, actor),
        threads=runtime.threads,
        timeout_s=runtime.learner_timeout_s,
        exact=runtime.exact,
    )
    return Learners(crew)


def make_policies(
    config: RunConfig, further: Sequence[BaseModel], spaces: Spaces, folder: RunFolder
) -> list[PolicyRun]:
    """The policies of a run, with their learners.

    Raises:
        ConfigError: they can't share the streams.
    """
    options = (config.learner, *further)
    if further and config.runtime.num_learners > 1:
        raise ConfigError(
            f"{len(options)} policies require runtime.num_learners=1, got "
            f"{config.runtime.num_learners}; leave it out, or train one policy"
        )
    policies = []
    for index, learner_options in enumerate(options):
        own = config.model_copy(update={"learner": learner_options})
        learner = (
            make_learner(own, spaces, policy=index)
            if config.runtime.num_learners == 1
            else make_learners(own, spaces)
        )
        place = PolicyFolder(folder, index, len(options))
        policies.append(PolicyRun(learner, own, spaces, place))
    if further:
        _require_alike([policy.learner for policy in policies])
    return policies


def _require_alike(learners: Sequence[Learner]) -> None:
    """Refuses policies that can't share the streams."""
    first = learners[0]
    if first.plan.replay is not None:
        raise ConfigError(
            f"{len(learners)} policies require a learner without replay, got one that learns from "
            "old data; train one policy"
        )
    for index, learner in enumerate(learners[1:], start=1):
        shapes, own = (
            {name: x.shape for name, x in each.publication().tensors.items()}
            for each in (learner, first)
        )
        if learner.plan != first.plan or shapes != own:
            raise ConfigError(
                f"policies that share streams require the same data and the same network, policy "
                f"{index} has others than policy 0; give it other rates and coefficients alone"
            )


def several(policies: Sequence[PolicyRun]) -> list[Learners]:
    """Of the policies' learners those that are several, each in a process of its own."""
    return [each.learner for each in policies if isinstance(each.learner, Learners)]
