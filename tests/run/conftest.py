"""Runs of a group that begin at once."""

from functools import partial

import pytest
import quick_helpers

from quintet.run import seed_group
from quintet.system.child import Child


@pytest.fixture
def members_are_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a seed group are forks of a process that has imported PyTorch, as `quick` has it."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(seed_group, "Child", partial(Child, preload=quick_helpers.PRELOAD))
