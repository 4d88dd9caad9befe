"""Errors that quintet raises for the user.

Every message says what is required, what was found and what to do.  ``assert`` and the built-in
exceptions are for quintet's own invariants.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class QuintetError(Exception):
    """Base of all errors for a wrong input or a failed part.

    Attributes:
        detail: further text for log.txt, as the traceback of a user's code; may be "".
    """

    detail: str = ""


class ConfigError(QuintetError):
    """One or more faults in a configuration, all of them listed in the message."""


class UntrustedError(ConfigError):
    """A file names code to run without a valid signature, and the caller has not allowed it."""


class EnvironmentFault(QuintetError):
    """An environment broke its contract: raised, returned NaN, or changed a shape."""


class CheckpointError(QuintetError):
    """A checkpoint can't be written, or none of the stored ones can be read."""


class ExportError(QuintetError):
    """A policy can't be exported, or an export is damaged or does not answer as its policy."""


class FileFault(QuintetError):
    """A file can't be read or written, or has invalid contents."""


class WorkerFault(QuintetError):
    """A process of a run died, stopped responding, or failed in code that is not an
    environment's."""


class LearnerFault(WorkerFault):
    """One of several learners died or stopped responding."""


class NonFiniteError(QuintetError):
    """A loss or gradient became NaN or infinite.

    update: the learner's optimizer step, counted from 1, that made it so; None: the last one.
    """

    update: int | None = None


class GroupFault(QuintetError):
    """At least one run of a group failed; the others continued."""


def known_arguments(
    elsewhere: Mapping[str, str],
) -> Callable[[Callable[_Given, _Result]], Callable[_Given, _Result]]:
    """A decorator that refuses arguments which a function lacks.

    elsewhere: what to give in their place, by their names in other libraries.
    """

    def decorated(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
        @wraps(function)
        def called(*args: _Given.args, **given: _Given.kwargs) -> _Result:
            from inspect import signature

            known = signature(function).parameters
            for name in (name for name in given if name not in known):
                do = elsewhere.get(name, f"one of {', '.join(known)}")
                raise ConfigError(
                    f"{function.__name__} must be called with arguments that it has, got {name!r}; "
                    f"give {do}"
                )
            return function(*args, **given)

        return called

    return decorated
