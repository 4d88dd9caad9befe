"""Environments of the interface of gym, which Gymnasium replaced, and others like it: plain classes
with ``reset`` and ``step``.  The package gym itself is never imported here.
"""

import sys
from collections.abc import Callable, Mapping
from functools import update_wrapper
from pkgutil import resolve_name
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces

from quintet.envs.other_apis import (
    LIMITED,
    five_values,
    innermost,
    is_pair,
    takes,
    takes_seed,
)


@final
class OldGym(gymnasium.Env[Any, Any]):
    """An environment with Gymnasium's spaces, ``reset`` and ``step``.

    env: the environment as it was made; its other attributes are also this one's.
    adapted: a sentence about what is adapted.
    """

    def __init__(self, env: Any, again: Callable[[int], Any] | None):
        """again: makes another one with a seed; None: its maker takes no seed."""
        self.env, self._takes_seed = env, takes_seed(env)
        # The base classes of gym have a method that does little or nothing.
        seeds = [kind for kind in type(self.unwrapped).__mro__ if "seed" in vars(kind)]
        of_gym = bool(seeds) and seeds[0].__module__.partition(".")[0] in ("gym", "gymnasium")
        self._remake = None if self._takes_seed or (seeds and not of_gym) else again
        self._seeded = bool(seeds)
        way = "reset(seed=...)" if self._takes_seed else "its method seed()" if seeds else ""
        way = "its maker, which makes it anew" if self._remake is not None else way
        self.adapted = (
            "the environment has gym's interface, not Gymnasium's, so its spaces, resets and steps "
            f"are adapted: seeds go to {way or 'nothing'}; an episode is truncated where "
            f"info[{LIMITED!r}] is true"
        )
        metadata = getattr(env, "metadata", None) or {}
        self.metadata = {"render_fps": metadata.get("video.frames_per_second"), **metadata}
        for name in ("observation_space", "action_space"):
            if (space := getattr(env, name, None)) is not None:
                setattr(self, name, as_gymnasium(space))

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # __init__ has not set it
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        return getattr(self.env, "unwrapped", self.env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        arguments: dict[str, Any] = {} if options is None else {"options": options}
        if self._takes_seed:
            arguments["seed"] = seed
        elif seed is not None and self._remake is not None:
            self.close()
            self.env = _bare(self._remake(seed))[1]
        elif seed is not None and self._seeded:
            self.env.seed(seed)
        result = self.env.reset(**arguments)
        return result if is_pair(result) else (result, {})

    def step(self, action: Any) -> Any:
        return five_values(self.env.step(action))

    def render(self) -> Any:
        given = {"mode": "rgb_array"} if takes(self.env.render, "mode") else {}
        return self.env.render(**given)

    def close(self) -> None:
        if callable(close := getattr(self.env, "close", None)):
            close()


def adapt(env: Any, again: Callable[[int], Any] | None = None) -> Any:
    """The same object, with its innermost environment in `OldGym`.

    again: see `OldGym`.
    """
    outer, inner = _bare(env)
    if outer is None:
        return OldGym(inner, again)
    outer.env = OldGym(inner, again)
    return env


def _bare(env: Any) -> tuple[Any, Any]:
    """The innermost of Gymnasium's wrappers, None without one, and what was made."""
    outer, inner = innermost(env)
    return outer, inner.env if isinstance(inner, OldGym) else inner


def as_gymnasium(space: Any) -> Any:
    """A space of gym, or a record with its attributes, as Gymnasium's; others unchanged."""
    if isinstance(space, gymnasium.Space):
        return space
    parts, n = getattr(space, "spaces", None), getattr(space, "n", None)
    shape = tuple(int(size) for size in getattr(space, "shape", None) or ())
    if isinstance(parts, Mapping):
        return spaces.Dict({name: as_gymnasium(part) for name, part in parts.items()})
    if isinstance(parts, tuple | list):
        return spaces.Tuple([as_gymnasium(part) for part in parts])
    if hasattr(space, "nvec"):
        return spaces.MultiDiscrete(space.nvec)
    if hasattr(space, "low") and hasattr(space, "high"):
        dtype = np.dtype(getattr(space, "dtype", None) or np.float32)
        low, high = (np.broadcast_to(np.asarray(x, dtype), shape) for x in (space.low, space.high))
        return spaces.Box(low, high, shape, dtype.type)
    if n is not None and shape:
        return spaces.MultiBinary(shape)
    return space if n is None else spaces.Discrete(int(n), start=int(getattr(space, "start", 0)))


def registered_maker(name: str) -> Callable[..., Any] | None:
    """The maker of an id that a module has registered in gym, which it has imported, without the
    wrappers of gym but for the limit of steps; None without one.
    """
    try:
        spec: Any = sys.modules["gym"].spec(name)
        entry = spec.entry_point
        make: Any = resolve_name(entry) if isinstance(entry, str) else entry
    except Exception:  # raised by versions of gym in several ways, or there is none
        return None
    kwargs = getattr(spec, "kwargs", None) or getattr(spec, "_kwargs", None) or {}
    limit = spec.max_episode_steps

    def made(**given: Any) -> Any:
        env = make(**{**kwargs, **given})
        return env if limit is None else gymnasium.wrappers.TimeLimit(adapt(env), limit)

    return update_wrapper(made, make, updated=())
