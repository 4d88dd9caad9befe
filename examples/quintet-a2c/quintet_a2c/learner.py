"""The learner and the actor of A2C."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.parts.acting import SamplingActor, make_family, make_network, masked
from quintet.algorithms.parts.options import Knob
from quintet.algorithms.parts.setup import Compute, Setup
from quintet.algorithms.parts.statistics import plain
from quintet.algorithms.parts.trained import Parameters, Trained, knobs_of
from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig
from quintet.ops import policy_losses, reduce, schedules, value_losses
from quintet.ops.vtrace import vtrace
from quintet.protocols import DataPlan, ReplayPlan
from quintet.types import LearnerState, Publication, Rollout, Spaces
from quintet_a2c import A2CConfig


class Knobs(NamedTuple):
    """Options of the loss."""

    gamma: Knob
    value_coef: Knob
    entropy_coef: Knob


def make_actor(_: A2CConfig, model: ModelConfig, spaces: Spaces, compute: Compute) -> SamplingActor:
    return SamplingActor(make_network(model, spaces, compute), None, ("logp_mu",), compute)


class A2CLearner:
    def __init__(self, config: A2CConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup = config, setup
        self.family = make_family(model, spaces)
        generator = torch.Generator().manual_seed(setup.seeds[0])
        network = ActorCritic(spaces, self.family, model, generator, setup.compute.precision)
        self.network = network.to(setup.device)
        self.trained = Trained(self.network, self.loss, plain, Knobs, setup)
        self.metrics = self.trained.interval.read
        self.weights, self.warm_start = self.trained.weights, self.trained.load_weights

    @property
    def plan(self) -> DataPlan:
        steps, streams = self.config.unroll_steps, self.setup.num_streams
        rate = self.config.replay_ratio
        drawn = ReplayPlan("sequences", 100 * steps * streams, steps, streams, "poisson", rate)
        return DataPlan(steps, streams, state_every=steps, replay=drawn if rate else None)

    @property
    def updates(self) -> int:
        return self.trained.steps

    version = updates

    def update(self, batch: Rollout, env_steps: int) -> None:
        left = schedules.linear(env_steps, self.setup.total_env_steps)
        options = self.trained.step_options(self.config.learning_rate * left, self.config)
        self.trained.step(batch, knobs_of(Knobs, self.config), options)
        self.trained.fold()

    def loss(
        self, parameters: Parameters, batch: Rollout, knobs: Knobs
    ) -> tuple[Tensor, dict[str, Tensor]]:
        (steps, streams), valid = batch.valid.shape, batch.valid
        obs = {name: x.flatten(0, 1) for name, x in batch.obs.items()}
        inputs = (obs, {name: x[0] for name, x in batch.state.items()}, batch.is_first.flatten())
        params, values, _ = functional_call(self.network, parameters, inputs)
        params = masked(self.family, params, obs).view(steps + 1, streams, -1)[:-1]
        v = values.view(steps + 1, streams)
        logp = self.family.log_prob(params, batch.action)
        log_rho = torch.where(valid, logp.detach() - batch.record["logp_mu"], 0.0)
        target, advantage = vtrace(
            v[:-1].detach(), v[1:].detach(), batch.reward, knobs.gamma * ~batch.terminated,
            batch.not_cut_t, log_rho.exp(), rho_bar=1.0, c_bar=1.0, pg_rho_bar=1.0, lambda_=1.0,
        )  # fmt: skip
        policy = reduce.mean_valid(policy_losses.log_prob(logp, advantage), valid)
        value = reduce.mean_valid(value_losses.squared(v[:-1], target), valid)
        entropy = reduce.mean_valid(self.family.entropy(params), valid)
        total = policy + knobs.value_coef * value - knobs.entropy_coef * entropy
        outputs = {"loss/policy": policy, "loss/value": value, "policy/entropy": entropy}
        return total, outputs | {"loss/total": total}

    def histograms(self) -> dict[str, Tensor]:
        return {}

    def publication(self) -> Publication:
        return Publication(self.version, self.trained.published())

    def save(self) -> LearnerState:
        return LearnerState(self.trained.save(), {"updates": self.updates})

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        updates = int(state.scalars["updates"] or 0) if counters else self.updates
        self.trained.load(state.tensors, updates)

    def configure(self, options: A2CConfig) -> None:
        self.config = options
