"""Environments whose errors and output are of any length and command a terminal."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

COMMANDS = "\x1b[2J\x1b]0;title\x07 over\rwritten \x9b2J\u202e"
TEXTS = {"large": "x" * 5_000_000, "commands": COMMANDS}


class TenSteps(gymnasium.Env[Any, Any]):
    """Does something in the fifth of ten steps of an episode."""

    observation_space, action_space = spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2)
    steps = 0

    def in_step_five(self) -> None:
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 5:
            self.in_step_five()
        return self.np_random.random(2, dtype=np.float32), 0.0, self.steps == 10, False, {}


class Loud(TenSteps):
    """Raises, or prints, a text."""

    def __init__(self, text: str, prints: bool = False) -> None:
        self.text, self.prints = TEXTS[text], prints

    def in_step_five(self) -> None:
        if not self.prints:
            raise ValueError(self.text)
        print(self.text, flush=True)
