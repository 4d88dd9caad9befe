"""Cores are counted as what this process gets of them."""

import os
from pathlib import Path

import pytest

from quintet.system import cpus
from quintet.system.cpus import usable_cores


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Eight cpus, and an empty folder of control groups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(cpus, "ROOT", tmp_path)
    return tmp_path


def test_those_that_it_is_bound_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert usable_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == os.cpu_count()


@pytest.mark.parametrize(
    ("said", "number"),
    [("max 100000", 8), ("200000 100000\n", 2), ("150000 100000", 2), ("5000 100000", 1),
     ("9000000 100000", 8), ("", 8)],
)  # fmt: skip
def test_no_more_than_the_container_is_given(machine: Path, said: str, number: int) -> None:
    (machine / "cpu.max").write_text(said)
    assert usable_cores() == number


@pytest.mark.parametrize(("quota", "number"), [("-1", 8), ("300000", 3), ("0", 8)])
def test_older_control_groups(machine: Path, quota: str, number: int) -> None:
    (machine / "cpu").mkdir()
    (machine / "cpu" / "cpu.cfs_quota_us").write_text(quota + "\n")
    (machine / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores() == number
