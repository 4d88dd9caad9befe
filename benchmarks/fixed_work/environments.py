"""Steps of bare environments, without quintet's code around them, for the limit of this machine."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from quintet.envs import envpool_library

Step = Callable[[], object]


def _envpool(env_id: str, num_envs: int, cores: int) -> Step:
    """A step of a pool with as many threads as cores."""
    pool = envpool_library.imported().make_gymnasium(env_id, num_envs=num_envs, num_threads=cores)
    actions = np.array([pool.action_space.sample() for _ in range(num_envs)])
    if actions.dtype.kind == "i":
        actions = actions.astype(np.int32)
    pool.reset()
    return lambda: pool.step(actions)


def _gymnasium(env_id: str, num_envs: int, cores: int) -> Step:  # noqa: ARG001
    """A step of each environment in turn, on one core."""
    env: Any = gymnasium.make(env_id)
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(num_envs)]

    def step() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


STEPS = {"envpool": _envpool, "gymnasium": _gymnasium}
"""By backend: makes a bare step of environments, of (id, their number, cores)."""
