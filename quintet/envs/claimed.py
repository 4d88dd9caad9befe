"""Notices environments that a maker gives again, while other streams still step them: both would
continue each other's episodes.
"""

import weakref
from typing import Any

from quintet.errors import ConfigError
from quintet.system import forks

_OWNERS: dict[int, tuple[weakref.ref[Any], int]] = {}
"""Who steps an environment, and in which fork, by the id of the innermost one."""


def claim(env: Any, owner: object, env_id: str) -> None:
    """Notes that `owner` steps `env` until `release`; raises ConfigError if another one does."""
    forks.watch()
    key = _key(env)
    held, generation = _OWNERS.get(key, (lambda: None, 0))
    other = held()
    if other is not None and other is not owner and generation == forks.generation:
        raise ConfigError(
            f"{env_id} must make a new environment at each call; it gave one that other "
            "streams use: create the environment inside the callable; if the others are those of "
            "a training that this would evaluate, also eval.episodes=0 helps"
        )
    _OWNERS[key] = weakref.ref(owner), forks.generation


def release(env: Any, owner: object) -> None:
    """Notes that `owner` no longer steps `env`."""
    key = _key(env)
    if _OWNERS.get(key, (lambda: None, 0))[0]() is owner:
        del _OWNERS[key]


def _key(env: Any) -> int:
    return id(getattr(env, "unwrapped", env))
