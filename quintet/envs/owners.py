"""Owners and purposes of environments, for messages."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

from quintet.errors import ConfigError
from quintet.system import forks

_PURPOSE: ContextVar[str] = ContextVar("_PURPOSE", default="")


@contextmanager
def made_for(*what: str) -> Iterator[None]:
    """Says what environments that the block makes are for, from the whole to the part: "training",
    "stream 3".
    """
    before = _PURPOSE.set(", ".join(filter(None, what)))
    try:
        yield
    finally:
        _PURPOSE.reset(before)


def purpose() -> str:
    """The purpose that environments are made for; "" if nobody has said it."""
    return _PURPOSE.get()


def living(env_id: str) -> int:
    """Number of claimed environments of this name in this process."""
    return sum(
        (own.owner() is not None, own.generation, own.env_id) == (True, forks.generation, env_id)
        for own in list(_OWNERS.values())
    )


def require_new(envs: Sequence[Any], env_id: str) -> None:
    """Refuses environments that are the same object."""
    if len({id(env) for env in envs}) < len(envs):
        raise ConfigError(
            f"{env_id} must make a new environment at each call; it gave the same object twice; "
            "create the environment inside the callable"
        )


class _Claim(NamedTuple):
    """The owner of an environment, the fork in which it lives, and the environment's name."""

    owner: Callable[[], object | None]
    generation: int
    env_id: str


_OWNERS: dict[int, _Claim] = {}
"""Claims by the id of the innermost environment."""

_NOBODY = _Claim(lambda: None, 0, "")


def claim(env: Any, owner: object, env_id: str) -> None:
    """Notes that `owner` steps `env` until `release`; raises ConfigError if another one does."""
    forks.watch()
    key = _key(env)
    closed = _CLOSED.get(key)
    if closed is not None and closed() is getattr(env, "unwrapped", env):
        raise ConfigError(
            f"{env_id} must make a new environment at each call; it gave one that was closed after "
            "an earlier call: create the environment inside the callable; if only one can exist, "
            "give gymnasium.vector.SyncVectorEnv([lambda: env]), which is not closed"
        )
    present = _OWNERS.get(key, _NOBODY)
    other = present.owner()
    if other is not None and other is not owner and present.generation == forks.generation:
        raise ConfigError(
            f"{env_id} must make a new environment at each call; it gave one that other "
            "streams use: create the environment inside the callable; if a training uses it and "
            "its evaluations can't have another, eval.episodes=0 helps too"
        )
    _OWNERS[key] = _Claim(weakref.ref(owner), forks.generation, env_id)


_CLOSED: dict[int, weakref.ref[Any]] = {}
"""Environments that were closed and live on, by the id of the innermost one."""


def note_closed(env: Any) -> None:
    """Notes that `env` was closed, so that `claim` refuses it."""
    key = _key(env)
    with suppress(TypeError):  # classes may have no weak references
        _CLOSED[key] = weakref.ref(getattr(env, "unwrapped", env), lambda _: _CLOSED.pop(key, None))


def release(env: Any, owner: object) -> None:
    """Notes that `owner` no longer steps `env`."""
    key = _key(env)
    if _OWNERS.get(key, _NOBODY).owner() is owner:
        del _OWNERS[key]


def _key(env: Any) -> int:
    return id(getattr(env, "unwrapped", env))
