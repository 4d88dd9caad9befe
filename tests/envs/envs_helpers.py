"""What several environment tests need: a recorder and some small or broken environments."""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from quintet.envs.vector import VectorEnv, allocate_row


@dataclass(frozen=True)
class Record:
    """Rows of a run; obs has one row more, the first."""

    obs: dict[str, np.ndarray]
    reward: np.ndarray
    raw_reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    valid: np.ndarray

    def as_bytes(self) -> bytes:
        arrays = [*self.obs.values(), self.reward, self.raw_reward]
        return b"".join(x.tobytes() for x in (*arrays, self.terminated, self.truncated, self.valid))


def record(env: VectorEnv, seeds: list[int], actions: np.ndarray) -> Record:
    """Restarts and takes `actions` [T, B, ...]."""
    row = allocate_row(env.spaces.observation, env.num_streams)
    # Old contents must not shine through.
    for leaf in row.obs.values():
        leaf[...] = 77
    env.restart(seeds, row.obs)
    obs = {path: [leaf.copy()] for path, leaf in row.obs.items()}
    names = ("reward", "raw_reward", "terminated", "truncated", "valid")
    rest: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for action in actions:
        for name in names:
            getattr(row, name)[:] = 1
        env.send(action)
        env.recv(row)
        for path, leaf in row.obs.items():
            obs[path].append(leaf.copy())
        for name in names:
            rest[name].append(getattr(row, name).copy())
    return Record(
        {path: np.stack(rows) for path, rows in obs.items()},
        **{name: np.stack(rows) for name, rows in rest.items()},
    )


class Custom(gymnasium.Env):
    """Gives whatever observations and actions its arguments say; remembers what it was handed."""

    def __init__(
        self,
        observation_space: spaces.Space,
        observation: Any,
        action_space: spaces.Space | None = None,
        raise_at: int | None = None,
        wrong_at: int | None = None,
        wrong: Any = None,
        reward: Any = 0.0,
        terminated: bool = False,
        truncated: bool = False,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.observation, self.raise_at = observation, raise_at
        self.wrong_at, self.wrong, self.reward = wrong_at, wrong, reward
        self.flags = (terminated, truncated)
        self.count = 0
        self.actions: list[Any] = []
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.count = 0
        return self.observation, {}

    def step(self, action):
        self.count += 1
        self.actions.append(action)
        if self.count == self.raise_at:
            raise ValueError("the floor gave way")
        obs = self.wrong if self.count == self.wrong_at else self.observation
        return obs, self.reward, *self.flags, {}

    def close(self):
        self.closed = True


def make_box_env(size: int = 3) -> Custom:
    """Found by an import string."""
    return Custom(spaces.Box(-1.0, 1.0, (size,), np.float64), np.full(size, 0.5))


not_callable = 3
