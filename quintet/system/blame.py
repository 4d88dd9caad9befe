"""Where in a user's code something went wrong, or is at work."""

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import gymnasium

from quintet.errors import QuintetError

_Fault = TypeVar("_Fault", bound=QuintetError)

_MOST_CHARACTERS = 20_000
"""Of a traceback that is kept; its end says most."""


def raised(error: BaseException, where: str = "") -> str:
    """``raised in step ValueError: no such thing (/home/me/env.py:33 in step)``, for a message."""
    place = place_in(traceback.extract_tb(error.__traceback__))
    return f"raised {f'in {where} ' if where else ''}{type(error).__name__}: {error}" + (
        f" ({place})" if place else ""
    )


def traced(fault: _Fault, cause: BaseException) -> _Fault:
    """`fault`, which keeps the whole traceback of its cause in `detail`."""
    fault.detail = "".join(traceback.format_exception(cause))[-_MOST_CHARACTERS:]
    return fault


def place_in(frames: Sequence[traceback.FrameSummary]) -> str:
    """The innermost line of the user's own code, as ``FILE:LINE in FUNCTION``; else that of what
    is installed for it; "" where there is neither.

    frames: the outermost first.
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
    """Whether it only hands on: quintet, and Gymnasium but for its environments."""
    home = Path(gymnasium.__file__).parent
    handing_on = _within(file, home) and not _within(file, home / "envs")
    return handing_on or _within(file, Path(__file__).parents[1])


def _is_installed(file: str) -> bool:
    paths = sysconfig.get_paths()
    libraries = {Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    packages = {"site-packages", "dist-packages"} & {*Path(file).parts}
    return bool(packages) or any(_within(file, folder) for folder in libraries)


def _within(file: str, folder: Path) -> bool:
    return folder in Path(file).parents
