"""The fixed work of PPO and APPO, and their update in plain torch."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self, final

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.func import functional_call

from fixed_work.bare import (
    CPU,
    BareActorCritic,
    Named,
    action_size,
    adam,
    in_channels_last,
    observations,
    update_of,
)
from fixed_work.work import Count, Work
from quintet.models.precision import Precision, autocast
from quintet.types import Spaces

Rows = tuple[Tensor, ...]
"""Observation, action, advantage, return, log-probability."""


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
        """The run options of this workload, with a constant learning rate."""
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


@final
class PPOWork(OnPolicyWork):
    """Work of PPO."""

    algo: Literal["ppo"]

    def options(self) -> dict[str, Any]:
        return super().options() | {
            "normalize_advantage": "minibatch",
            "reward_normalizer": "none",
            "clip_epsilon": self.clip,
        }


@final
class APPOWork(OnPolicyWork):
    """Work of APPO; its minibatches are whole rollouts."""

    algo: Literal["appo"]

    @model_validator(mode="after")
    def _minibatches_are_whole_rollouts(self) -> Self:
        if self.minibatch % self.rollout:
            raise ValueError(
                f"minibatch must be of whole rollouts of {self.rollout}, got {self.minibatch}"
            )
        return self

    def options(self) -> dict[str, Any]:
        return super().options() | {
            "runtime.kind": "async",
            "use_vtrace": False,
            "clip_epsilon": self.clip,
            "value_clip": None,
        }
