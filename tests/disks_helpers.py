"""Disks of a test's own, mounted where that is allowed."""

import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[Path]:
    """Mounts a file system there; skips where that is not allowed, and says what was missing."""
    place.mkdir(exist_ok=True)
    command = ["mount", *arguments, str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no program mount, which makes a disk of the test's own")
    if done.returncode:
        pytest.skip(f"a disk of the test's own can't be had: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def small_disk(place: Path, kibibytes: int) -> AbstractContextManager[Path]:
    """One in memory that is soon full."""
    return mounted(place, "-t", "tmpfs", "-o", f"size={kibibytes}k", "quintet-test")
