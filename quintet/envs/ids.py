"""Environment ids: their backends, lists of them, and suggestions for wrong ones."""

import difflib
import fnmatch
import re
from typing import Literal

import gymnasium

from quintet.envs import ale, envpool_library
from quintet.envs.versions import atari_game, is_ales, versions_of
from quintet.errors import ConfigError

Resolved = Literal["envpool", "ale", "gymnasium", "pettingzoo"]

PARALLEL = "parallel_env"
"""The name by which PettingZoo's modules make environments of the parallel API."""


def resolve_backend(env_id: str, backend: str = "auto") -> Resolved:
    """The backend of an id: EnvPool if it is installed and knows the id, for Atari games then ALE's
    vector environment, else Gymnasium; raises ConfigError if no backend knows the id (with the
    nearest names), or the backend is missing.
    """
    if ":" in env_id:
        if backend in ("envpool", "ale"):
            raise ConfigError(
                f"backend {backend!r} needs one of {'EnvPool' if backend == 'envpool' else 'ALE'}'s"
                f" ids; got the import string {env_id!r}; use backend 'gymnasium'"
            )
        return "pettingzoo" if makes_games(env_id, backend) else "gymnasium"
    if backend == "pettingzoo":
        raise ConfigError(
            "backend 'pettingzoo' needs an import string of what makes an environment of several "
            f"agents, like pettingzoo.butterfly.pistonball_v6:{PARALLEL}, or of a game in turn, "
            f"like pettingzoo.classic.tictactoe_v3:env; got {env_id!r}"
        )
    if backend == "envpool" and not envpool_library.is_installed():
        raise ConfigError(
            f"env.backend 'envpool' needs EnvPool, which is not installed; run: "
            f"{envpool_library.INSTALL_LINE}"
        )
    if backend == "ale" and not ale.is_installed():
        raise ConfigError(
            f"env.backend 'ale' needs ale-py, which is not installed; run: {ale.INSTALL_LINE}"
        )
    if backend in ("auto", "envpool") and envpool_id(env_id) is not None:
        return "envpool"
    registered = is_registered(env_id)
    if backend == "gymnasium" and registered:
        return "gymnasium"
    if backend in ("auto", "ale", "gymnasium") and ale.rom_of(env_id) is not None:
        return "gymnasium" if backend == "gymnasium" else "ale"
    if backend == "auto" and registered:
        return "gymnasium"
    raise _unknown_id(env_id, backend)


def makes_games(maker: str, backend: str) -> bool:
    """Whether what a maker named ``module:name`` makes is taken for an environment of several
    agents: all of PettingZoo's own, and others by the name that it gives those of its parallel API.
    """
    module, _, name = maker.rpartition(":")
    of_pettingzoo = module.partition(".")[0] == "pettingzoo"
    return backend == "pettingzoo" or (
        backend == "auto" and (of_pettingzoo or name.strip("<>") == PARALLEL)
    )


def is_registered(env_id: str) -> bool:
    """Whether Gymnasium knows the id; games of ale-py don't count."""
    return env_id in gymnasium.registry and not is_ales(env_id)


def envpool_id(env_id: str) -> str | None:
    """EnvPool's name for an id, without Gymnasium's ``ALE/``; None where it has none."""
    known = envpool_library.families()
    name = env_id.removeprefix("ALE/")
    return next((found for found in (env_id, name) if found in known), None)


def list_envs(pattern: str = "") -> list[tuple[str, str]]:
    """Every ``(id, backend)`` whose id contains `pattern`, or matches its ``*``, ``?`` and ``[]``.

    Case is ignored. An id of two backends occurs twice, first with the preferred backend.
    """
    wanted = pattern.lower()
    if not any(sign in wanted for sign in "*?["):
        wanted = f"*{wanted}*"
    roms = ale.list_roms()  # before the registry is read: ale-py adds its games to it
    pairs = [(env_id, "ale") for env_id in roms]
    pairs += [(env_id, "envpool") for env_id in envpool_library.families()]
    pairs += [(env_id, "gymnasium") for env_id in gymnasium.registry]
    return sorted(pair for pair in pairs if fnmatch.fnmatchcase(pair[0].lower(), wanted))


def _unknown_id(env_id: str, backend: str) -> ConfigError:
    by_backend: dict[str, list[str]] = {
        "ale": list(ale.list_roms()),
        "gymnasium": [known for known in gymnasium.registry if not is_ales(known)],
        "envpool": list(envpool_library.families()),
    }
    asked = {
        "auto": list(by_backend),
        "gymnasium": ["ale", "gymnasium"],  # single games of ale-py
    }.get(backend, [backend])
    ids = [known for name in asked for known in by_backend[name]]
    parts = [f"env must be an id that backend {backend!r} knows; got {env_id!r}"]
    versions = list(dict.fromkeys(versions_of(env_id, ids)))
    game = atari_game(env_id)
    if game and {f"ALE/{game}-v5", f"{game}-v5"} & {*ids}:
        parts.append(
            f"this game is {game}-v5 here, with its preprocessing (frame_skip, stack_num, "
            "noop_max, ...) in env.kwargs"
        )
    elif versions:
        parts.append(f"it knows {', '.join(versions)} of that name")
        if versions_of(env_id, by_backend["gymnasium"]) and "gymnasium" in asked:
            parts.append(
                f"which versions there are depends on Gymnasium's, {gymnasium.__version__} here"
            )
    else:
        names = {known.lower(): known for known in ids}
        near = [names[hit] for hit in difflib.get_close_matches(env_id.lower(), names, n=5)]
        parts.append(f"nearest are {', '.join(near)}" if near else "nothing is near")
        if re.fullmatch(r"(pettingzoo\.[\w.]+\.)?[a-z_]+_v\d+", env_id):
            dotted = "." in env_id
            parts.append(
                "games of PettingZoo are given by their module, as "
                f"{env_id if dotted else 'pettingzoo.classic.rps_v2'}:{PARALLEL}, and games in "
                f"turn as {env_id if dotted else 'pettingzoo.classic.tictactoe_v3'}:env"
            )
        parts.append("an id that a package registers is given as package:id")
    for other in by_backend.keys() - asked:
        if env_id in by_backend[other]:
            parts.append(f"backend {other!r} knows it")
    if backend == "auto" and not envpool_library.is_installed():
        parts.append(f"EnvPool, not installed, has 1600 more: {envpool_library.INSTALL_LINE}")
    if env_id.startswith("ALE/") and not ale.is_installed():
        parts.append(f"Atari games of ale-py, not installed: {ale.INSTALL_LINE}")
    parts.append("see them all with: quintet envs")
    return ConfigError("; ".join(parts))
