"""Toys that only tests use, beside those of `quintet.envs.toy`."""

from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

from quintet.envs.toy import Floats, Info, Reset, Step


@final
class EndlessPay(gymnasium.Env[Floats, np.int64]):
    """Pays 1 per step and is truncated after `n` steps; every observation is the same.

    The task has no end, so every state has the value ``1 / (1 - gamma)``. A learner that treats the
    truncation as a termination learns less.
    """

    def __init__(self, n: int = 10) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._n = n
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Reset:
        super().reset(seed=seed, options=options)
        self._step = 0
        return np.ones(1, np.float32), {}

    def step(self, action: np.int64) -> Step:
        self._step += 1
        return np.ones(1, np.float32), 1.0, False, self._step >= self._n, {}


@final
class ChooseAndAim(gymnasium.Env[Floats, Any]):
    """Actions of two kinds at once, ``(choice, aim)``, Tuple(Discrete(3), Box(-1, 1, (1,))).

    The observation is a one-hot context ``c`` of three and a number ``o`` in [-1, 1], redrawn at
    every step; the reward is 1 if ``choice`` is ``c``, else 0, minus ``(aim - o / 2)**2``.  The
    episode ends after `length` steps; the best return is `length`.
    """

    def __init__(self, length: int = 10) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Tuple(
            [spaces.Discrete(3), spaces.Box(-1.0, 1.0, (1,), np.float32)]
        )
        self._length = length
        self._step = self._context = 0
        self._number = 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Reset:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._draw(), {}

    def step(self, action: tuple[np.int64, Floats]) -> Step:
        choice, aim = action
        reward = float(choice == self._context) - (float(aim[0]) - self._number / 2) ** 2
        self._step += 1
        return self._draw(), reward, self._step >= self._length, False, {}

    def _draw(self) -> Floats:
        self._context = int(self.np_random.integers(3))
        self._number = float(self.np_random.uniform(-1.0, 1.0))
        obs = np.zeros(4, np.float32)
        obs[self._context] = 1.0
        obs[3] = self._number
        return obs
