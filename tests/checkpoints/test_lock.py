"""The lock of a run folder says which process trains there, and is free when that has ended."""

import fcntl
import os
import socket
import subprocess
import sys
import time

import pytest

from quintet.checkpoints import lock
from quintet.checkpoints.lock import run_lock
from quintet.errors import CheckpointError


def test_a_reader_of_the_lock_refuses_no_start(tmp_path, monkeypatch):
    with run_lock(tmp_path):
        assert lock.holder_of(tmp_path) is not None
    reader = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    monkeypatch.setattr(lock.time, "sleep", lambda _: fcntl.flock(reader, fcntl.LOCK_UN))
    with run_lock(tmp_path):
        assert lock.holder_of(tmp_path) is not None
    os.close(reader)


HOLDS = """
import os, sys, time
from pathlib import Path
from quintet.checkpoints.lock import run_lock
if len(sys.argv) > 3 and os.fork():
    while not (Path(sys.argv[1]) / "held").exists():
        time.sleep(0.01)
    os._exit(0)  # the other one is an orphan
with run_lock(Path(sys.argv[1])):
    (Path(sys.argv[1]) / "held").touch()
    time.sleep(float(sys.argv[-1]))
"""


def test_a_process_whose_parent_is_gone_is_awaited_and_no_other(tmp_path):
    def begin(*words: str) -> subprocess.Popen[bytes]:
        (tmp_path / "held").unlink(missing_ok=True)
        begun = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path), *words])
        while not (tmp_path / "held").exists():
            time.sleep(0.01)
        return begun

    lines: list[str] = []
    with begin("60") as child:
        lock.await_orphan(tmp_path, lines.append)  # this process lives
        assert (holder := lock.holder_of(tmp_path)) is not None
        assert (holder.pid, holder.parent) == (child.pid, os.getpid())
        child.kill()
    with begin("orphan", "2.5") as gone:
        assert gone.wait() == 0
        assert (holder := lock.holder_of(tmp_path)) is not None
        assert holder.is_orphan
        lock.await_orphan(tmp_path, lines.append)
    assert lock.holder_of(tmp_path) is None
    (line,) = lines
    assert line.startswith(f"waits for the process with pid {holder.pid}, of an earlier command")


def test_a_process_on_another_machine_is_named_with_it(tmp_path):
    with run_lock(tmp_path):
        (tmp_path / ".lock").write_text("7 elsewhere 6")
        assert (holder := lock.holder_of(tmp_path)) == lock.Holder(7, "elsewhere", 6)
        assert not holder.is_orphan
        with pytest.raises(CheckpointError, match=r"the process with pid 7 on elsewhere\. Wait"):
            lock.require_free(tmp_path)
        (tmp_path / ".lock").write_text(f"7 {socket.gethostname()}")
        with pytest.raises(CheckpointError, match=r"the process with pid 7\. Wait"):
            lock.require_free(tmp_path)
    lock.require_free(tmp_path)
    own = lock.Holder(7, socket.gethostname())
    assert not own.is_orphan
