"""State that a user's code has set up in this process, for other processes that make environments.

They find the working folder, environment variables and `sys.path` as they are here by themselves.
What reaches them and what doesn't stands in docs/environments.md, "Other processes".
"""

import locale
import logging
import pickle
import sys
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np

from quintet.system.user_code import described

lacking: list[str] = []
"""State that could not be sent to this process, or not be set in it, once it called `restore`."""


class UserState(NamedTuple):
    """All that is sent, pickled piece by piece, since any of it may hold what can't be sent.

    specs, filters: Gymnasium's registrations, and Python's warning filters, by name.
    levels: of loggers, by name, "" for the root.
    stream_format: of the root logger's handler that prints; None: it has none.
    unsent: what can't be sent, and why.
    """

    path: list[str]
    specs: dict[str, bytes]
    filters: dict[str, bytes]
    levels: dict[str, int]
    stream_format: str | None
    disabled_level: int
    gymnasium_level: int
    numpy_errors: dict[str, Any]
    locale: str
    recursion_limit: int
    unsent: list[str]


def capture() -> UserState:
    """State of this process."""
    unsent: list[str] = []
    specs = gymnasium.registry.items()
    plain = {name: spec for name, spec in specs if not _holds_code(spec)}
    others = ((f"the registration of {name}", spec) for name, spec in specs if name not in plain)
    filters = ((f"the warning filter {each}", each) for each in warnings.filters)
    levels = {"": logging.root.level}
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and logger.level:
            levels[name] = logger.level
    return UserState(
        path=list(sys.path),
        specs={"registrations": pickle.dumps(plain)} | _pickled(others, unsent),
        filters=_pickled(filters, unsent),
        levels=levels,
        stream_format=_stream_format(),
        disabled_level=logging.root.manager.disable,
        gymnasium_level=gymnasium.logger.min_level,
        numpy_errors=dict(np.geterr()),
        locale=locale.setlocale(locale.LC_ALL),
        recursion_limit=sys.getrecursionlimit(),
        unsent=unsent,
    )


def restore(given: UserState) -> None:
    """Sets this process up alike; what can't be is `lacking`, and no error."""
    sys.path[:] = given.path  # before the user's modules are imported
    lacking[:] = given.unsent
    for name, spec in _unpickled(given.specs):
        gymnasium.registry.update(spec if name == "registrations" else {spec.id: spec})
    filters = [each for _, each in _unpickled(given.filters)]
    if filters != warnings.filters:
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]
    if given.stream_format is not None and not logging.root.handlers:
        logging.basicConfig(format=given.stream_format)
    for name, level in given.levels.items():
        logging.getLogger(name).setLevel(level)
    logging.disable(given.disabled_level)
    gymnasium.logger.min_level = given.gymnasium_level
    np.seterr(**given.numpy_errors)
    if locale.setlocale(locale.LC_ALL) != given.locale:
        with suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, given.locale)
    sys.setrecursionlimit(given.recursion_limit)


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


def _pickled(objects: Iterable[tuple[str, Any]], unsent: list[str]) -> dict[str, bytes]:
    return dict(_each(objects, cloudpickle.dumps, unsent))


def _unpickled(objects: dict[str, bytes]) -> list[tuple[str, Any]]:
    return _each(objects.items(), pickle.loads, lacking)


def _each(
    objects: Iterable[tuple[str, Any]], function: Callable[[Any], Any], failed: list[str]
) -> list[tuple[str, Any]]:
    """Results of a function for each object, by name; names for which it fails go to `failed`."""
    found: list[tuple[str, Any]] = []
    for name, each in objects:
        try:
            found.append((name, function(each)))
        except Exception as error:  # of the code of whatever it is
            failed.append(f"{name} ({described(error)})")
    return found
