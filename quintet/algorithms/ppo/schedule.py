"""PPO's scheduled numbers, which change with the budget or with the policy's KL."""

from collections.abc import Mapping
from typing import Any, final

from quintet.algorithms.parts.schedule import find_decay
from quintet.algorithms.ppo.config import PPOConfig
from quintet.ops import policy_losses, schedules

_SAVED = ("learning_rate", "beta")

_METRICS = "told/"
"""Prefix of the last iteration's metrics in a saved state."""


@final
class Schedule:
    """The current learning rate, ratio clip and weight of the KL penalty.

    metrics: these numbers of the last iteration, by the metric's name.
    """

    def __init__(self, config: PPOConfig, total_env_steps: int):
        self.config, self.total_env_steps = config, total_env_steps
        self.learning_rate, self.clip_epsilon = config.learning_rate, config.clip_epsilon
        self.beta, self.decay = config.kl_coef_init, find_decay(config.lr_schedule)
        self.metrics = self._current()

    def _current(self) -> dict[str, float]:
        metrics = {"optim/learning_rate": self.learning_rate, "policy/kl_coef": self.beta}
        if self.clip_epsilon is not None:
            metrics["policy/clip_epsilon"] = self.clip_epsilon
        return metrics

    def configure(self, config: PPOConfig) -> None:
        """Takes new options; a KL-adaptive rate changes by the same factor as its option."""
        if config.lr_schedule == "kl_adaptive":
            factor = config.learning_rate / self.config.learning_rate
            self.learning_rate = schedules.within_bounds(self.learning_rate * factor)
        else:
            self.learning_rate = config.learning_rate
        self.config, self.clip_epsilon = config, config.clip_epsilon

    def begin(self, env_steps: int) -> None:
        """Sets the numbers of an iteration that begins after `env_steps`."""
        config = self.config
        left = schedules.linear(env_steps, self.total_env_steps)
        if config.lr_schedule != "kl_adaptive":
            self.learning_rate = config.learning_rate * self.decay(left)
        if config.clip_epsilon is not None:
            linear = config.clip_schedule == "linear"
            self.clip_epsilon = config.clip_epsilon * (left if linear else 1.0)
        self.metrics = self._current()

    def adapt(self, mean_kl: float) -> dict[str, float]:
        """Adapts the penalty's weight and the learning rate to the updated policy's KL; returns
        metrics."""
        config, metrics = self.config, {"policy/kl": mean_kl}
        if config.kl_coef_init > 0:
            before = self.beta
            self.beta = policy_losses.adaptive_kl_coef(
                before, mean_kl, target=config.kl_target, tolerance=config.kl_tolerance
            )
            metrics["policy/kl_coef_factor"] = self.beta / before
        if config.lr_schedule == "kl_adaptive":
            self.learning_rate = schedules.kl_adaptive_rate(
                self.learning_rate, mean_kl, config.kl_target
            )
        return metrics

    def save(self) -> dict[str, float]:
        metrics = {f"{_METRICS}{name}": x for name, x in self.metrics.items()}
        return {**{name: getattr(self, name) for name in _SAVED}, **metrics}

    def load(self, scalars: Mapping[str, Any]) -> None:
        for name in _SAVED:
            setattr(self, name, scalars[name])
        self.metrics = {name: scalars[f"{_METRICS}{name}"] for name in self.metrics}
