"""Users' code that quintet calls, and that calls quintet: the line of it in an error or a running
thread, and arguments that a function lacks.
"""

import importlib
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

import gymnasium

from quintet.errors import ConfigError, QuintetError
from quintet.system.printing import note, short
from quintet.system.signals import STOPS

_Fault = TypeVar("_Fault", bound=QuintetError)
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_PARSERS = ("argparse", "optparse")
"""Modules that read the command line."""

_MOST_CHARACTERS = 4_000
"""Most characters of an error's text that are kept: those of others are of any length."""

lacking: list[str] = []
"""State of the process that began this one which this one could not receive or set, see
`quintet.jobs.user_state`.
"""


def raised(error: BaseException, where: str = "") -> str:
    """A phrase like ``raised in step ValueError: no such thing (/home/me/env.py:33 in step)``."""
    place = place_in(traceback.extract_tb(error.__traceback__))
    at = f" ({place})" if place else ""
    if isinstance(error, SystemExit):
        code = "" if error.code is None else _words(lambda: repr(error.code))
        return f"called sys.exit({code}){f' in {where}' if where else ''}{at}"
    return f"raised {f'in {where} ' if where else ''}{described(error)}{at}"


def argv_advice(error: BaseException) -> str:
    """Advice if an error comes from reading the command line, which is quintet's own; else ""."""
    frames = traceback.extract_tb(error.__traceback__)
    reads = any(
        "sys.argv" in (frame.line or "") or Path(frame.filename).stem in _PARSERS
        for frame in frames
    )
    if not reads:
        return ""
    return (
        f"it reads sys.argv, the command line of this process ({sys.argv}): read no options in "
        "code that quintet calls, give those of environments by env.kwargs (docs/runtimes.md)"
    )


def described(error: BaseException) -> str:
    """A text like ``ValueError: no such thing``, even if the error's own code fails."""
    return f"{short(type(error).__name__, 200)}: {_words(lambda: str(error))}"


def first_line(error: BaseException) -> str:
    """The first line of `described`, shortened; `traced` keeps all of it."""
    return described(error).strip().splitlines()[0][:300]


def _words(say: Callable[[], str]) -> str:
    try:
        return short(say(), _MOST_CHARACTERS)
    except STOPS:
        raise
    except BaseException as again:
        return f"(without its text, which raised {type(again).__name__})"


@contextmanager
def no_exit() -> Iterator[None]:
    """Turns a sys.exit() in users' code that the block calls into an error."""
    try:
        yield
    except STOPS:
        raise
    except SystemExit as error:
        way = argv_advice(error) or "take the call out"
        fault = QuintetError(
            f"code that quintet calls must return or raise an error; it {raised(error)}; {way}"
        )
        raise traced(fault, error) from error


@contextmanager
def slow_notice(doing: str, after_s: float = 10.0) -> Iterator[None]:
    """Says on standard error, ever more rarely, that users' code in the block takes long, and the
    line that it is in.

    doing: a sentence such as "my_env:Maze is made".
    """
    thread, ended = threading.get_ident(), threading.Event()

    def look() -> None:
        passed_s, wait_s = 0.0, after_s
        while not ended.wait(wait_s):
            passed_s, wait_s = passed_s + wait_s, passed_s + wait_s
            place = place_in(traceback.extract_stack(sys._current_frames().get(thread)))
            at = f" (at {place})" if place else ""
            note(f"waiting for {passed_s:.0f} s: {doing}{at}")

    threading.Thread(target=look, daemon=True, name="slow notice").start()
    try:
        yield
    finally:
        ended.set()


def traced(fault: _Fault, cause: BaseException) -> _Fault:
    """Stores the traceback of `cause` in the detail of `fault`, which it returns."""
    fault.detail = short("".join(traceback.format_exception(cause)))
    return fault


def place_in(frames: Sequence[traceback.FrameSummary]) -> str:
    """The innermost line of users' code in frames, outermost first, as ``FILE:LINE in FUNCTION``;
    else that of an installed package; else "".
    """
    installed = ""
    for frame in reversed(frames):
        if frame.filename.startswith("<frozen ") or _is_machinery(frame.filename):
            continue
        place = f"{frame.filename}:{frame.lineno} in {frame.name}"
        if not _is_installed(frame.filename):
            return place
        installed = installed or place
    return installed


def _is_machinery(file: str) -> bool:
    """Whether a file belongs to quintet, Gymnasium (except its environments), or importlib."""
    home = Path(gymnasium.__file__).parent
    around = Path(file).parents
    handing_on = home in around and home / "envs" not in around
    importing = Path(importlib.__file__).parent in around
    return handing_on or importing or Path(__file__).parents[1] in around


def _is_installed(file: str) -> bool:
    paths = sysconfig.get_paths()
    libraries = {Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    packages = {"site-packages", "dist-packages"} & {*Path(file).parts}
    return bool(packages) or any(folder in Path(file).parents for folder in libraries)


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
