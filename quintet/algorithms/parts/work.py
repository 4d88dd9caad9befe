"""The fixed work on which `quintet bench` measures the speed of a learner."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor, nn
from torch.func import functional_call

from quintet.algorithms.parts.bare import (
    CPU,
    BareActorCritic,
    Named,
    action_size,
    adam,
    in_channels_last,
    observations,
    update_of,
)
from quintet.envs.backends import BACKENDS
from quintet.models.precision import Precision, autocast
from quintet.types import Spaces

Count = Annotated[int, Field(ge=1)]

_NATURE = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]


class Work(BaseModel):
    """Work of one learner: environment, network, learning rate, and times; and the same work in
    plain torch, whose speed is the limit for training.

    algo: the learner.
    learning_starts: transitions before the first update from replay; the measurement begins after
        them.
    warmup_seconds: least time before the measurement; seconds: its length.
    """

    # Entries for other programs are ignored.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    tables: ClassVar[Path]
    """The TOML file of the learner's workloads, by name."""

    name: str
    algo: str
    env_backend: str
    env_id: str
    num_envs: Count
    obs: Literal["vector", "image"]
    conv: list[tuple[int, int, int]] | None = None
    hidden: tuple[Count, ...]
    activation: Literal["tanh", "relu"]
    learning_rate: float
    gamma: float
    learning_starts: int = Field(0, ge=0)
    warmup_seconds: float = Field(gt=0)
    seconds: float = Field(gt=0)

    @field_validator("env_backend")
    @classmethod
    def _backend_can_be_measured(cls, name: str) -> str:
        able = [known for known, one in BACKENDS.usable() if one.bare_step is not None]
        if name not in able:
            raise ValueError(f"must be {' or '.join(able)}, got {name!r}")
        return name

    @model_validator(mode="after")
    def _convolutions_are_nature_s(self) -> Self:
        if self.obs == "image" and self.conv != _NATURE:
            raise ValueError(f"conv must be {_NATURE}, got {self.conv}")
        return self

    @property
    @abstractmethod
    def update_rows(self) -> int:
        """Transitions per optimizer step."""

    def options(self) -> dict[str, Any]:
        """Options of a run with exactly this work: no normalisers."""
        return {
            "preset": "none",
            # Never reached; `seconds` ends the run.
            "total_env_steps": 10**12,
            "env.id": self.env_id,
            "env.backend": self.env_backend,
            "env.num_streams": self.num_envs,
            "model.encoder": "nature_cnn" if self.obs == "image" else "mlp",
            "model.policy_hidden": self.hidden,
            "model.activation": self.activation,
            "normalize_observations": False,
            "gamma": self.gamma,
        }

    @abstractmethod
    def acting(self, spaces: Spaces) -> Callable[[Tensor], object]:
        """The bare policy's forward on observations of all environments."""

    @abstractmethod
    def update(self, spaces: Spaces, precision: Precision, compiled: bool) -> Callable[[], object]:
        """One bare optimizer step on random rows."""


REPLAY_UNROLL_STEPS = 8
"""env_steps of a stream between two rounds of updates from replay."""

Rows = tuple[Tensor, ...]
"""Observation, action, advantage, return, log-probability."""


class ReplayWork(Work):
    """Work of learners that learn from replay after every step of their actors.

    minibatch: transitions per optimizer step.
    updates_per_step: updates per env_step, each one step of all networks and of their targets.
    tau: fraction by which the targets then move.
    buffer_size: transitions kept.
    """

    obs: Literal["vector"]
    optimizer: Literal["adam"]
    adam_eps: float
    minibatch: Count
    updates_per_step: float = Field(gt=0)
    tau: float
    buffer_size: Count
    learning_starts: Count

    @property
    def update_rows(self) -> int:
        return self.minibatch

    def options(self) -> dict[str, Any]:
        return super().options() | {
            "adam_epsilon": self.adam_eps,
            "unroll_steps": REPLAY_UNROLL_STEPS,
            "batch_size": self.minibatch,
            "updates_per_env_step": self.updates_per_step,
            "replay_capacity_steps": self.buffer_size,
            "replay_start_steps": self.learning_starts,
            "actor_lr": self.learning_rate,
            "critic_lr": self.learning_rate,
            "tau": self.tau,
        }


class OnPolicyWork(Work):
    """Work of learners that clip the ratio to the policy that acted.

    minibatch: transitions per optimizer step.
    value_coef: weight of the squared error (quintet's loss has half of it).
    rollout: env_steps of each environment per iteration.
    """

    optimizer: Literal["adam"]
    adam_eps: float
    minibatch: Count
    rollout: Count
    epochs: Count
    shared_torso: bool
    gae_lambda: float
    clip: float
    value_coef: float
    entropy_coef: float
    max_grad_norm: float

    @property
    def update_rows(self) -> int:
        return self.minibatch

    def options(self) -> dict[str, Any]:
        """No decay of the learning rate."""
        return super().options() | {
            "adam_epsilon": self.adam_eps,
            "model.shared_torso": self.shared_torso,
            "unroll_steps": self.rollout,
            "minibatch_steps": self.minibatch,
            "num_epochs": self.epochs,
            "gae_lambda": self.gae_lambda,
            "value_coef": 2.0 * self.value_coef,
            "entropy_coef": self.entropy_coef,
            "learning_rate": self.learning_rate,
            "lr_schedule": "constant",
            "max_grad_norm": self.max_grad_norm,
        }

    def acting(self, spaces: Spaces) -> Callable[[Tensor], object]:
        return in_channels_last(BareActorCritic(self, spaces, self.shared_torso))

    def update(self, spaces: Spaces, precision: Precision, compiled: bool) -> Callable[[], object]:
        network = in_channels_last(BareActorCritic(self, spaces, self.shared_torso))
        loss = partial(self.loss, network, precision, self.batch(spaces, self.minibatch))
        rule = partial(adam, rate=self.learning_rate, epsilon=self.adam_eps)
        return update_of(network, loss, rule, compiled, self.max_grad_norm)

    def batch(self, spaces: Spaces, rows: int) -> Rows:
        """Random rows."""
        obs = observations(self, spaces, rows)
        size = action_size(spaces)
        discrete = not spaces.action.shape
        action = torch.randint(0, size, (rows,)) if discrete else torch.randn(rows, size)
        logp = torch.full((rows,), -0.7 if discrete else -8.0)
        return obs, action, torch.randn(rows), torch.randn(rows), logp

    def loss(
        self, network: nn.Module, precision: Precision, data: Rows, parameters: Named
    ) -> Tensor:
        """PPO's loss in its shortest form."""
        obs, action, advantage, target, logp_mu = data
        with autocast(precision, CPU):
            policy, value = functional_call(network, parameters, (obs,))
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
        clipped = rho.clamp(1 - self.clip, 1 + self.clip)
        loss = -torch.min(rho * advantage, clipped * advantage).mean()
        error = (value - target).square().mean()
        return torch.add(loss + self.value_coef * error, entropy, alpha=-self.entropy_coef)
