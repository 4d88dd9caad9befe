"""The runs and policies that a user names: folders, or ``PLACE:WHAT``, which a package fetches."""

import os
from pathlib import Path
from types import FunctionType

from quintet.errors import QuintetError
from quintet.system.files import given_path
from quintet.system.plugins import HUB, Catalog

PLACES = Catalog(
    "quintet.places", "place of runs", FunctionType, {}, "quintet.jobs.imports:import_apart"
)
"""Functions of installed packages, by the name of their place.  Each returns the local folder of
``WHAT``, or raises QuintetError, and runs nothing of what it fetches.
"""

PACKAGES = {"hf": HUB}
"""Packages of this repository with a place each, by its name, and how to install them."""


def is_elsewhere(given: object) -> bool:
    """Whether it names a run as ``PLACE:WHAT``; a folder of such a name is ``./PLACE:WHAT``."""
    name, colon, _ = str(given).partition(":")
    return bool(colon) and (name in PACKAGES or name in PLACES)


def run_path(given: str | os.PathLike[str]) -> Path:
    """The folder of a run or a policy, fetched from a place elsewhere; raises QuintetError."""
    if not is_elsewhere(given):
        return given_path(given)
    name, _, what = str(given).partition(":")
    if name not in PLACES:
        raise QuintetError(
            f"{name}: must have a package that is not installed, got {given}: install it by "
            f"{PACKAGES[name]}"
        )
    return Path(PLACES.find(name)(what))
