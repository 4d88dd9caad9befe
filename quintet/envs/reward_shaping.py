"""Weights of the parts of an environment's rewards, set from outside.

An environment declares them by an attribute ``reward_shaping``, a dict of numbers by name that it
reads in ``step``; a wrapper may have it instead.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import gymnasium
import numpy as np

from quintet.envs.vector import Array, ObsArrays, VectorEnv
from quintet.errors import ConfigError

ATTRIBUTE = "reward_shaping"


def make_shaped(make_one: Callable[[], Any], values: Mapping[str, float], env_id: str) -> Any:
    """Makes a single environment that weighs its rewards by `values`; other objects stay as they
    are.  Raises ConfigError where the environment declares no such values.
    """
    env = make_one()
    if isinstance(env, gymnasium.Env):
        declared = declared_by(env)
        if unknown := sorted(values.keys() - declared.keys()):
            env.close()
            raise ConfigError(
                f"env.reward_shaping must name values that {env_id} declares in its attribute "
                f"{ATTRIBUTE} ({', '.join(sorted(declared)) or 'there are none'}), got "
                f"{', '.join(unknown)}; correct the names, or declare them"
            )
        declared.update(values)
    return env


def declared_by(env: "gymnasium.Env[Any, Any]") -> dict[str, float]:
    """The dict that an environment declares; {} without one."""
    declared = env.get_wrapper_attr(ATTRIBUTE) if env.has_wrapper_attr(ATTRIBUTE) else {}
    return declared if isinstance(declared, dict) else {}


@final
class ShapedRewards:
    """Single environments, made by `make_shaped`, whose values may change from episode to episode.

    shaping: ``[B, N]``, values of each stream by sorted name; changes apply from the next `send`
        on.
    """

    def __init__(
        self,
        env: VectorEnv,
        singles: Callable[[], Sequence["gymnasium.Env[Any, Any]"]],
        values: Mapping[str, float],
    ):
        """singles: returns the environments of `env`, which restarts may make again.

        Raises ConfigError where environments share their values.
        """
        self.env, self._singles, self._names = env, singles, sorted(values)
        self.num_streams, self.spaces = env.num_streams, env.spaces
        self.description, self.recv = env.description, env.recv
        self.render, self.close = env.render, env.close
        self._given = np.tile([values[name] for name in self._names], (env.num_streams, 1))
        self.shaping = self._given.copy()
        self._find()

    def _find(self) -> None:
        """Finds the dicts of the environments, which still have the given values."""
        self._declared = [declared_by(each) for each in self._singles()]
        if len({id(declared) for declared in self._declared}) < self.num_streams:
            raise ConfigError(
                "env.reward_shaping must be a separate dict in each environment, but those of "
                f"{self.description.id} share one; make it in __init__"
            )
        self._in_force = self._given.copy()

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        self.env.restart(seeds, out)
        declared = [declared_by(each) for each in self._singles()]
        if any(new is not old for new, old in zip(declared, self._declared, strict=True)):
            self._find()  # others were made

    def send(self, action: Array) -> None:
        changed = (self.shaping != self._in_force).any(1)
        if changed.any():
            for stream in changed.nonzero()[0]:
                values = zip(self._names, self.shaping[stream].tolist(), strict=True)
                self._declared[stream].update(values)
            self._in_force[:] = self.shaping
        self.env.send(action)
