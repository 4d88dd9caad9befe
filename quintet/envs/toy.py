"""Small environments whose optimum is known: for tests, for examples, and for a first doubt.

Name them as ``"quintet.envs.toy:EndlessPay"``, with their arguments in ``env.kwargs``.
"""

from collections.abc import Sequence
from typing import Any, Literal, final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Ending = Literal["terminate", "truncate"]
Info = dict[str, Any]


@final
class EndlessPay(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Pays 1 per step and is cut off after `n` steps; every observation is the same.

    The task has no end, so every state is worth ``1 / (1 - gamma)``. A learner that takes the
    truncation for an end learns less.
    """

    def __init__(self, n: int = 10) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._n = n
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[NDArray[np.float32], Info]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return np.ones(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, Info]:  # noqa: ARG002
        self._step += 1
        return np.ones(1, np.float32), 1.0, False, self._step >= self._n, {}


@final
class FinitePay(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Pays 1 per step and ends after `n` steps.

    With ``observe="fraction"`` (of the episode that is over) the state before step ``k``, from 0,
    is worth ``(1 - gamma**(n - k)) / (1 - gamma)``; with ``"constant"`` all states look the same.
    """

    def __init__(self, n: int = 10, observe: Literal["constant", "fraction"] = "fraction") -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._n = n
        self._observe = observe
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[NDArray[np.float32], Info]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, Info]:  # noqa: ARG002
        self._step += 1
        return self._obs(), 1.0, self._step >= self._n, False, {}

    def _obs(self) -> NDArray[np.float32]:
        fraction = self._step / self._n if self._observe == "fraction" else 1.0
        return np.array([fraction], np.float32)


@final
class Scripted(gymnasium.Env[NDArray[np.int64], np.int64]):
    """Says where it is: the observation is ``[seed, episode, step, last action]``, int64.

    Episode ``e`` has ``lengths[e % len]`` steps and ends as ``endings[e % len]``. Step ``s`` of it
    pays ``100 e + s``. The last action is -1 at a reset.
    """

    def __init__(
        self, lengths: Sequence[int] = (3, 2), endings: Sequence[Ending] = ("terminate", "truncate")
    ) -> None:
        self.observation_space = spaces.Box(-1, 2**31, (4,), np.int64)
        self.action_space = spaces.Discrete(5)
        self._lengths = tuple(lengths)
        self._endings = tuple(endings)
        self._seed = self._step = 0
        self._episode = -1

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[NDArray[np.int64], Info]:
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._seed, self._episode = seed, -1
        self._episode += 1
        self._step = 0
        return self._obs(-1), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.int64], float, bool, bool, Info]:
        self._step += 1
        over = self._step >= self._lengths[self._episode % len(self._lengths)]
        terminates = self._endings[self._episode % len(self._endings)] == "terminate"
        reward = float(100 * self._episode + self._step)
        return self._obs(int(action)), reward, over and terminates, over and not terminates, {}

    def _obs(self, action: int) -> NDArray[np.int64]:
        return np.array([self._seed, self._episode, self._step, action], np.int64)


@final
class Contextual(gymnasium.Env[NDArray[np.float32], np.int64]):
    """A contextual bandit: one-hot context ``c``, reward 1 for action ``c % num_actions``, else 0.

    Contexts are drawn anew at every step; the episode ends after `length` steps. The best return is
    `length`, a random policy's ``length / num_actions``. One context makes it a plain bandit.
    """

    def __init__(self, num_contexts: int = 3, num_actions: int = 3, length: int = 10) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (num_contexts,), np.float32)
        self.action_space = spaces.Discrete(num_actions)
        self._num_contexts, self._num_actions, self._length = num_contexts, num_actions, length
        self._context = self._step = 0

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[NDArray[np.float32], Info]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, Info]:
        reward = float(action == self._context % self._num_actions)
        self._step += 1
        return self._draw(), reward, self._step >= self._length, False, {}

    def _draw(self) -> NDArray[np.float32]:
        self._context = int(self.np_random.integers(self._num_contexts))
        one_hot = np.zeros(self._num_contexts, np.float32)
        one_hot[self._context] = 1.0
        return one_hot


@final
class Target(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Continuous actions in [-1, 1] with reward ``-sum((a - o / 2)**2)``: ``a = o / 2`` gets 0.

    Observations are uniform in [-1, 1], drawn anew at every step; the episode ends after `length`.
    """

    def __init__(self, size: int = 1, length: int = 10) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self._size, self._length = size, length
        self._obs = np.zeros(size, np.float32)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: Info | None = None
    ) -> tuple[NDArray[np.float32], Info]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._draw(), {}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, Info]:
        reward = -float(np.sum((action - self._obs / 2) ** 2))
        self._step += 1
        return self._draw(), reward, self._step >= self._length, False, {}

    def _draw(self) -> NDArray[np.float32]:
        self._obs = self.np_random.uniform(-1, 1, self._size).astype(np.float32)
        return self._obs.copy()
