"""Weights of the parts of an environment's rewards, set from outside.

An environment declares them by an attribute ``reward_shaping``, a dict of numbers by name that it
reads in ``step``; a wrapper may have it instead.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import gymnasium
import numpy as np

from quintet.envs.vector import Array, ObsArrays, VectorEnv
from quintet.errors import ConfigError

ATTRIBUTE = "reward_shaping"


@final
class ShapedMaker:
    """Makes single environments that weigh their rewards by the given values.

    declared: the dicts of the newest environments, one for each stream.
    """

    def __init__(
        self,
        make_one: Callable[[], Any],
        values: Mapping[str, float],
        num_streams: int,
        env_id: str,
    ):
        self.values, self.declared = dict(values), deque[dict[str, float]](maxlen=num_streams)
        self._make_one, self._id, self._others = make_one, env_id, num_streams - 1

    def __call__(self) -> Any:
        """Raises ConfigError where the environment declares no such values, or shares them."""
        env = self._make_one()
        if isinstance(env, gymnasium.Env):  # other objects are refused by what takes them
            declared = declared_by(env)
            unknown = sorted(self.values.keys() - declared.keys())
            if unknown:
                env.close()
                raise ConfigError(
                    f"env.reward_shaping requires values that {self._id} declares in its attribute "
                    f"{ATTRIBUTE} ({', '.join(sorted(declared)) or 'there are none'}), got "
                    f"{', '.join(unknown)}; correct the names, or declare them"
                )
            others = list(self.declared)[-self._others :] if self._others else []
            if any(declared is each for each in others):
                env.close()
                raise ConfigError(
                    f"env.reward_shaping requires a dict of its own in each environment, those of "
                    f"{self._id} share one; make it in __init__"
                )
            declared.update(self.values)
            self.declared.append(declared)
        return env


def declared_by(env: "gymnasium.Env[Any, Any]") -> dict[str, float]:
    """The dict that an environment declares; {} without one."""
    declared = env.get_wrapper_attr(ATTRIBUTE) if env.has_wrapper_attr(ATTRIBUTE) else {}
    return declared if isinstance(declared, dict) else {}


@final
class ShapedRewards:
    """Single environments whose values may change from episode to episode.

    shaping: ``[B, N]``, of each stream by sorted name; what is written here counts from the next
        `send` on.
    """

    def __init__(self, env: VectorEnv, maker: ShapedMaker):
        self._env, self._maker = env, maker
        self._names = sorted(maker.values)
        self.num_streams, self.spaces = env.num_streams, env.spaces
        self.description, self.recv = env.description, env.recv
        self.render, self.close = env.render, env.close
        given = [maker.values[name] for name in self._names]
        self.shaping = np.tile(given, (env.num_streams, 1))
        self._in_force = self.shaping.copy()
        self._given = self.shaping.copy()

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        self._env.restart(seeds, out)
        self._in_force[:] = self._given  # environments may have been made anew

    def send(self, action: Array) -> None:
        changed = (self.shaping != self._in_force).any(1)
        if changed.any():
            for stream in changed.nonzero()[0]:
                values = zip(self._names, self.shaping[stream].tolist(), strict=True)
                self._maker.declared[stream].update(values)
            self._in_force[:] = self.shaping
        self._env.send(action)
