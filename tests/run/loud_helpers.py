"""Environments whose errors and output are of any length and command a terminal."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

COMMANDS = "\x1b[2J\x1b]0;title\x07 over\rwritten \x9b2J\u202e"
TEXTS = {"large": "x" * 5_000_000, "commands": COMMANDS}


class Loud(gymnasium.Env[Any, Any]):
    """Raises, or prints, a text in every fifth step of an episode."""

    observation_space, action_space = spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, text: str, prints: bool = False) -> None:
        self.text, self.prints, self.steps = TEXTS[text], prints, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 5 and self.prints:
            print(self.text, flush=True)
        elif self.steps == 5:
            raise ValueError(self.text)
        return self.np_random.random(2, dtype=np.float32), 0.0, self.steps == 10, False, {}
