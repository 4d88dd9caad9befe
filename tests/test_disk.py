"""Faults of the disk itself: its power is cut, it is read-only, it is full."""

import contextlib
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import quick_helpers
from disks_helpers import mounted, small_disk

from quintet.checkpoints import manifest

EXT4_SHUTDOWN = 0x8004587D
NO_FLUSH = 2  # what is not on the disk yet never gets there, as when its power goes
TOTAL = 40_000


def command(folder: Path, *more: str) -> list[str]:
    words = ["train", "ppo", "--env", "quintet.envs.toy:Contextual", "--total-steps", str(TOTAL)]
    words += ["--env.num-streams", "4", "--unroll-steps", "16", "--minibatch-steps", "32"]
    words += ["--eval.episodes", "0", "--checkpoint.interval-iterations", "5"]
    return [sys.executable, "-m", "quintet", *words, "--run-dir", str(folder), *more]


def disk(image: Path, place: Path, *options: str) -> contextlib.AbstractContextManager[Path]:
    """The image as a disk of its own."""
    return mounted(place, "-o", ",".join(("loop", *options)), str(image))


def make_image(image: Path) -> None:
    made = ["mkfs.ext4", "-q", "-F", str(image), "40M"]
    try:
        subprocess.run(made, capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("there is no program mkfs.ext4, which makes the disk whose power is cut")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"mkfs.ext4 makes no disk here: {error.stderr.decode().strip()}")


def cut_power(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, EXT4_SHUTDOWN, struct.pack("I", NO_FLUSH))
    except OSError as error:
        pytest.skip(f"this kernel does not shut an ext4 file system down: {error.strerror}")
    finally:
        os.close(handle)


@pytest.mark.slow
@pytest.mark.parametrize("checkpoints", [1, 2, 3, 6])
def test_a_power_cut_loses_no_checkpoint_that_was_written(tmp_path, checkpoints):
    image, place = tmp_path / "image", tmp_path / "disk"
    make_image(image)
    folder = place / "runs/r"
    with disk(image, place):
        os.sync()
        running = subprocess.Popen(
            command(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            deadline = time.monotonic() + 120
            while True:
                with contextlib.suppress(Exception):
                    # The newest has its name, but the folder that says so may not be synced yet.
                    *written, _ = manifest.numbered(folder / "checkpoints")
                    if written and int(written[-1]) >= 5 * checkpoints:
                        break
                assert running.poll() is None, running.stdout.read().decode()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            cut_power(place)
        finally:
            running.send_signal(signal.SIGKILL)
            running.communicate()
    with disk(image, place):
        left = manifest.numbered(folder / "checkpoints")
        assert left
        assert int(left[-1]) >= int(written[-1])
        newest = manifest.newest(folder / "checkpoints")
        assert newest is not None
        assert newest.path.name == left[-1]
        assert (folder / "config.yaml").stat().st_size > 0
        done = subprocess.run(command(folder), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"from {newest.path}" in done.stdout
        assert "damaged" not in done.stderr


def one_sentence(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2), done
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    return done.stderr


@pytest.mark.slow
def test_a_read_only_disk_is_one_sentence(tmp_path):
    image, place = tmp_path / "image", tmp_path / "disk"
    make_image(image)
    small = command(place / "r", "--total-steps", "640")
    with disk(image, place):
        assert subprocess.run(small, capture_output=True, check=False).returncode == 0
    with disk(image, place, "ro"):
        quintet = [sys.executable, "-m", "quintet"]
        for words in (small, command(place / "new"), [*quintet, "plot", str(place / "r"),
                      "--out", str(place / "x.png")]):  # fmt: skip
            said = one_sentence(*words)
            assert re.search(
                r"Read-only file system.*mounted read-only: mount it for writing", said
            )
        evaluated = subprocess.run([*quintet, "eval", str(place / "r"), "--episodes", "1"],
                                   capture_output=True, text=True, check=False)  # fmt: skip
        assert evaluated.returncode == 0, evaluated.stderr


FULL = """
import errno, os, sys
place, real = sys.argv.pop(1), os.write

def write(handle, data):
    if os.readlink(f"/proc/self/fd/{handle}").startswith(place):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return real(handle, data)

os.write = write
from quintet.commands.start import main
sys.exit(main())
"""
"""The command where no byte can be written under a folder, as on a full disk; for any user."""


@pytest.mark.parametrize("full", [pytest.param("disk", marks=pytest.mark.slow), "write"])
def test_a_full_disk_at_the_start_asks_for_room(full, tmp_path):
    if full == "disk":
        with small_disk(tmp_path / "disk", 8) as place:
            (place / "filler").write_bytes(b"x" * 8192)
            said = one_sentence(*command(place / "r"))
    else:
        words = command(tmp_path / "r")[3:]
        with quick_helpers.begin(["-c", FULL, str(tmp_path), *words]) as process:
            said, _ = process.communicate()
        assert process.returncode in (1, 2), said
        assert len(said.strip().splitlines()) == 1, said
    assert "No space left" in said
    assert "make room there" in said


EVERY = """
import contextlib, io, json, sys
from quintet.commands.cli import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        status = main(words)
    print(json.dumps([status, said.getvalue()]), flush=True)
"""
"""Commands one after another: the status of each, and what it said.  One that ends in a traceback
or a crash ends them all.
"""


def test_brackets_without_end_are_one_sentence_of_every_command(tmp_path):
    deep, out = tmp_path / "deep", str(tmp_path / "x.png")
    deep.write_text("[" * 20_000)
    run = tmp_path / "r"
    run.mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        (run / name).write_text("[" * 20_000 + "\n")
    new = ["ppo", "--env", "CartPole-v1"]
    commands = [
        ["train", *new, "--config", str(deep)],
        ["train", *new, "--run-dir", str(run)],
        ["config", *new, "--config", str(deep)],
        ["eval", str(run)],
        ["plot", str(run), "--out", out],
    ]
    with quick_helpers.begin(["-c", EVERY, json.dumps(commands)]) as done:
        said, _ = done.communicate()
    assert done.returncode == 0, said
    ended = [json.loads(line) for line in said.splitlines()]
    assert len(ended) == len(commands)
    for command, (status, said) in zip(commands, ended, strict=True):
        assert status in (1, 2), command
        assert "RecursionError" not in said
        assert 1 <= len(said.strip().splitlines()) <= 3, (command, said)
