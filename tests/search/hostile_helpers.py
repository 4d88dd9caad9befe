"""Environments that make a budget of minutes hard to keep."""

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Hostile(gymnasium.Env[Any, Any]):
    """Sleeps when it is made, reset, closed, first stepped, and in steps after some of them."""

    observation_space, action_space = spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2)

    def __init__(
        self, making: float = 0.0, reset: float = 0.0, first: float = 0.0, closing: float = 0.0,
        step: float = 0.0, after: int = 0, length: int = 50,
    ) -> None:  # fmt: skip
        time.sleep(making)
        self.pauses, self.first, self.closing = (reset, step), first, closing
        self.after, self.length, self.lived, self.steps = after, length, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        time.sleep(self.pauses[0])
        self.steps = 0
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps, self.lived = self.steps + 1, self.lived + 1
        time.sleep(self.first if self.lived == 1 else 0.0)
        time.sleep(self.pauses[1] if self.lived > self.after else 0.0)
        seen = self.np_random.random(2, dtype=np.float32)
        return seen, float(action), self.steps >= self.length, False, {}

    def close(self) -> None:
        time.sleep(self.closing)
