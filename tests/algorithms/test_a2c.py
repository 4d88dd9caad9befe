"""A sixth learner, plain A2C, in one file: evidence that the seam is enough; its walk-through is
docs/adding-a-learner.md.  Mnih et al., arXiv 1602.01783: one gradient step per unroll."""

import shutil
from pathlib import Path

import pytest
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

import quintet
from quintet.algorithms import registry
from quintet.algorithms.parts.setup import Compute, Setup
from quintet.errors import NonFiniteError
from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig
from quintet.models.flat import flatten_in_place, strip_prefix
from quintet.models.heads import action_family
from quintet.ops import adam, reduce, returns, value_losses
from quintet.protocols import DataPlan
from quintet.types import (
    ACTION_MASK,
    ActOutput,
    LearnerState,
    Obs,
    Publication,
    Rollout,
    Spaces,
    State,
)
from quintet.types import TensorSpec as Spec


class A2CConfig(BaseModel):
    """Options of A2C."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    gamma: float = Field(0.98, ge=0, le=1, description="discount factor")
    unroll_steps: int = Field(8, ge=1, description="steps of each stream per update")
    value_coef: float = Field(0.5, ge=0, description="weight of 0.5 * error^2")
    entropy_coef: float = Field(0.01, ge=0, description="weight of the entropy bonus")
    learning_rate: float = Field(5e-3, gt=0, description="Adam's rate, falls linearly to 0")
    max_grad_norm: float = Field(0.5, gt=0, description="bound of the global gradient norm")


class A2CActor:
    """Samples; nothing but the action is needed to learn from it."""

    record_specs: dict[str, Spec] = {}

    def __init__(self, config: A2CConfig, model: ModelConfig, spaces: Spaces, compute: Compute):
        self.family = action_family(spaces.action, model.action_bounds)
        self.network = ActorCritic(spaces, self.family, model, None, compute.precision)

    @property
    def action_spec(self) -> Spec:
        return Spec(self.family.action_shape, self.family.action_dtype)

    @property
    def state_specs(self) -> dict[str, Spec]:
        return self.network.state_specs

    def load(self, publication: Publication) -> None:
        self.network.load_state_dict(strip_prefix(publication.tensors, "network"))

    def initial_state(self, num_streams: int) -> State:
        return self.network.initial_state(num_streams)

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        return self.family.draw_noise((steps, num_streams), generator)

    @torch.inference_mode()
    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        params, _, state = self.network(obs, state, is_first)
        if ACTION_MASK in obs:
            params = self.family.apply_mask(params, obs[ACTION_MASK])
        action = self.family.mode(params) if noise is None else self.family.sample(params, noise)
        return ActOutput(action, self.family.to_env(action), {}, state)


class A2CLearner:
    """One gradient step from every unroll of all streams."""

    def __init__(self, config: A2CConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup = config, setup
        self.family = action_family(spaces.action, model.action_bounds)
        generator = torch.Generator().manual_seed(setup.seeds[0])
        self.network = ActorCritic(spaces, self.family, model, generator, setup.compute.precision)
        self.theta = flatten_in_place([p for _, p in sorted(self.network.named_parameters())])
        self.exp_avg = torch.zeros_like(self.theta)
        self.exp_avg_sq = torch.zeros_like(self.theta)
        self.updates = self.version = 0

    @property
    def plan(self) -> DataPlan:
        steps = self.config.unroll_steps
        return DataPlan(steps, self.setup.num_streams, state_every=steps)

    def histograms(self) -> dict[str, Tensor]:
        return {}

    def publication(self) -> Publication:
        tensors = {f"network/{k}": v for k, v in self.network.state_dict().items()}
        return Publication(self.version, tensors)

    def update(self, batch: Rollout, env_steps: int) -> dict[str, float]:
        config, (steps, streams) = self.config, batch.reward.shape
        obs = {name: x.flatten(0, 1) for name, x in batch.obs.items()}
        start = {name: x[0] for name, x in batch.state.items()}
        params, values, _ = self.network(obs, start, batch.is_first.flatten())
        params, v = params.view(steps + 1, streams, -1)[:-1], values.view(steps + 1, streams)
        if ACTION_MASK in obs:  # as in acting, or what is learned from is not what was done
            params = self.family.apply_mask(params, batch.obs[ACTION_MASK][:-1])
        discount = config.gamma * (~batch.terminated).float()
        target = returns.n_step(batch.reward, discount, batch.not_cut_t, v[1:].detach(), n=None)
        advantage = target - v[:-1].detach()
        valid = batch.valid.float()
        policy = reduce.mean_valid(-self.family.log_prob(params, batch.action) * advantage, valid)
        value = reduce.mean_valid(value_losses.squared(v[:-1], target), valid)
        entropy = reduce.mean_valid(self.family.entropy(params), valid)
        total = policy + config.value_coef * value - config.entropy_coef * entropy
        if not torch.isfinite(total):
            raise NonFiniteError(f"a finite loss is required, got {total} at {self.updates}")
        self._descend(total, 1.0 - env_steps / self.setup.total_env_steps)
        return {
            "loss/total": total.item(),
            "loss/policy": policy.item(),
            "loss/value": value.item(),
            "policy/entropy": entropy.item(),
        }

    def _descend(self, loss: Tensor, left: float) -> None:
        named = sorted(self.network.named_parameters())
        gradients = torch.autograd.grad(loss, [p for _, p in named])
        grad = torch.cat([g.flatten() for g in gradients])
        grad, _ = adam.clip_norm(grad, self.config.max_grad_norm)
        self.updates = self.version = self.updates + 1
        correction, root_correction = adam.corrections(self.updates)
        adam.adam_(
            self.theta,
            grad,
            self.exp_avg,
            self.exp_avg_sq,
            step_size=torch.tensor(self.config.learning_rate * left / correction),
            root_correction=torch.tensor(root_correction),
            epsilon=1e-5,
        )

    def save(self) -> LearnerState:
        tensors = dict(self.publication().tensors)
        tensors |= {"optimizer/exp_avg": self.exp_avg, "optimizer/exp_avg_sq": self.exp_avg_sq}
        return LearnerState(tensors, {"updates": self.updates})

    def load(self, state: LearnerState) -> None:
        self.warm_start(Publication(0, state.tensors))
        self.exp_avg.copy_(state.tensors["optimizer/exp_avg"])
        self.exp_avg_sq.copy_(state.tensors["optimizer/exp_avg_sq"])
        self.updates = self.version = int(state.scalars["updates"] or 0)

    def warm_start(self, publication: Publication) -> None:
        self.network.load_state_dict(strip_prefix(publication.tensors, "network"))


A2C = registry.Algorithm(
    config=A2CConfig,
    check=lambda config, model, num_streams, total_env_steps: [],
    planned_updates=lambda config, num_streams, total_env_steps: 0,  # nothing is compiled
    make_learner=A2CLearner,
    make_actor=A2CActor,
)


@pytest.fixture
def a2c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.ALGORITHMS, "a2c", A2C)


OPTIONS = {"env.num_streams": 16, "env.streams_per_group": 8, "eval.episodes": 0}


def test_a2c_trains_cartpole(a2c: None, tmp_path: Path) -> None:
    config = OPTIONS | {"report.sinks": ["jsonl"]}
    result = quintet.train("a2c", "CartPole-v1", 100_000, 1, tmp_path / "run", config)
    scores = quintet.evaluate(quintet.load(tmp_path / "run"), episodes=20)
    assert scores.mean > 400, scores.returns
    assert result.metrics["env_steps"] == 100_000


def test_a2c_is_exact_over_a_resume(a2c: None, tmp_path: Path) -> None:
    """What the runtime promises it promises for every learner."""
    config = OPTIONS | {"checkpoint.interval_updates": 4, "checkpoint.max_cut_frac": 1.0}
    whole = quintet.train("a2c", "CartPole-v1", 2_048, 1, tmp_path / "run", config)
    for newer in sorted((tmp_path / "run" / "checkpoints").iterdir())[1:]:
        shutil.rmtree(newer)
    resumed = quintet.train("a2c", "CartPole-v1", 2_048, 1, tmp_path / "run", config)
    a, b = (r.policy.publication.tensors for r in (whole, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)
