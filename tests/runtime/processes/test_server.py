"""The inference server: how many streams it acts on at once, and whom it listens to."""

import os
from pathlib import Path
from socket import socketpair
from typing import Any

import pytest
from troubles_helpers import SMALL, Drifting

import quintet
from quintet.runtime.processes.server import _another_users


def served(folder: Path, steps: int = 4_000, **runtime: Any) -> float:
    """Mean streams of a forward, of two workers with a group of four streams each."""
    config = SMALL | {"env.num_streams": 8, "env.streams_per_group": 4}
    given = {"kind": "async", "num_workers": 2, "inference": "server", **runtime}
    config |= {f"runtime.{name}": value for name, value in given.items()}
    result = quintet.train("ppo", Drifting, steps, 7, folder, config)
    return result.metrics["server/batch_mean"]


def test_the_server_waits_for_as_many_streams_as_it_is_told_to(tmp_path: Path) -> None:
    """Not for ever: where one worker has no free slot the other goes on by itself."""
    assert served(tmp_path, 960, inference_batch_min=8, inference_timeout_ms=150.0) > 6.0


@pytest.mark.slow
def test_the_server_acts_on_no_more_streams_than_it_is_told_to(tmp_path: Path) -> None:
    assert served(tmp_path, inference_batch_max=4) == 4.0


def test_another_user_of_the_machine_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socketpair()
    assert not _another_users(ours)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert _another_users(ours)
    ours.close()
    theirs.close()
