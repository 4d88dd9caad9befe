"""Small workloads, and the folder of the scripts on the path."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from fixed_work import limits, measure
from fixed_work.workloads import ENVIRONMENT_VARIABLE


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the file of small workloads, which is read in place of the usual one."""
    path = Path(shutil.copy(Path(__file__).with_name("small.toml"), tmp_path))
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(path))
    monkeypatch.setattr(limits, "SECONDS", 0.02)
    monkeypatch.setattr(measure, "has_compiler", lambda: False)  # nothing to wait for
    return path


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual file is read, whatever the variable names."""
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
