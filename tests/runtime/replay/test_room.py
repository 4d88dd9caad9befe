"""A replay in files that memory has no room for."""

import pytest
from replay_streams_helpers import make, plan

from quintet.errors import ConfigError
from quintet.runtime.replay import replay as replay_module
from quintet.system import cpus, memory


def test_an_index_that_does_not_fit_in_memory_is_refused_at_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 80_000)
    make(plan("windows", capacity_steps=9_000), 1, folder=tmp_path / "replay")
    with pytest.raises(ConfigError, match=r"index of .* 80,040 bytes of memory, got 80,000 free"):
        make(plan("windows", capacity_steps=10_000), 1, folder=tmp_path / "replay")


def test_a_replay_that_memory_can_t_hold_says_that_draws_wait_for_the_disk(
    tmp_path, monkeypatch
) -> None:
    replay = make(plan("windows", capacity_steps=9_000), 1, folder=tmp_path)
    assert "disk" not in replay.describe()
    monkeypatch.setattr(replay_module, "free_bytes", lambda: 2**19)
    assert replay.describe().endswith("; 0.5 MiB of memory are free, so draws wait for the disk")


def test_the_limit_of_a_container_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(cpus, "ROOT", tmp_path)
    for name, text in (("max", "100000"), ("current", "20000"), ("stat", "anon 20000")):
        (tmp_path / f"memory.{name}").write_text(text)
    with pytest.raises(ConfigError, match="got 80,000 free"):
        memory.require(80_001, "a replay", "lower it")
    memory.require(80_000, "a replay", "lower it")
