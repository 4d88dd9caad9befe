"""The limits of a process are those of its control group and of the groups around it."""

from pathlib import Path

import pytest

from quintet.system import cpus
from quintet.system.cpus import usable_cores
from quintet.system.memory import free_bytes


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "groups").mkdir()
    monkeypatch.setattr(cpus, "ROOT", tmp_path / "groups")
    monkeypatch.setattr(cpus, "_OWN", tmp_path / "own")
    return tmp_path


def limited(folder: Path, version: int, nbytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    limit, usage = ("memory.max", "memory.current") if version == 2 else (
        "memory.limit_in_bytes", "memory.usage_in_bytes"
    )  # fmt: skip
    (folder / limit).write_text(f"{nbytes}\n")
    (folder / usage).write_text("1000\n")
    (folder / "memory.stat").write_text("anon 1\n")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tightest", ["", "slurm", "slurm/job"])
def test_memory_is_limited_by_the_tightest_group(machine: Path, version: int, tightest: str):
    own = "3:cpu:/other\n4:memory:/slurm/job\n0::/\n" if version == 1 else "0::/slurm/job\n"
    (machine / "own").write_text(own)
    root = machine / "groups" / ("memory" if version == 1 else "")
    for group in ("", "slurm", "slurm/job"):
        limited(root / group, version, 51_000 if group == tightest else 10**15)
    assert free_bytes() == 50_000


def test_cores_are_limited_by_a_group_around(machine: Path):
    (machine / "own").write_text("0::/slice/job\n")
    (machine / "groups/slice/job").mkdir(parents=True)
    (machine / "groups/slice/cpu.max").write_text("100000 100000\n")
    assert usable_cores() == 1


@pytest.mark.parametrize("path", ["/docker/0123", "/../../host"])
def test_a_path_of_the_host_is_passed_over(machine: Path, path: str):
    (machine / "own").write_text(f"0::{path}\n")
    limited(machine / "groups", 2, 51_000)
    assert cpus.groups("memory") == [machine / "groups"]
    assert free_bytes() == 50_000
