"""Environments of the suite that no package has: tasks in which velocities are not observed."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TransformObservation


def pendulum_without_velocities(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Pendulum-v1 that shows cosine and sine of the angle alone."""
    return _without_last(gymnasium.make("Pendulum-v1", **kwargs))


def mountain_car_continuous_without_velocity(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    """MountainCarContinuous-v0 that shows the position alone."""
    return _without_last(gymnasium.make("MountainCarContinuous-v0", **kwargs))


def _without_last(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    space = env.observation_space
    assert isinstance(space, gymnasium.spaces.Box)
    shorter = gymnasium.spaces.Box(space.low[:-1], space.high[:-1], dtype=np.float32)
    return TransformObservation(env, lambda observation: observation[:-1], shorter)
