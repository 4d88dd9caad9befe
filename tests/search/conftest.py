"""Runs of a group that begin at once."""

import pytest
import quick_helpers

from quintet.jobs import local


@pytest.fixture
def members_are_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a seed group are forks of a process that has imported PyTorch, as `quick` has it."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(local, "Child", quick_helpers.forks(quick_helpers.PRELOAD))
