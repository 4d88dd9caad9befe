"""Packages as pip would install them, written by hand, and those that a test file needs."""

import os
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import pytest

_changes = count(1)


def need(reason: str, *packages: str) -> None:
    """Skips the test file that is being imported where a package is missing.  It is not imported,
    as by `pytest.importorskip`: every test process collects every file, and some packages take
    seconds.
    """
    if any(find_spec(name) is None for name in packages):
        pytest.skip(reason, allow_module_level=True)


def install(
    folder: Path, package: str, entry_points: str, files: dict[str, str], version: str = "1.0"
) -> None:
    """Writes the files of a package and its metadata into a folder of ``sys.path``."""
    about = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (about / "entry_points.txt").write_text(entry_points)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    os.utime(folder, ns=(0, next(_changes)))  # two changes may fall into one tick of the clock
