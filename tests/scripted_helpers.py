"""An environment that shows its position."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class Scripted(gymnasium.Env[NDArray[np.int64], np.int64]):
    """Shows its position: the observation is ``[seed, episode, step, last action]``, int64.

    Episode ``e`` has ``lengths[e % len]`` steps and ends as ``endings[e % len]``. Step ``s`` of it
    pays ``100 e + s``. The last action is -1 at a reset.
    """

    def __init__(
        self, lengths: Sequence[int] = (3, 2), endings: Sequence[str] = ("terminate", "truncate")
    ) -> None:
        self.observation_space = spaces.Box(-1, 2**31, (4,), np.int64)
        self.action_space = spaces.Discrete(5)
        self._lengths = tuple(lengths)
        self._endings = tuple(endings)
        self._seed = self._step = 0
        self._episode = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._seed, self._episode = seed, -1
        self._episode += 1
        self._step = 0
        return self._obs(-1), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        self._step += 1
        over = self._step >= self._lengths[self._episode % len(self._lengths)]
        terminates = self._endings[self._episode % len(self._endings)] == "terminate"
        reward = float(100 * self._episode + self._step)
        return self._obs(int(action)), reward, over and terminates, over and not terminates, {}

    def _obs(self, action: int) -> NDArray[np.int64]:
        return np.array([self._seed, self._episode, self._step, action], np.int64)
