"""New folders for files of tests that have no `tmp_path`; all go at the end of the process."""

from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

_ALL = TemporaryDirectory(prefix="quintet-tests-")


def new_folder() -> Path:
    return Path(mkdtemp(dir=_ALL.name))
