"""A replay in files that memory has no room for."""

import pytest
from replay_streams import make, plan

from quintet.errors import ConfigError
from quintet.runtime.replay import replay as replay_module
from quintet.runtime.replay import rings


def test_an_index_that_does_not_fit_in_memory_is_refused_at_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rings, "available_memory", lambda: 80_000)
    make(plan("windows", capacity_steps=9_000), 1, folder=tmp_path / "replay")
    with pytest.raises(ConfigError, match=r"index of a replay requires 80,040 bytes in memory, 80"):
        make(plan("windows", capacity_steps=10_000), 1, folder=tmp_path / "replay")


def test_a_replay_that_memory_can_t_hold_says_that_draws_wait_for_the_disk(
    tmp_path, monkeypatch
) -> None:
    replay = make(plan("windows", capacity_steps=9_000), 1, folder=tmp_path)
    assert "disk" not in replay.describe()
    monkeypatch.setattr(replay_module, "available_memory", lambda: 2**19)
    assert replay.describe().endswith("; 0.5 MiB of memory are free, so draws wait for the disk")
