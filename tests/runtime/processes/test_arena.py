"""Shared memory: what is written by one process is read by another, and nothing is left behind."""

import errno
import os
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
import quick_helpers
import torch

from quintet.errors import ConfigError
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.params import Board, board_specs
from quintet.system import cpus
from quintet.types import Publication, TensorSpec

SPECS = {
    "a/flags": TensorSpec((3,), torch.bool),
    "a/rows": TensorSpec((2, 5), torch.float32),
    "b": TensorSpec((), torch.int64),
    "none": TensorSpec((0, 4), torch.float64),
    "half": TensorSpec((7,), torch.bfloat16),
}


def test_tensors_are_apart_aligned_and_zero() -> None:
    arena = Arena.create(SPECS)
    for name, spec in SPECS.items():
        x = arena.tensor(name)
        assert (x.shape, x.dtype) == (torch.Size(spec.shape), spec.dtype)
        assert x.data_ptr() % 64 == 0
        assert not x.any()
    arena.tensor("a/rows").fill_(-1.0)
    assert arena.tensor("a/rows").sum() == -10
    for name in ("a/flags", "b", "half"):
        assert not arena.tensor(name).any()
    assert set(arena.below("a/")) == {"flags", "rows"}
    arena.close()


def test_another_process_sees_the_same_memory() -> None:
    """By the number of the open file."""
    arena = Arena.create(SPECS)
    arena.tensor("b").fill_(41)
    if not (child := os.fork()):
        mine = Arena(SPECS, os.dup(arena.file))
        seen = mine.tensor("b").item()
        mine.tensor("b").add_(1)
        os._exit(seen)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 41
    assert arena.tensor("b").item() == 42
    arena.close()


def test_no_file_is_left_where_there_is_no_memfd(tmp_path: Path) -> None:
    arena = Arena.create(SPECS, tmp_path)
    arena.tensor("b").fill_(1)
    assert list(tmp_path.iterdir()) == []
    arena.close()


def test_too_little_memory_names_the_size_that_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    large = {"rows": TensorSpec((1000, 1000), torch.float32)}
    memory = namedtuple("memory", "available")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(3_999_999))
    with pytest.raises(
        ConfigError, match=r"of 4,000,000 bytes, got less .*3,999,999 bytes are free"
    ):
        Arena.create(large)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(10**12))
    # A mount that is full: as one that is too small refuses it.
    script = (
        "import resource, sys, signal, torch\n"
        "from pathlib import Path\n"
        "from quintet.errors import ConfigError\n"
        "from quintet.runtime.processes.arena import Arena\n"
        "from quintet.types import TensorSpec\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))\n"
        "specs = {'rows': TensorSpec((1000, 1000), torch.float32)}\n"
        "for folder in (None, Path(sys.argv[1])):\n"
        "    try:\n"
        "        Arena.create(specs, folder)\n"
        "    except ConfigError as error:\n"
        "        print(error)\n"
    )
    with quick_helpers.begin(["-c", script, tmp_path]) as ended:
        said, _ = ended.communicate()
    assert ended.returncode == 0, said
    assert said.count("must have shared memory of 4,000,000 bytes, got less") == 2
    assert said.count("runtime.slots") == 2
    assert list(tmp_path.iterdir()) == []


def test_memory_that_can_not_be_had_is_refused_and_not_died_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where it is promised: a write to it would kill the process."""

    def full(_file: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    files = psutil.Process().num_fds()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"memory of \d+ bytes, got less .*No space left"):
        Arena.create(SPECS)
    assert psutil.Process().num_fds() == files


@pytest.mark.parametrize("version", [1, 2])
def test_files_that_a_container_keeps_in_memory_leave_room(
    version: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cpus, "ROOT", tmp_path)
    folder = tmp_path if version == 2 else tmp_path / "memory"
    limit, usage, prefix = (
        ("memory.max", "memory.current", "")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    )
    folder.mkdir(exist_ok=True)
    (folder / limit).write_text("10000000\n")
    (folder / usage).write_text("9000000\n")
    (folder / "memory.stat").write_text(f"anon 1\n{prefix}inactive_file 2000000\nother 7\n")
    large = {"rows": TensorSpec((1000, 1000), torch.float32)}
    with pytest.raises(ConfigError, match="3,000,000 bytes are free"):
        Arena.create(large)
    (folder / "memory.stat").write_text(
        f"{prefix}inactive_file 2000000\n{prefix}active_file 1000000\n"
    )
    Arena.create(large).close()
    (folder / limit).write_text("max\n")
    (folder / usage).write_text("90000000\n")
    Arena.create(large).close()


def publication(version: int) -> Publication:
    tensors = {"w": torch.full((300, 10), float(version)), "n": torch.tensor(version)}
    return Publication(version, tensors)


def test_a_reader_that_is_overtaken_reads_again() -> None:
    arena = Arena.create(board_specs(0, publication(0)))
    board, theirs = Board(arena, 0), Board(arena, 0)
    assert board.version == -1
    board.write(publication(5))
    seen: list[tuple[int, float, float]] = []

    def load(given: Publication) -> None:
        first = given.tensors["w"][0, 0].item()
        if not seen:  # in the middle of copying, the writer comes round three times
            for version in (6, 7, 8):
                board.write(publication(version))
        seen.append((given.version, first, given.tensors["w"][-1, -1].item()))

    assert theirs.read(load) == 8
    assert seen[0] == (5, 5.0, 8.0)  # half of it; so it was read again
    assert seen[1:] == [(8, 8.0, 8.0)]


def test_the_last_two_versions_can_be_asked_for() -> None:
    arena = Arena.create(board_specs(0, publication(0)))
    board = Board(arena, 0)
    for version in range(1, 5):
        board.write(publication(version))
    loaded: list[float] = []
    for version in (3, 4):
        board.read(lambda given: loaded.append(given.tensors["w"].mean().item()), version)
    assert loaded == [3.0, 4.0]
    with pytest.raises(AssertionError, match="version 1 is not on the board"):
        board.read(lambda _: None, 1)
