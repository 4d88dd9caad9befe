"""Ids of one name in several versions: ``Taxi-v3`` and ``Taxi-v4``."""

import inspect
import re
from collections.abc import Iterable

import gymnasium
from gymnasium.envs.registration import load_env_creator

from quintet.system.signals import STOPS

_ATARI = re.compile(r"(?:ALE/)?([A-Za-z]+?)(?:NoFrameskip|Deterministic)?-v[0-5]")


def versions_of(env_id: str, known: Iterable[str]) -> list[str]:
    """The known ids of the same name, the newest version first."""
    name = _parts(env_id)[0]
    return sorted((each for each in known if _parts(each)[0] == name), key=_parts, reverse=True)


def _parts(env_id: str) -> tuple[str, int]:
    """Name and version; -1 without one."""
    found = re.fullmatch(r"(.+)-v(\d+)", env_id)
    return (found[1], int(found[2])) if found else (env_id, -1)


def atari_game(env_id: str) -> str:
    """``Pong`` of ``PongNoFrameskip-v4`` and of every other name that Gym had for the game; "" if
    it is no such name.
    """
    found = _ATARI.fullmatch(env_id)
    return found[1] if found else ""


def is_ales(env_id: str) -> bool:
    """Whether ale-py registered the id, which it does when it is imported."""
    return str(gymnasium.registry[env_id].entry_point).startswith("ale_py")


def taken_by_gymnasium(env_id: str, names: Iterable[str]) -> tuple[str, list[str]]:
    """Names, of `names`, that are arguments of Gymnasium's environment of that id, or of the newest
    version of its name, and its id; "" where Gymnasium itself has none.
    """
    known = [env_id] if env_id in gymnasium.registry else versions_of(env_id, gymnasium.registry)
    if not known or is_ales(known[0]):
        return "", []
    entry = gymnasium.registry[known[0]].entry_point
    try:
        maker = load_env_creator(entry) if isinstance(entry, str) else entry
        parameters = inspect.signature(maker).parameters if maker is not None else {}
    except STOPS:
        raise
    except BaseException:  # the package of the environment may be missing
        return known[0], []
    return known[0], [name for name in names if name in parameters]
