"""State that users' code has set in this process, for other processes that make environments.

They inherit the working folder, environment variables and `sys.path` in any case.
docs/runtimes.md, "What other processes get", lists what reaches them and what doesn't.
"""

import locale
import logging
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from quintet.system.importing import imports_for
from quintet.system.user_code import described, lacking


def capture() -> dict[str, Any]:
    """State of this process, for `restore`; pickled piece by piece where it may hold code."""
    send = cloudpickle.dumps
    unsent: list[str] = []  # names and reasons
    specs = gymnasium.registry.items()
    plain = {name: spec for name, spec in specs if not _holds_code(spec)}
    others = ((f"the registration of {name}", spec) for name, spec in specs if name not in plain)
    filters = ((f"the warning filter {each}", each) for each in warnings.filters)
    levels = {"": logging.root.level}
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and logger.level:
            levels[name] = logger.level
    return {
        "path": list(sys.path),
        "argv": list(sys.argv),
        "specs": {"registrations": pickle.dumps(plain), **dict(_each(others, send, unsent))},
        "filters": dict(_each(filters, send, unsent)),
        "levels": levels,
        "stream_format": _stream_format(),
        "disabled_level": logging.root.manager.disable,
        "gymnasium_level": gymnasium.logger.min_level,
        "numpy_errors": dict(np.geterr()),
        "locale": locale.setlocale(locale.LC_ALL),
        "recursion_limit": sys.getrecursionlimit(),
        "unsent": unsent,
    }


def restore(state: Mapping[str, Any]) -> None:
    """Sets the same state in this process; failures are listed in `lacking` and raise no error."""
    sys.path[:] = state["path"]  # users' modules are imported from here on
    sys.argv[:] = state["argv"]
    lacking[:] = state["unsent"]
    for name, spec in _each(state["specs"].items(), pickle.loads, lacking):
        gymnasium.registry.update(spec if name == "registrations" else {spec.id: spec})
    filters = [each for _, each in _each(state["filters"].items(), pickle.loads, lacking)]
    if filters != warnings.filters:
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
    if state["stream_format"] is not None and not logging.root.handlers:
        logging.basicConfig(format=state["stream_format"])
    for name, level in state["levels"].items():
        logging.getLogger(name).setLevel(level)
    logging.disable(state["disabled_level"])
    gymnasium.logger.min_level = state["gymnasium_level"]
    np.seterr(**state["numpy_errors"])
    if locale.setlocale(locale.LC_ALL) != state["locale"]:
        with suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, state["locale"])
    sys.setrecursionlimit(state["recursion_limit"])


def work_of(pickled: bytes) -> Any:
    """The pickled work of this process, whose unpickling may import users' modules."""
    with imports_for("the work of another process"):
        return pickle.loads(pickled)


def enter(folder: str) -> None:
    """Changes to a working folder of another machine, if there is one of this name here."""
    if os.path.isdir(folder):
        os.chdir(folder)


def for_this_machine(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state of another machine's process, with this machine's places of modules first."""
    more = [place for place in state["path"] if place not in sys.path]
    return {**state, "path": [*sys.path, *more]}


def _holds_code(spec: Any) -> bool:
    """Whether a registration holds more than names and numbers."""
    points = (spec.entry_point, spec.vector_entry_point)
    named = all(point is None or isinstance(point, str) for point in points)
    return not named or bool(spec.kwargs) or bool(spec.additional_wrappers)


def _stream_format() -> str | None:
    for handler in logging.root.handlers:
        if type(handler) is logging.StreamHandler:
            return handler.formatter._fmt if handler.formatter is not None else "%(message)s"
    return None


def _each(
    objects: Iterable[tuple[str, Any]], function: Callable[[Any], Any], failed: list[str]
) -> list[tuple[str, Any]]:
    """The results of a function for each object, by name; adds to `failed` where it fails."""
    found: list[tuple[str, Any]] = []
    for name, each in objects:
        try:
            found.append((name, function(each)))
        except Exception as error:  # pickling runs code of any object
            failed.append(f"{name} ({described(error)})")
    return found
