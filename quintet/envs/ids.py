"""Environment ids: their backends, lists of them, and suggestions for wrong ones."""

import difflib
import fnmatch
import inspect
import re
from collections.abc import Iterable

import gymnasium
from gymnasium.envs.registration import load_env_creator

from quintet.envs import atari
from quintet.envs.backends import BACKENDS
from quintet.errors import ConfigError
from quintet.system.name_hints import form_hint
from quintet.system.signals import STOPS


def resolve_backend(env_id: str, backend: str = "auto") -> str:
    """The backend of an id or of a maker ``module:name``: with ``auto`` the first that knows it;
    raises ConfigError if none knows the id (with the nearest names), or the backend is missing.
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
            f"env.backend {backend!r} needs {one.title}, which is not installed; run: {one.install}"
        )
    if not one.knows(env_id):
        raise _unknown_id(env_id, backend)
    return backend


def _first_for(env_id: str) -> str:
    maker = ":" in env_id
    for name, one in BACKENDS.usable():
        if (one.claims is not None and one.claims(env_id)) if maker else one.knows(env_id):
            return name
    raise _unknown_id(env_id, "auto")


def faster_backend(env_id: str) -> str:
    """Advice on a Python environment: a backend in C++ that knows its id or is missing, or ""."""
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
    glob = pattern.lower()
    if not any(sign in glob for sign in "*?["):
        glob = f"*{glob}*"
    pairs = [(env_id, name) for name, one in BACKENDS.usable() for env_id in (one.ids or tuple)()]
    matching = [pair for pair in pairs if fnmatch.fnmatchcase(pair[0].lower(), glob)]
    return sorted(matching, key=lambda pair: pair[0])


def _unknown_id(env_id: str, backend: str) -> ConfigError:
    """The error about an unknown id, with similar ids and hints of backends."""
    hints = {name: one.hint(env_id) for name, one in BACKENDS.usable()}
    if not any(hints.values()) and (form := form_hint(env_id)):
        return ConfigError(
            f"env must be an id, or an import string pkg.module:name; got {env_id!r}: {form}"
        )
    by_backend = {name: list(one.ids()) for name, one in BACKENDS.usable() if one.ids is not None}
    tried = by_backend if backend == "auto" else {backend: by_backend[backend]}
    ids = [known for of_one in tried.values() for known in of_one]
    parts = [f"env must be an id that backend {backend!r} knows; got {env_id!r}"]
    game = atari.game_of(env_id)
    if game and {f"ALE/{game}-v5", f"{game}-v5"} & {*ids}:
        parts.append(
            f"this game is {game}-v5 here, with its preprocessing (frame_skip, stack_num, "
            "noop_max, ...) in env.kwargs"
        )
    elif versions := list(dict.fromkeys(versions_of(env_id, ids))):
        parts.append(f"known ids of that name are {', '.join(versions)}")
    else:
        names = {known.lower(): known for known in ids}
        near = [names[hit] for hit in difflib.get_close_matches(env_id.lower(), names, n=5)]
        parts.append(f"nearest are {', '.join(near)}" if near else "no known id is similar")
        parts.append("an id that a package registers is given as package:id")
    for name, one in BACKENDS.usable():
        if (backend in ("auto", name) or one.ids is None) and hints[name]:
            parts.append(hints[name])
    for name, known_ids in by_backend.items():
        if name not in tried and env_id in known_ids:
            parts.append(f"backend {name!r} knows it")
    parts.append("see them all with: quintet envs")
    return ConfigError("; ".join(parts))


def versions_of(env_id: str, known: Iterable[str]) -> list[str]:
    """The known ids of the same name, the newest version first."""
    name = _parts(env_id)[0]
    return sorted((each for each in known if _parts(each)[0] == name), key=_parts, reverse=True)


def nearest_version(env_id: str, known: Iterable[str]) -> str | None:
    """The id itself, or the nearest version of it, of two equally near ones the newer; None for an
    id without a version."""
    versions, version = versions_of(env_id, known), _parts(env_id)[1]
    versions = [each for each in versions if version >= 0 <= _parts(each)[1]]
    return min(versions, key=lambda each: abs(_parts(each)[1] - version), default=None)


def _parts(env_id: str) -> tuple[str, int]:
    """Name and version; -1 without one."""
    found = re.fullmatch(r"(.+)-v(\d+)", env_id)
    return (found[1], int(found[2])) if found else (env_id, -1)


def taken_by_gymnasium(env_id: str, names: Iterable[str]) -> tuple[str, list[str]]:
    """Gymnasium's id, or the newest version of its name ("" without one), and those of `names` that
    are arguments of its environment.
    """
    known = [env_id] if env_id in gymnasium.registry else versions_of(env_id, gymnasium.registry)
    if not known or atari.is_ales(known[0]):
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
