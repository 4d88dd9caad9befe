"""Small environments whose optimum is known, for tests, examples and first checks.

Name them as ``"quintet.envs.toy:FinitePay"``, with their arguments in ``env.kwargs``.
"""

from typing import Any, Literal, final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Info = dict[str, Any]
Floats = NDArray[np.float32]
Reset = tuple[Floats, Info]
Step = tuple[Floats, float, bool, bool, Info]


@final
class FinitePay(gymnasium.Env[Floats, np.int64]):
    """Pays 1 per step and ends after `n` steps.

    With ``observe="fraction"`` (of the steps made) the state before step ``k``, from 0, has the
    value ``(1 - gamma**(n - k)) / (1 - gamma)``; with ``"constant"`` all states look the same.
    """

    def __init__(self, n: int = 10, observe: Literal["constant", "fraction"] = "fraction") -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._n = n
        self._observe = observe
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Reset:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._obs(), {}

    def step(self, action: np.int64) -> Step:  # noqa: ARG002
        self._step += 1
        return self._obs(), 1.0, self._step >= self._n, False, {}

    def _obs(self) -> Floats:
        fraction = self._step / self._n if self._observe == "fraction" else 1.0
        return np.array([fraction], np.float32)


@final
class Contextual(gymnasium.Env[Floats, np.int64]):
    """A contextual bandit: one-hot context ``c``, reward 1 for action ``c % num_actions``, else 0.

    Contexts are redrawn at every step; the episode ends after `length` steps. The best return is
    `length`; a random policy's is ``length / num_actions``. One context makes it a plain bandit.
    """

    def __init__(self, num_contexts: int = 3, num_actions: int = 3, length: int = 10) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (num_contexts,), np.float32)
        self.action_space = spaces.Discrete(num_actions)
        self._num_contexts, self._num_actions, self._length = num_contexts, num_actions, length
        self._context = self._step = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Reset:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> Step:
        reward = float(action == self._context % self._num_actions)
        self._step += 1
        return self._draw(), reward, self._step >= self._length, False, {}

    def _draw(self) -> Floats:
        self._context = int(self.np_random.integers(self._num_contexts))
        one_hot = np.zeros(self._num_contexts, np.float32)
        one_hot[self._context] = 1.0
        return one_hot


@final
class Target(gymnasium.Env[Floats, Floats]):
    """Continuous actions in [-1, 1] with reward ``-sum((a - o / 2)**2)``: ``a = o / 2`` gets 0.

    Observations are uniform in [-1, 1], redrawn at every step; the episode ends after `length`.
    """

    def __init__(self, size: int = 1, length: int = 10) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (size,), np.float32)
        self._size, self._length = size, length
        self._obs = np.zeros(size, np.float32)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Reset:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._draw(), {}

    def step(self, action: Floats) -> Step:
        reward = -float(np.sum((action - self._obs / 2) ** 2))
        self._step += 1
        return self._draw(), reward, self._step >= self._length, False, {}

    def _draw(self) -> Floats:
        self._obs = self.np_random.uniform(-1, 1, self._size).astype(np.float32)
        return self._obs.copy()


@final
class MaskedDoors(gymnasium.Env[Info, np.int64]):
    """Five doors, one of which pays 1; the others pay 0, and a locked door must not be tried.

    If the bit ``side`` is 0, door number ``door`` (0, 1 or 2) pays, else door 3 if ``x`` is
    negative and door 4 if it is positive.  ``action_mask`` is 1 for unlocked doors; the door that
    pays is never locked.  Everything is redrawn at every step; the episode ends after `length`
    steps.  The best return is `length`; a random choice among unlocked doors gets 0.39 of it.

    `step` raises ValueError for a locked door.
    """

    def __init__(self, length: int = 10) -> None:
        self.observation_space = spaces.Dict(
            {
                "x": spaces.Box(-1.0, 1.0, (1,), np.float32),
                "door": spaces.Discrete(3),
                "side": spaces.MultiBinary(1),
                "action_mask": spaces.MultiBinary(5),
            }
        )
        self.action_space = spaces.Discrete(5)
        self._length = length
        self._step = self._pays = 0
        self._unlocked = np.ones(5, np.int8)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> tuple[Info, float, bool, bool, Info]:
        if not self._unlocked[action]:
            raise ValueError(f"door {action} is locked; the mask was {self._unlocked}")
        reward = float(action == self._pays)
        self._step += 1
        return self._draw(), reward, self._step >= self._length, False, {}

    def _draw(self) -> Info:
        door, side = int(self.np_random.integers(3)), int(self.np_random.integers(2))
        # Not near 0, where no network is exact.
        x = float(self.np_random.uniform(0.25, 1.0) * self.np_random.choice([-1.0, 1.0]))
        self._pays = (3 if x < 0 else 4) if side else door
        self._unlocked = self.np_random.integers(2, size=5).astype(np.int8)
        self._unlocked[self._pays] = 1
        return {
            "x": np.array([x], np.float32),
            "door": np.int64(door),
            "side": np.array([side], np.int8),
            "action_mask": self._unlocked.copy(),
        }


@final
class DotToTarget(gymnasium.Env[Any, Floats]):
    """A picture of a bright dot and its grey target; actions move the dot.

    Both lie in a square from -1 to 1 and are redrawn in each episode.  An action, in [-1, 1] in
    both directions, moves the dot by half its value, within the square.  The reward is minus the
    distance before the move, averaged over both directions, so an action improves only later
    rewards.  The episode is truncated after `length` steps.

    The best policy goes straight to the target and stays there: its return is `optimum`, on average
    -0.9; random actions get -6.3.

    With ``dot="numbers"`` the observation is a Dict: `picture`, which shows the target alone, and
    `dot`, its place in two numbers.
    """

    def __init__(self, length: int = 10, dot: Literal["picture", "numbers"] = "picture") -> None:
        picture = spaces.Box(0, 255, (36, 36), np.uint8)
        self.observation_space: spaces.Space[Any] = picture
        if dot == "numbers":
            place = spaces.Box(-1.0, 1.0, (2,), np.float32)
            self.observation_space = spaces.Dict({"picture": picture, "dot": place})
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._in_picture, self._length, self._step = dot == "picture", length, 0
        self._dot = self._target = np.zeros(2)

    @property
    def optimum(self) -> float:
        """The best possible sum of the episode's remaining rewards."""
        moves = np.arange(self._length - self._step)[:, None]
        left = np.abs(self._target - self._dot) - 0.5 * moves
        return -float(left.clip(0.0).mean(1).sum())

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed, options=options)
        self._step = 0
        self._dot, self._target = self.np_random.uniform(-0.9, 0.9, (2, 2))
        return self._obs(), {}

    def step(self, action: Floats) -> tuple[Any, float, bool, bool, Info]:
        reward = -float(np.abs(self._target - self._dot).mean())
        self._dot = np.clip(self._dot + 0.5 * action, -1.0, 1.0)
        self._step += 1
        return self._obs(), reward, False, self._step >= self._length, {}

    def _obs(self) -> Any:
        if not self._in_picture:
            dot = self._dot.astype(np.float32)
            return {"picture": _square(self._target, 100.0), "dot": dot}
        return np.maximum(_square(self._target, 100.0), _square(self._dot, 255.0))


def _square(place: NDArray[np.float64], brightness: float) -> NDArray[np.uint8]:
    """A picture ``[36, 36]``, black but for a square of 5 x 5 at `place`, with smooth edges."""
    centre = 17.5 + 15.0 * place[:, None]
    down, right = np.clip(3.0 - np.abs(np.arange(36) - centre), 0.0, 1.0)
    return (brightness * np.outer(down, right)).astype(np.uint8)


def cartpole_without_velocities() -> gymnasium.Env[Floats, np.int64]:
    """CartPole-v1 without velocities, a task for memory; the best return is 500, as with them."""
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    seen = [0, 2]
    box = env.observation_space
    assert isinstance(box, spaces.Box)
    shown = spaces.Box(box.low[seen], box.high[seen], dtype=np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[seen], shown)
