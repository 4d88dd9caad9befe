"""Learners and batches for the tests of IMPALA: small, fixed, and most without environments."""

from dataclasses import replace
from typing import Any

import torch
from ppo_helpers import DISCRETE, SMALL, TOTAL, learn, make_rollout
from torch import Tensor

from quintet.algorithms.impala.config import ImpalaConfig, Knobs
from quintet.algorithms.impala.learner import ImpalaLearner, make_actor
from quintet.algorithms.parts.off_policy_statistics import Terms
from quintet.algorithms.parts.setup import ALONE, Compute, Setup
from quintet.algorithms.parts.unrolls import Unrolls
from quintet.envs.env_source import MakeEnv
from quintet.envs.public import make_vector_env
from quintet.models.config import ModelConfig, resolve_model
from quintet.observe.timing import PhaseTimer
from quintet.protocols import Ranks
from quintet.runtime.batch import select
from quintet.runtime.sampler import SerialSampling
from quintet.types import Rollout, Spaces

STEPS, COLUMNS = 16, 4


def make_learner(
    config: ImpalaConfig,
    spaces: Spaces = DISCRETE,
    model: ModelConfig = SMALL,
    total: int = TOTAL,
    compiled: bool = False,
    ranks: Ranks = ALONE,
) -> ImpalaLearner:
    setup = Setup(4, total, (1, 2), torch.device("cpu"), Compute(compile=compiled), ranks)
    return ImpalaLearner(config, resolve_model(model, spaces), spaces, setup)


def make_batch(
    learner: ImpalaLearner, spaces: Spaces = DISCRETE, steps: int = STEPS, seed: int = 1
) -> Rollout:
    """A batch of noise, acted by other weights, from states as far from zero as any."""
    batch = make_rollout(spaces, steps, COLUMNS, seed)
    g = torch.Generator().manual_seed(seed)
    state = {
        name: torch.randn((2, COLUMNS, *spec.shape), generator=g)
        for name, spec in learner.network.state_specs.items()
    }
    return replace(batch, record={"logp_mu": batch.record["logp_mu"]}, state=state)


def loss_and_gradient(learner: ImpalaLearner, batch: Rollout) -> tuple[Tensor, Tensor]:
    """Of the weights that the learner has."""
    knobs = Knobs(*map(torch.tensor, learner.knobs(learner.config.entropy_coef)))
    loss, _ = learner.loss(learner.trained.parameters, learner._unrolls(batch), knobs)
    parameters = [*learner.trained.parameters.values()]
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return loss.detach(), torch.cat([g.flatten() for g in gradients])


def terms_of(learner: ImpalaLearner, batch: Rollout) -> Terms:
    """The values behind the loss of the weights that the learner has."""
    knobs = Knobs(*map(torch.tensor, learner.knobs(learner.config.entropy_coef)))
    return learner.loss(learner.trained.parameters, learner._unrolls(batch), knobs)[1].terms


def unrolls(learner: ImpalaLearner, batch: Rollout, **other: Any) -> Unrolls:
    given = learner._unrolls(batch)
    record = {"logp_mu": other.pop("logp_mu", given.record["logp_mu"])}
    return replace(given, record=record, **other)


def train(
    config: ImpalaConfig,
    env: str | MakeEnv,
    updates: int,
    kwargs: dict[str, Any] | None = None,
    model: ModelConfig = SMALL,
    streams: int = 4,
    groups: int = 1,
) -> tuple[ImpalaLearner, list[dict[str, float]], list[Rollout]]:
    """Collects and learns on real environments; returns metrics and batch of each update."""
    envs = [
        make_vector_env(env, streams // groups, backend="gymnasium", kwargs=kwargs)
        for _ in range(groups)
    ]
    spaces = envs[0].spaces
    learner = make_learner(config, spaces, model)
    sampling = SerialSampling(
        envs,
        lambda: make_actor(config, resolve_model(model, spaces), spaces),
        learner.plan,
        3,
        PhaseTimer(),
    )
    sampling.publish(learner.publication())
    sampling.restart(0)
    metrics, batches = [], []
    for _ in range(updates):
        rollout = sampling.collect(10**9).rollout
        # A copy: its memory is written anew by the next unroll.
        rollout = select(rollout, torch.arange(config.batch_unrolls))
        metrics.append(learn(learner, rollout, 0))
        sampling.publish(learner.publication())
        batches.append(rollout)
    for group in sampling.groups:
        group.env.close()
    return learner, metrics, batches
