"""Environment ids: their backends, lists of them, and suggestions for wrong ones."""

import difflib
import fnmatch

from quintet.envs.backends import BACKENDS
from quintet.envs.versions import atari_game, versions_of
from quintet.errors import ConfigError


def resolve_backend(env_id: str, backend: str = "auto") -> str:
    """The backend of an id or import string: with ``auto`` the first that knows it; raises
    ConfigError if no backend knows the id (with the nearest names), or the backend is missing.
    """
    if backend == "auto":
        return _first_for(env_id)
    one = BACKENDS.find(backend)
    if ":" in env_id:
        if one.claims is None:
            raise ConfigError(
                f"backend {backend!r} needs one of {one.title}'s ids; got the import string "
                f"{env_id!r}; use backend 'gymnasium'"
            )
        return backend
    if one.ids is None:
        raise ConfigError(f"backend {backend!r} needs {one.needs}; got {env_id!r}")
    if not one.is_installed():
        raise ConfigError(
            f"env.backend {backend!r} needs {one.package}, which is not installed; run: "
            f"{one.install}"
        )
    if not one.knows(env_id):
        raise _unknown_id(env_id, backend)
    return backend


def backend_of_maker(name: str, backend: str = "auto") -> str:
    """The backend of a Python maker of environments named ``module:name``."""
    if backend != "auto" and BACKENDS.find(backend).claims is not None:
        return backend
    return _first_for(name)


def _first_for(env_id: str) -> str:
    maker = ":" in env_id
    for name, one in BACKENDS.usable():
        if (one.claims is not None and one.claims(env_id)) if maker else one.knows(env_id):
            return name
    raise _unknown_id(env_id, "auto")


def faster_backend(env_id: str) -> str:
    """Advice on an environment that Python steps: a backend in C++ that knows its id, or one that
    is not installed; "" where all are and none does.
    """
    pools = [(name, one) for name, one in BACKENDS.usable() if not one.in_python]
    for name, one in pools:
        if ":" not in env_id and one.knows(env_id):
            return f"the same id in C++ (--env.backend {name})"
    absent = [one.title for _, one in pools if not one.is_installed()]
    return f"{absent[0]}, if it has this id in C++ (see quintet envs)" if absent else ""


def list_envs(pattern: str = "") -> list[tuple[str, str]]:
    """Every ``(id, backend)`` whose id contains `pattern`, or matches its ``*``, ``?`` and ``[]``.

    Case is ignored. An id of several backends occurs once for each, in the order of the backends.
    """
    wanted = pattern.lower()
    if not any(sign in wanted for sign in "*?["):
        wanted = f"*{wanted}*"
    pairs = [(env_id, name) for name, one in BACKENDS.usable() for env_id in (one.ids or tuple)()]
    matching = [pair for pair in pairs if fnmatch.fnmatchcase(pair[0].lower(), wanted)]
    return sorted(matching, key=lambda pair: pair[0])


def _unknown_id(env_id: str, backend: str) -> ConfigError:
    by_backend = {name: list(one.ids()) for name, one in BACKENDS.usable() if one.ids is not None}
    asked = by_backend if backend == "auto" else {backend: by_backend[backend]}
    ids = [known for of_one in asked.values() for known in of_one]
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
    else:
        names = {known.lower(): known for known in ids}
        near = [names[hit] for hit in difflib.get_close_matches(env_id.lower(), names, n=5)]
        parts.append(f"nearest are {', '.join(near)}" if near else "nothing is near")
        parts.append("an id that a package registers is given as package:id")
    hints = [
        one.hint(env_id)
        for name, one in BACKENDS.usable()
        if backend in ("auto", name) or one.ids is None
    ]
    parts += filter(None, hints)
    parts += [
        f"backend {name!r} knows it"
        for name, known in by_backend.items()
        if name not in asked and env_id in known
    ]
    parts.append("see them all with: quintet envs")
    return ConfigError("; ".join(parts))
