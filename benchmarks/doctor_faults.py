"""Small tasks with a fault in them, for `benchmarks/doctor.py`.

`make(task, fault)` makes one environment; without a fault it is sound.
"""

import time
from collections import deque
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from quintet.envs import toy

TASKS: dict[str, dict[str, Any]] = {
    # hidden: numbers that aliasing takes away; shuffled: the number that is mixed up; goal: scale
    # of the first number, for the hidden goal; limit: an own time limit.
    "CartPole-v1": {"hidden": [1, 3], "shuffled": 2, "goal": 0.1},
    "Acrobot-v1": {"hidden": [4, 5], "shuffled": 0, "goal": 1.0},
    "MountainCar-v0": {"hidden": [1], "shuffled": 0, "goal": 0.6},
    "MountainCarContinuous-v0": {"hidden": [1], "shuffled": 0, "goal": 0.6},
    "Pendulum-v1": {"hidden": [2], "shuffled": 0, "goal": 1.0},
    "InvertedPendulum-v5": {"hidden": [2, 3], "shuffled": 1, "goal": 0.2},
    "toy:Reach": {"hidden": [2, 3], "shuffled": 0, "goal": 1.0},
    "toy:Track": {"hidden": [1], "shuffled": 1, "goal": 1.0},
    "toy:Contextual": {"shuffled": 0},
    "toy:Target": {},
}


class Reach(gymnasium.Env[Any, Any]):
    """A point with a speed that is to be brought to 0 from a random place; 60 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (4,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.place = self.np_random.uniform(-1, 1, 2)
        self.speed, self.steps = np.zeros(2), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.speed = np.clip(0.9 * self.speed + 0.1 * np.asarray(action, float), -1, 1)
        self.place = np.clip(self.place + 0.2 * self.speed, -3, 3)
        self.steps += 1
        reward = -float(np.abs(self.place).sum())
        return self._obs(), reward, False, self.steps >= 60, {}

    def _obs(self) -> Any:
        return np.concatenate([self.place, self.speed]).astype(np.float32)


class Track(gymnasium.Env[Any, Any]):
    """A pointer that is to follow a slowly wandering mark by steps left, none, right; 80 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.mark, self.pointer = self.np_random.uniform(-1, 1, 2)
        self.drift, self.steps = self.np_random.normal(0, 0.05), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.pointer = float(np.clip(self.pointer + 0.1 * (int(action) - 1), -2, 2))
        self.drift = 0.95 * self.drift + self.np_random.normal(0, 0.01)
        self.mark = float(np.clip(self.mark + self.drift, -2, 2))
        self.steps += 1
        return self._obs(), 1.0 - abs(self.mark - self.pointer), False, self.steps >= 80, {}

    def _obs(self) -> Any:
        return np.array([self.mark, self.pointer, self.drift], np.float32)


def make(task: str, fault: str = "") -> gymnasium.Env[Any, Any]:
    """One environment of a task, with a fault."""
    own = {"Reach": Reach, "Track": Track}
    if task.startswith("toy:"):
        name = task.removeprefix("toy:")
        env = own[name]() if name in own else getattr(toy, name)()
    else:
        limit = {"max_episode_steps": -1} if fault == "never_ends" else {}
        env = gymnasium.make(task, disable_env_checker=True, **limit)
    return Faulty(env, task, fault) if fault else env


class Faulty(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment with one fault."""

    def __init__(self, env: Any, task: str, fault: str) -> None:
        super().__init__(env)
        self.fault, self.about = fault, TASKS[task]
        self.episodes = 0
        space = env.observation_space
        if fault == "aliased":
            kept = [i for i in range(space.shape[0]) if i not in self.about["hidden"]]
            self.kept = kept
            self.observation_space = spaces.Box(space.low[kept], space.high[kept], dtype=np.float32)
        if fault in ("scaled", "remembers", "unseeded"):
            self.observation_space = spaces.Box(-np.inf, np.inf, space.shape, np.float32)
        if fault == "saturated":
            act = env.action_space
            self.action_space = spaces.Box(100 * act.low, 100 * act.high, dtype=act.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        own = 0 if self.fault == "same_start" else seed
        obs, info = self.env.reset(seed=own, options=options)
        # A generator of its own, so that the task stays what it is; of the same seed alone it
        # would draw the very noise of the task.
        if seed is not None or self.episodes == 0:
            self.draws = np.random.default_rng(None if seed is None else [seed, 7_919])
        self.episodes += 1
        self.steps = 0
        act = self.env.action_space
        if isinstance(act, spaces.Discrete):
            self.order = self.draws.permutation(int(act.n))
        else:
            self.order = self.draws.choice([-1.0, 1.0], act.shape)
        self.goal = float(self.draws.uniform(-1, 1))
        self.owed: deque[float] = deque([0.0] * 40)
        self.before = obs
        return self._seen(obs, obs), info

    def step(self, action: Any) -> Any:
        act = self.env.action_space
        if self.fault == "ignored":
            act.seed(int(self.draws.integers(2**31)))
            action = act.sample()
        elif self.fault == "permuted":
            discrete = isinstance(act, spaces.Discrete)
            action = self.order[int(action)] if discrete else action * self.order
        elif self.fault == "saturated":
            action = np.clip(action, act.low, act.high)
        elif self.fault == "slow":
            time.sleep(0.03)
        before = self.before
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.before = obs
        self.steps += 1
        reward, terminated, truncated = self._ending(float(reward), terminated, truncated)
        reward = self._paid(obs, reward, terminated or truncated)
        return self._seen(obs, before), reward, terminated, truncated, info

    def _ending(self, reward: float, terminated: bool, truncated: bool) -> Any:
        if self.fault == "time_limit" and (truncated or self.steps >= 100):
            return reward, True, False
        if self.fault == "never_ends":
            return reward, False, False
        if self.fault == "at_once":
            return reward, True, False
        return reward, terminated, truncated

    def _paid(self, obs: Any, reward: float, over: bool) -> float:
        if self.fault == "sign":
            return -reward
        if self.fault == "tiny":
            return 1e-6 * reward
        if self.fault == "never_seen":
            return 0.0
        if self.fault == "noise":
            return reward + float(self.draws.normal(0.0, 5.0))
        if self.fault == "hidden_goal":
            return -abs(float(obs[0]) / self.about["goal"] - self.goal)
        if self.fault == "delayed":
            self.owed.append(reward)
            return sum(self.owed) if over else self.owed.popleft()
        return reward

    def _seen(self, obs: Any, before: Any) -> Any:
        if self.fault == "late":
            return before
        if self.fault == "aliased":
            return np.asarray(obs, np.float32)[self.kept]
        obs = np.array(obs, np.float32)
        if self.fault == "shuffled":
            # As if drawn from other times: what it was says nothing of what it is.
            obs[self.about["shuffled"]] = self.draws.normal(0.0, self.about.get("goal", 1.0))
        elif self.fault == "scaled":
            obs[-1] *= 1e6
        elif self.fault == "nan" and self.draws.random() < 1e-3:
            obs[0] = np.nan
        elif self.fault == "remembers":
            obs[0] += 0.1 * self.episodes
        elif self.fault == "unseeded":
            obs += np.random.normal(0.0, 0.01, obs.shape).astype(np.float32)
        return obs


FAULTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # The findings that name it, and tasks in which it can't be planted or does nothing.
    "sign": (("reward-sign",), ()),
    "delayed": (("reward-late", "gamma"), ("toy:Contextual", "toy:Target", "CartPole-v1",
        "Acrobot-v1", "MountainCar-v0", "InvertedPendulum-v5")),
    "ignored": (("action-ignored",), ()),
    "permuted": (("action-inconsistent",), ("toy:Contextual", "toy:Target")),
    "shuffled": (("observation-noise",), ("toy:Target", "toy:Contextual")),
    "scaled": (("observation-scale",), ()),
    "hidden_goal": (("reward-hidden",), ("toy:Contextual", "toy:Target")),
    "aliased": (("observation-memory", "reward-memory"), ("toy:Contextual", "toy:Target")),
    "time_limit": (("time-limit",), ("CartPole-v1", "InvertedPendulum-v5", "toy:Contextual",
        "toy:Target")),
    "never_ends": (("never-ends",), ()),
    "same_start": (("same-start",), ("toy:Target",)),
    "noise": (("reward-noise",), ()),
    "nan": (("not-finite",), ()),
    "remembers": (("remembers",), ()),
    "unseeded": (("not-repeatable",), ()),
    "late": (("observation-late",), ("toy:Contextual", "toy:Target")),
    "saturated": (("action-saturated",), ("CartPole-v1", "Acrobot-v1", "MountainCar-v0",
        "toy:Track", "toy:Contextual", "toy:Target")),
    "never_seen": (("reward-never-seen",), ()),
    "at_once": (("ends-at-once",), ()),
    "tiny": (("reward-size",), ()),
}  # fmt: skip
