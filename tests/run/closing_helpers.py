"""An environment that closes files of its process, as careless code does."""

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Closing(gymnasium.Env[Any, Any]):
    """Closes the files from a number to another, in its maker or in a step, in one process of a
    kind.
    """

    observation_space, action_space = spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, first: int, end: int, process: str = "", made: bool = False) -> None:
        self.files, self.process, self.steps = (first, end), process, 0
        if made:
            self.shut()

    def shut(self) -> None:
        name = Path("/proc/self/comm").read_text()
        if name.startswith(self.process):
            os.closerange(*self.files)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 5:
            self.shut()
        return self.np_random.random(2, dtype=np.float32), 0.0, self.steps == 10, False, {}
