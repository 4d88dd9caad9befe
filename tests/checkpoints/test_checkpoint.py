"""Checkpoints survive crashes, full disks and bit rot; a run folder has one trainer."""

import errno
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from disks_helpers import small_disk
from pydantic import ValidationError

from quintet.checkpoints import checkpoint, lock
from quintet.checkpoints.checkpoint import Checkpoint, CheckpointConfig
from quintet.checkpoints.lock import run_lock
from quintet.errors import CheckpointError

MANY_KINDS = {
    "float32": torch.randn(3, 4),
    "float64": torch.randn(5, dtype=torch.float64),
    "bfloat16": torch.randn(3).bfloat16(),
    "int64": torch.tensor([2**62, -1]),
    "uint8": torch.arange(7, dtype=torch.uint8),
    "bool": torch.tensor([True, False]),
    "no_dimensions": torch.tensor(3.5),
    "no_dimensions_int": torch.tensor(2**40),
    "empty": torch.zeros(0, 3),
    "special": torch.tensor([float("nan"), float("inf"), -0.0]),
}


def write_number(root: Path, number: int, value: float | None = None, **meta: object) -> Path:
    tensors = {"learner": {"w": torch.full((50,), float(number if value is None else value))}}
    return checkpoint.write(root, f"{number:09d}", tensors, {"exact": True, **meta})


def value_of(found: Checkpoint | None) -> float:
    """The one value of a checkpoint of `write_number`, which must be whole."""
    assert found is not None
    values = found.tensors["learner"]["w"]
    assert values.shape == (50,)
    assert (values == values[0]).all()
    return values[0].item()


def no_warning(message: str) -> None:
    raise AssertionError(f"unexpected warning: {message}")


def hidden(root: Path) -> list[str]:
    return [entry.name for entry in root.iterdir() if entry.name.startswith(".")]


def test_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    meta = {"exact": True, "beta": 1 / 3, "note": "ü", "none": None, "list": [1, 2.5]}
    path = checkpoint.write(tmp_path / "new", "000000001", {"a": MANY_KINDS, "b": {}}, meta)
    found = checkpoint.read(path)
    assert found.meta == meta
    assert found.tensors["b"] == {}
    assert list(found.tensors["a"]) == sorted(MANY_KINDS)
    for name, tensor in MANY_KINDS.items():
        back = found.tensors["a"][name]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert back.reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8)), name
        back.zero_()  # memory of its own, writable
    assert hidden(path.parent) == []


def test_views_and_shared_memory_are_stored_by_value(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    views = {"base": base, "again": base, "row": base[1], "transposed": base.T, "grad": base * 1}
    views["grad"].requires_grad_()
    found = checkpoint.read(checkpoint.write(tmp_path, "x", {"a": views}, {}))
    for name, tensor in views.items():
        assert found.tensors["a"][name].equal(tensor.detach()), name
    found.tensors["a"]["base"].zero_()
    assert found.tensors["a"]["again"].equal(base)


def test_hashes_tell_apart_dtype_shape_and_bits(tmp_path: Path) -> None:
    zeros = {
        "float": torch.zeros(4),
        "int": torch.zeros(4, dtype=torch.int32),
        "square": torch.zeros(2, 2),
        "negative": torch.tensor([0.0, 0.0, 0.0, -0.0]),
        "scalar": torch.tensor(0.0),
    }
    first = checkpoint.tensor_hashes(Checkpoint(tmp_path, {"k": zeros}, {}, None))
    assert len(set(first.values())) == len(zeros)
    assert set(first) == {f"k/{name}" for name in zeros}
    again = checkpoint.read(checkpoint.write(tmp_path, "x", {"k": zeros}, {}))
    assert checkpoint.tensor_hashes(again) == first


def test_same_content_gives_the_same_files(tmp_path: Path) -> None:
    backwards = dict(reversed(MANY_KINDS.items()))
    a = checkpoint.write(tmp_path, "a", {"k": MANY_KINDS}, {"x": 1})
    b = checkpoint.write(tmp_path, "b", {"k": backwards}, {"x": 1})
    for file in a.iterdir():
        assert file.read_bytes() == (b / file.name).read_bytes(), file.name


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../up", "ä", "."])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="must be made of letters"):
        checkpoint.write(tmp_path, name, {}, {})
    with pytest.raises(CheckpointError, match="must be made of letters"):
        checkpoint.write(tmp_path, "good", {name: {}}, {})
    assert list(tmp_path.iterdir()) == []


def test_meta_that_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="JSON"):
        checkpoint.write(tmp_path, "x", {}, {"x": torch.zeros(1)})


# damage


def flip_byte(folder: Path) -> str:
    file = folder / "learner.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    return "learner.safetensors is corrupted"


def cut_short(folder: Path) -> str:
    file = folder / "learner.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    return "learner.safetensors has [0-9]+ bytes"


def remove_tensors(folder: Path) -> str:
    (folder / "learner.safetensors").unlink()
    return "learner.safetensors can't be read"


def remove_manifest(folder: Path) -> str:
    (folder / "manifest.json").unlink()
    return "manifest.json can't be read"


def tear_manifest(folder: Path) -> str:
    file = folder / "manifest.json"
    os.truncate(file, file.stat().st_size // 2)
    return "manifest.json is damaged"


def change_meta(folder: Path) -> str:
    file = folder / "meta.json"
    file.write_text(file.read_text().replace("true", "null"))
    return "meta.json is corrupted"


def make_newer(folder: Path) -> str:
    file = folder / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format_version": 99}))
    return "format version 99"


def lead_outside(folder: Path) -> str:
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"]["../000000001/learner.safetensors"] = {"bytes": 0, "sha256": ""}
    file.write_text(json.dumps(manifest))
    return "must be made of letters"


def leave_meta_out(folder: Path) -> str:
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["files"]["meta.json"]
    file.write_text(json.dumps(manifest))
    return "lists no meta.json"


DAMAGES = [
    flip_byte,
    cut_short,
    remove_tensors,
    remove_manifest,
    tear_manifest,
    change_meta,
    make_newer,
    lead_outside,
    leave_meta_out,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_the_one_before_is_used(
    tmp_path: Path, damage: Callable[[Path], str]
) -> None:
    for number in (1, 2, 3):
        write_number(tmp_path, number)
    told = damage(tmp_path / "000000003")
    with pytest.raises(CheckpointError, match=told):
        checkpoint.read(tmp_path / "000000003")
    warnings: list[str] = []
    assert value_of(checkpoint.latest(tmp_path, warn=warnings.append)) == 2
    assert len(warnings) == 1
    assert "000000003" in warnings[0]
    assert str(tmp_path / "000000002") in warnings[0]


def test_only_damaged_ones_do_not_mean_begin_anew(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path / "nothing", warn=no_warning) is None
    write_number(tmp_path, 1)
    flip_byte(tmp_path / "000000001")
    with pytest.raises(CheckpointError, match=r"can be read.*corrupted"):
        checkpoint.latest(tmp_path, warn=no_warning)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        checkpoint.read(tmp_path / "000000002")


def test_latest_is_by_number_and_may_ask_for_scheduled(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path, warn=no_warning) is None
    for number in (9, 10, 100):
        checkpoint.write(tmp_path, str(number), {}, {"exact": number < 100, "n": number})
    checkpoint.write(tmp_path, "best", {}, {"exact": True, "n": 999})
    newest = checkpoint.latest(tmp_path, warn=no_warning)
    scheduled = checkpoint.latest(tmp_path, exact_only=True, warn=no_warning)
    assert newest is not None
    assert scheduled is not None
    assert (newest.meta["n"], scheduled.meta["n"]) == (100, 10)


# crashes

CALLS = ("open", "write", "fsync", "close", "mkdir", "rename", "unlink", "rmdir")


def die_at_call(at: int, action: Callable[[], object]) -> bool:
    """Runs `action` in a process that is killed at the `at`-th file operation; True if it was."""
    child = os.fork()
    if child == 0:
        left = at

        def deadly(call: Callable[..., object]) -> Callable[..., object]:
            def wrapped(*args: object, **kwargs: object) -> object:
                nonlocal left
                left -= 1
                if left == 0:
                    if call is real_write:  # half of it reaches the file
                        real_write(args[0], args[1][: len(args[1]) // 2])  # type: ignore[arg-type,index]
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **kwargs)

            return wrapped

        real_write = os.write
        for name in CALLS:
            setattr(os, name, deadly(getattr(os, name)))
        try:
            action()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def test_kill_at_every_file_operation_of_a_new_checkpoint(tmp_path: Path) -> None:
    outcomes = []
    for at in range(1, 200):
        root = tmp_path / str(at)
        write_number(root, 1)
        killed = die_at_call(at, lambda root=root: write_number(root, 2))
        outcomes.append(value_of(checkpoint.latest(root, warn=no_warning)))
        checkpoint.clean_temporary(root)
        assert hidden(root) == []
        assert value_of(checkpoint.latest(root, warn=no_warning)) == outcomes[-1]
        if not killed:
            break
    assert at > 10, "too few operations were seen"
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {1, 2}


def test_kill_at_every_file_operation_of_a_replacement(tmp_path: Path) -> None:
    outcomes = []
    for at in range(1, 200):
        root = tmp_path / str(at)
        write_number(root, 2, value=20)
        killed = die_at_call(at, lambda root=root: write_number(root, 2, value=21))
        outcomes.append(value_of(checkpoint.latest(root, warn=no_warning)))
        assert value_of(checkpoint.read(root / "000000002")) == outcomes[-1]
        checkpoint.clean_temporary(root)
        assert hidden(root) == []
        assert value_of(checkpoint.latest(root, warn=no_warning)) == outcomes[-1]
        # and the next writer finds its way
        assert value_of(checkpoint.read(write_number(root, 2, value=22))) == 22
        if not killed:
            break
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {20, 21}


def test_kill_at_every_file_operation_of_pruning(tmp_path: Path) -> None:
    for at in range(1, 200):
        root = tmp_path / str(at)
        for number in (1, 2, 3):
            write_number(root, number)
        killed = die_at_call(
            at, lambda root=root: checkpoint.prune(root, 1, protect=lambda _meta: False)
        )
        for name in (entry.name for entry in root.iterdir() if entry.name[0] != "."):
            assert value_of(checkpoint.read(root / name)) == int(name)
        if not killed:
            break
    assert at > 3
    assert sorted(entry.name for entry in root.iterdir()) == ["000000003"]


def test_kill_at_drawn_moments(tmp_path: Path) -> None:
    draw = random.Random(0)
    last = 0.0
    for _ in range(12):
        child = os.fork()
        if child == 0:
            try:
                for number in range(int(last) + 1, 10**6):
                    write_number(tmp_path, number)
                    write_number(tmp_path, 0, value=number)
                    checkpoint.prune(tmp_path, 3, protect=lambda _meta: False)
            finally:
                os._exit(0)
        time.sleep(draw.uniform(0.005, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = checkpoint.latest(tmp_path, warn=no_warning)
        if found is not None:
            assert value_of(found) == int(found.path.name) >= last
            last = value_of(found)
        checkpoint.clean_temporary(tmp_path)
    assert last > 0


def test_reader_meets_replacements(tmp_path: Path) -> None:
    write_number(tmp_path, 1)
    child = os.fork()
    if child == 0:
        try:
            for value in range(2, 10**6):
                write_number(tmp_path, 1, value=value)
        finally:
            os._exit(0)
    try:
        end = time.monotonic() + 0.5
        seen = set()
        while time.monotonic() < end:
            seen.add(value_of(checkpoint.read(tmp_path / "000000001")))
        assert len(seen) > 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_handle: int) -> None:
        raise KeyboardInterrupt

    write_number(tmp_path, 1)
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_number(tmp_path, 2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["000000001"]


# full disks


def test_full_disk_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_number(tmp_path, 1)
    write_number(tmp_path, 2)
    flip_byte(tmp_path / "000000002")

    def full(_handle: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CheckpointError) as caught:
        write_number(tmp_path, 3)
    message = str(caught.value)
    assert "000000003" in message
    assert "No space left on device" in message
    assert "bytes needed" in message
    assert "bytes free" in message
    assert f"last good checkpoint is {tmp_path / '000000001'}" in message
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["000000001", "000000002"]


def test_really_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 512) as disk:
        tensors = {"learner": {"w": torch.zeros(40_000)}}
        checkpoint.write(disk, "1", tensors, {"exact": True})
        checkpoint.write(disk, "2", tensors, {"exact": True})
        checkpoint.write(disk, "3", tensors, {"exact": True})
        with pytest.raises(CheckpointError, match=r"No space left.*160,\d+ bytes needed.*disk/3"):
            checkpoint.write(disk, "4", tensors, {})
        assert hidden(disk) == []
        found = checkpoint.latest(disk, warn=no_warning)
        assert found is not None
        # a replacement that does not fit leaves the old one
        with pytest.raises(CheckpointError):
            checkpoint.write(disk, "1", {"learner": {"w": torch.zeros(90_000)}}, {})
        assert checkpoint.read(disk / "1").tensors["learner"]["w"].shape == (40_000,)


# which are kept


def names(root: Path) -> list[int]:
    return sorted(int(entry.name) for entry in root.iterdir())


def test_pruning_keeps_newest_milestones_and_newest_scheduled(tmp_path: Path) -> None:
    for number in range(1, 9):
        write_number(tmp_path, number, exact=number <= 5, milestone=number in (2, 8))
    deleted = checkpoint.prune(tmp_path, 2, protect=lambda meta: meta["milestone"])
    assert names(tmp_path) == [2, 5, 7, 8]
    assert sorted(int(name) for name in deleted) == [1, 3, 4, 6]


def test_pruning_does_not_touch_other_folders(tmp_path: Path) -> None:
    for name in ("best", "1", "2"):
        checkpoint.write(tmp_path, name, {}, {})
    (tmp_path / "notes").mkdir()
    assert checkpoint.prune(tmp_path, 1, protect=lambda _meta: False) == ["1"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["2", "best", "notes"]


def test_config_intervals_and_milestones() -> None:
    assert CheckpointConfig().interval(489) == 24
    assert CheckpointConfig().interval(3) == 1
    assert CheckpointConfig(interval_iterations=7).interval(489) == 7

    def milestones(config: CheckpointConfig, total: int, written: list[int]) -> list[int]:
        pairs = pairwise([0, *written])
        return [now for before, now in pairs if config.is_milestone(total, before, now)]

    every_ten = [*range(10, 100, 10), 100]
    assert milestones(CheckpointConfig(), 100, every_ten) == []
    assert milestones(CheckpointConfig(milestones=3), 100, every_ten) == [40, 70, 100]
    # whatever the distance from one to the next
    assert milestones(CheckpointConfig(milestones=3), 95, [7, 31, 33, 64, 90, 95]) == [33, 64, 95]
    for bad in ({"interval_iterations": 0}, {"keep": 0}, {"milestones": -1}, {"kep": 1}):
        with pytest.raises(ValidationError):
            CheckpointConfig(**bad)  # type: ignore[arg-type]


# the lock

HOLDER = """
import sys, time
from pathlib import Path
from quintet.checkpoints.lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_lock_names_its_holder_and_dies_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        in_use = pytest.raises(
            CheckpointError, match=rf"in use by the process with pid {holder.pid}\b"
        )
        with in_use, run_lock(folder):
            pass
        holder.send_signal(signal.SIGKILL)
    mine = pytest.raises(CheckpointError, match=f"pid {os.getpid()}")
    with run_lock(folder), mine, run_lock(folder):
        pass
    with run_lock(folder):
        pass


def test_a_fork_gives_the_lock_up(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    with run_lock(tmp_path / "run"):
        if not (pid := os.fork()):
            there.send(b"x")
            there.recv(1)
            os._exit(0)
        here.recv(1)
        with pytest.raises(CheckpointError, match="in use"), run_lock(tmp_path / "run"):
            pass
        os.close(lock._held.pop())  # as a kill does
        with run_lock(tmp_path / "run"):  # though the fork lives
            pass
    here.send(b"x")
    os.waitpid(pid, 0)
    here.close()
    there.close()


def test_giant_files_are_not_read(tmp_path: Path) -> None:
    place = checkpoint.write(tmp_path, "1", {"a": {"x": torch.zeros(2)}}, {})
    for name in ("a.safetensors", "manifest.json"):
        size = (place / name).stat().st_size
        os.truncate(place / name, 2**40)  # which takes no room on the disk
        with pytest.raises(CheckpointError, match=r"has 1,?099,?511,?627,?776 bytes"):
            checkpoint.read(place)
        os.truncate(place / name, size)
    checkpoint.read(place)


@pytest.mark.parametrize(
    ("dtype", "shape", "count"),
    [
        ("F8_E8M0", [2], 2), ("F8_E4M3", [2], 2), ("F32", [0, 2**62, 8], 0),
        ("F32", [0, 2**64 - 1], 0),
    ],
)  # fmt: skip
def test_strange_tensors_are_refused(tmp_path: Path, dtype: str, shape: list, count: int) -> None:
    place = checkpoint.write(tmp_path, "1", {"a": {"x": torch.zeros(2)}}, {})
    head = {"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, count]}}
    text = json.dumps(head).encode()
    data = len(text).to_bytes(8, "little") + text + b"\0" * count
    (place / "a.safetensors").write_bytes(data)
    manifest = json.loads((place / "manifest.json").read_text())
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest["files"]["a.safetensors"] = entry
    (place / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"a\.safetensors"):
        checkpoint.read(place)
