"""Environments that declare values by which they weigh their rewards."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 5


class Weighed(gymnasium.Env[Any, Any]):
    """Pays ``each`` for every step and ``right`` for the action 1; an episode is won by the action
    1 in its last step.
    """

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.reward_shaping = {"each": 1.0, "right": 0.0, "unused": 0.0}
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = self.reward_shaping["each"] + self.reward_shaping["right"] * int(action)
        obs, over = np.full(1, self.steps / LENGTH, np.float32), self.steps == LENGTH
        return obs, reward, over, False, {"won": bool(action)}


def make() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(Weighed(), 100)


def plain() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")
