"""Environments that a user gives other than by id: callables and vector environments."""

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import SyncVectorEnv
from gymnasium.vector import VectorEnv as ForeignVectorEnv

from quintet.envs import foreign
from quintet.envs.backends import BACKENDS
from quintet.envs.versions import is_ales
from quintet.errors import ConfigError
from quintet.system.importing import name_of

MakeEnv = Callable[..., gymnasium.Env[Any, Any] | ForeignVectorEnv[Any, Any, Any]]
"""Makes one environment, or, with a parameter ``num_envs``, a vector environment of that size."""

GivenEnv = str | MakeEnv | ForeignVectorEnv[Any, Any, Any] | gymnasium.Env[Any, Any]
"""An id or import string, a callable, a vector environment, or what `gymnasium.make` made."""

EnvSource = MakeEnv | ForeignVectorEnv[Any, Any, Any]
"""Makes environments that have no id."""


def settle(env: GivenEnv) -> tuple[dict[str, Any], EnvSource | None]:
    """The fields of `EnvConfig` that a given environment determines, and its source.

    A pool of EnvPool is only read: pools are made again from its id, arguments and size.  So is an
    environment of `gymnasium.make`, since every stream needs its own.  Any other vector environment
    is one group of streams.

    Raises:
        ConfigError: it can't make environments.
    """
    if isinstance(env, str):
        return {"id": env}, None
    for _, backend in () if callable(env) else BACKENDS.usable():
        if (says := backend.settle(env)) is not None:
            return says, None
    if isinstance(env, ForeignVectorEnv):
        return {
            "id": name_of(env),
            "num_streams": env.num_envs,
            "streams_per_group": env.num_envs,
        }, env
    if isinstance(env, gymnasium.Env):
        return _like(env)
    if callable(env):
        return {"id": name_of(env)}, env
    raise ConfigError(
        f"env must be an id, a callable that makes environments, or a vector environment; got "
        f"{env!r}; " + (foreign.way_out(env) or "see docs of quintet.make_vector_env")
    )


def _like(env: gymnasium.Env[Any, Any]) -> tuple[dict[str, Any], EnvSource | None]:
    """Maker of environments like one of `gymnasium.make`, by its specification."""
    spec = env.spec
    if spec is None:
        name = type(env.unwrapped).__name__
        raise ConfigError(
            f"env must make environments, one for each stream; got {env!r}, which is one itself; "
            f"give its class, {name}, or a function that makes it, lambda: {name}(...)"
        )
    lost = [each.name for each in spec.additional_wrappers if each.kwargs is None]
    if lost:
        raise ConfigError(
            f"env must make environments, one for each stream; got {env!r}, which is one itself, "
            f"and whose wrapper {lost[0]} can't be made again by its specification; give a "
            f"function that makes it, lambda: {lost[0]}(gymnasium.make({spec.id!r}), ...)"
        )
    # render_mode belongs to the one that was made: "human" would open windows.
    kwargs = {name: value for name, value in spec.kwargs.items() if name != "render_mode"}
    registered = gymnasium.registry.get(spec.id)
    plain = registered is not None and not spec.additional_wrappers and not is_ales(spec.id)
    if registered is not None and plain and _can_be_stored(kwargs):
        changed = {k: v for k, v in kwargs.items() if (k, v) not in registered.kwargs.items()}
        if spec.max_episode_steps != registered.max_episode_steps:
            changed["max_episode_steps"] = spec.max_episode_steps
        return {"id": spec.id, "backend": "gymnasium", "kwargs": changed}, None
    make = partial(gymnasium.make, replace(spec, kwargs=kwargs), disable_env_checker=True)
    return {"id": f"gymnasium:<{spec.id}>"}, make


def _can_be_stored(kwargs: dict[str, Any]) -> bool:
    try:
        json.dumps(kwargs)
    except (TypeError, ValueError):
        return False
    return True


def can_be_made_again(source: EnvSource | None) -> bool:
    """Whether further environments can be made, which evaluation needs."""
    return not isinstance(source, ForeignVectorEnv) or is_plain_sync(source)


def is_plain_sync(env: object) -> bool:
    """Whether it is a plain SyncVectorEnv, whose environments can be made and stepped one by one;
    subclasses and wrappers may do more.
    """
    return type(env) is SyncVectorEnv and env.observation_mode == "same"


def makes_groups(maker: MakeEnv) -> bool:
    """Whether a callable has a parameter ``num_envs``, so that it makes vector environments."""
    try:
        return "num_envs" in inspect.signature(maker).parameters
    except (TypeError, ValueError):  # some built-in callables don't tell
        return False
