"""A sixth learner, plain A2C, in one file: evidence that the seam is enough; its walk-through is
docs/adding-a-learner.md.  Mnih et al., arXiv 1602.01783: one gradient step per unroll."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.func import functional_call

import quintet
from quintet.algorithms import registry
from quintet.algorithms.parts.acting import SamplingActor, make_family, make_network, masked
from quintet.algorithms.parts.options import Knob
from quintet.algorithms.parts.setup import Compute, Setup
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import Parameters, Trained, knobs_of
from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig
from quintet.models.normalize import ObservationNormalizer
from quintet.ops import policy_losses, reduce, returns, schedules, value_losses
from quintet.protocols import DataPlan
from quintet.types import LearnerState, Publication, Rollout, Spaces


class A2CConfig(BaseModel):
    """Options of A2C."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    gamma: float = Field(0.98, ge=0, le=1, description="discount factor")
    unroll_steps: int = Field(8, ge=1, description="steps of each stream per update")
    value_coef: float = Field(0.5, ge=0, description="weight of 0.5 * error^2")
    entropy_coef: float = Field(0.01, ge=0, description="weight of the entropy bonus")
    learning_rate: float = Field(5e-3, gt=0, description="Adam's rate, falls linearly to 0")
    adam_epsilon: float = Field(1e-5, gt=0, description="in Adam's denominator")
    max_grad_norm: float = Field(0.5, gt=0, description="bound of the global gradient norm")


class Knobs(NamedTuple):
    """What the loss is made with."""

    gamma: Knob
    value_coef: Knob
    entropy_coef: Knob


def make_actor(
    config: A2CConfig, model: ModelConfig, spaces: Spaces, compute: Compute
) -> SamplingActor:
    """Samples; nothing but the action is needed to learn from it."""
    network = make_network(model, spaces, compute)
    return SamplingActor(network, ObservationNormalizer({}, 1.0, 1.0), (), compute)


class A2CLearner:
    """One gradient step from every unroll of all streams."""

    def __init__(self, config: A2CConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup = config, setup
        self.family = make_family(model, spaces)
        generator = torch.Generator().manual_seed(setup.seeds[0])
        network = ActorCritic(spaces, self.family, model, generator, setup.compute.precision)
        self.network = network.to(setup.device)
        self.trained: Trained[Rollout, Knobs] = Trained(self.network, self._loss, Knobs, setup)

    @property
    def plan(self) -> DataPlan:
        steps = self.config.unroll_steps
        return DataPlan(steps, self.setup.num_streams, state_every=steps)

    @property
    def updates(self) -> int:
        return self.trained.steps

    version = updates

    def update(self, batch: Rollout, env_steps: int) -> None:
        left = schedules.linear(env_steps, self.setup.total_env_steps)
        descent = self.trained.descent(self.config.learning_rate * left, self.config)
        self.trained.step(batch, knobs_of(Knobs, self.config), descent)
        self.trained.fold()

    def _loss(
        self, parameters: Parameters, batch: Rollout, knobs: Knobs
    ) -> tuple[Tensor, Statistics]:
        steps, streams = batch.reward.shape
        obs = {name: x.flatten(0, 1) for name, x in batch.obs.items()}
        start = {name: x[0] for name, x in batch.state.items()}
        inputs = (obs, start, batch.is_first.flatten())
        params, values, _ = functional_call(self.network, parameters, inputs)
        params, v = masked(self.family, params, obs), values.view(steps + 1, streams)
        params = params.view(steps + 1, streams, -1)[:-1]
        discount = knobs.gamma * (~batch.terminated).float()
        target = returns.n_step(batch.reward, discount, batch.not_cut_t, v[1:].detach(), n=None)
        advantage = target - v[:-1].detach()
        logp = self.family.log_prob(params, batch.action)
        policy = reduce.mean_valid(policy_losses.log_prob(logp, advantage), batch.valid)
        value = reduce.mean_valid(value_losses.squared(v[:-1], target), batch.valid)
        entropy = reduce.mean_valid(self.family.entropy(params), batch.valid)
        total = policy + knobs.value_coef * value - knobs.entropy_coef * entropy
        told = {"loss/policy": policy, "loss/value": value, "policy/entropy": entropy}
        return total, Statistics(told | {"loss/total": total})

    def metrics(self) -> dict[str, float]:
        return self.trained.interval.read()

    def histograms(self) -> dict[str, Tensor]:
        return {}

    def publication(self) -> Publication:
        return Publication(self.version, self.trained.published())

    def weights(self) -> dict[str, Tensor]:
        return self.trained.weights()

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        self.trained.load_weights(weights)

    def save(self) -> LearnerState:
        return LearnerState(self.trained.save(), {"updates": self.updates})

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        updates = int(state.scalars["updates"] or 0) if counters else self.updates
        self.trained.load(state.tensors, updates)


A2C = registry.Algorithm(
    config=A2CConfig,
    check=lambda config, model, num_streams, total_env_steps: [],
    planned_updates=lambda config, num_streams, total_env_steps: 0,  # nothing is compiled
    make_learner=A2CLearner,
    make_actor=make_actor,
)


@pytest.fixture
def a2c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.LEARNERS.loaded, "a2c", A2C)


OPTIONS = {"env.num_streams": 16, "env.streams_per_group": 8, "eval.episodes": 0}


@pytest.mark.slow
def test_a2c_trains_cartpole(a2c: None, tmp_path: Path) -> None:
    config = OPTIONS | {"report.sinks": ["jsonl"]}
    result = quintet.train("a2c", "CartPole-v1", 100_000, 1, tmp_path / "run", config)
    scores = quintet.evaluate(quintet.load(tmp_path / "run"), episodes=20)
    assert scores.mean > 400, scores.returns
    assert result.metrics["env_steps"] == 100_000
