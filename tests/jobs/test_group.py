"""Jobs in processes: they start, print, answer and end, alone and together."""

import errno
import hashlib
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from quintet.jobs import entry, local
from quintet.jobs.child_process import Child
from quintet.jobs.group import run_all, run_one
from quintet.jobs.job import Job, Limits, Outcome

TESTS = Path(__file__).parent
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Jobs find the modules beside this one."""
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{TESTS.parent}")


def job(place: Path, name: str = "a", pad: int = 0, **given: Any) -> Job:
    payload = json.dumps({"place": str(place), **given}).encode() + b"\0" * pad
    return Job(name, "group_job_helpers", payload)


def running(place: Path) -> list[int]:
    return [int(path.name.split("-")[1]) for path in place.glob("running-*")]


def wait_for(condition) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def give(process: subprocess.Popen[bytes], payload: bytes) -> None:
    """Sends what the process of a job waits for."""
    content = pickle.dumps((math.inf, None, payload))
    process.stdin.write(entry.LENGTH.pack(len(content)) + content)
    process.stdin.flush()


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return status != "Z"


def test_jobs_look_for_modules_where_their_parent_does(tmp_path, monkeypatch):
    """Not into the working folder, which may be a stranger's."""
    mark, work = tmp_path / "mark", tmp_path / "work"
    work.mkdir()
    for name in ("json", "pickle", "hashlib"):
        (work / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\n")
    monkeypatch.chdir(work)
    (ended,) = run_all([job(tmp_path)], 1, lambda _: None)
    assert not mark.exists()
    assert ended.status == 0


def test_jobs_answer_in_their_order_and_speak_under_their_names(tmp_path):
    said: list[str] = []
    jobs = [job(tmp_path, name, seconds=s) for name, s in (("s1", 0.6), ("s20", 0))]
    jobs.append(job(tmp_path, "bad", status=3))
    ended = run_all(jobs, 3, said.append)
    assert [each.status for each in ended] == [0, 0, 3]
    assert ended[0].answer == {"said": {"place": str(tmp_path), "seconds": 0.6}}
    assert ended[1].answer == {"said": {"place": str(tmp_path), "seconds": 0}}
    assert ended[2].answer is None
    for name in ("s1", "s20", "bad"):
        lines = [line for line in said if line.startswith(f"[{name}] ")]
        assert lines[0] == f"[{name}] hello"
        assert lines[1].startswith(f"[{name}] sum ")
        assert lines[2] == f"[{name}] to stderr"
        assert len(lines) == 3


def test_a_job_that_can_t_begin_stops_no_other(tmp_path, monkeypatch):
    def refused(name: str, *more: Any, **others: Any) -> Any:
        if name == "b":
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return Child(name, *more, **others)

    monkeypatch.setattr(local, "Child", refused)
    jobs = [job(tmp_path, name, seconds=0.5) for name in "abc"]
    a, b, c = run_all(jobs, 2, lambda _: None)
    assert (a.status, c.status) == (0, 0)
    assert b.status == 1
    assert b.answer["error"].startswith("its process can't be started: ")
    assert b.answer["blameless"]


def test_a_job_that_is_killed_for_its_time_is_told_from_one_that_is_killed(tmp_path):
    jobs = [
        job(tmp_path, "late", seconds=WAIT_S)._replace(limits=Limits(0.1)),
        job(tmp_path, "killed", status=-9),
    ]
    late, other = run_all(jobs, 2, lambda _: None)
    assert (late.status, late.late, other.late) == (-9, True, False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_stopped_while_users_code_runs_blames_nobody(number):
    """Before the run handles signals: no exit, which would be an error of that code."""
    code = (
        "import os, sys\n"
        "from quintet.jobs import work\n"
        "from quintet.system.user_code import no_exit\n"
        "work.receive(orderly=True)\n"
        "@no_exit()\n"
        f"def made(): os.kill(os.getpid(), {int(number)}); import time; time.sleep(60)\n"
        "made()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "1"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        give(process, b"x")
        assert process.wait(WAIT_S) == 130
        assert process.stderr.read() == b""


def test_an_answer_may_be_longer_than_a_pipe_holds(tmp_path):
    long = "x" * 300_000
    (ended,) = run_all([job(tmp_path, long=long)], 1, lambda _: None)
    assert ended.status == 0
    assert ended.answer["said"]["long"] == long


@pytest.mark.parametrize("at_once", [1, 2])
def test_no_more_than_so_many_at_once(tmp_path, at_once):
    most, done = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, len(running(tmp_path)))
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    jobs = [job(tmp_path, str(i), seconds=0.6) for i in range(3)]
    ended = run_all(jobs, at_once, lambda _: None)
    done.set()
    watcher.join()
    assert [each.status for each in ended] == [0, 0, 0]
    assert most == at_once


def test_a_large_payload_arrives_whole(tmp_path):
    said: list[str] = []
    large = job(tmp_path, pad=3_000_000)
    (ended,) = run_all([large], 1, said.append)
    assert ended.status == 0
    assert f"[a] sum {hashlib.sha256(large.payload).hexdigest()[:8]}" in said


def test_a_job_that_dies_before_it_reads_stops_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("JOB", "--die")
    jobs = [job(tmp_path, pad=3_000_000), job(tmp_path)]
    ended = run_all(jobs, 1, lambda _: None)
    assert [(each.status, each.answer) for each in ended] == [(7, None)] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_and_no_more_are_started(tmp_path, number):
    before = signal.getsignal(number)

    def interrupt() -> None:
        wait_for(lambda: len(running(tmp_path)) == 2)
        os.kill(os.getpid(), number)

    threading.Thread(target=interrupt).start()
    jobs = [job(tmp_path, str(i), seconds=WAIT_S, orderly=True) for i in range(3)]
    ended = run_all(jobs, 2, lambda _: None)
    assert [each.status for each in ended] == [130, 130, None]
    assert [each.answer for each in ended] == [{"stopped": True}, {"stopped": True}, None]
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_kills(tmp_path):
    def interrupt() -> None:
        wait_for(lambda: running(tmp_path))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_all([job(tmp_path, seconds=WAIT_S, stubborn=True)], 1, lambda _: None)
    assert not any(alive(pid) for pid in running(tmp_path))


def test_nothing_outlives_a_killed_parent(tmp_path):
    code = (
        "import json; from quintet.jobs.group import run_all\n"
        "from quintet.jobs.job import Job\n"
        f"given = {{'place': {str(tmp_path)!r}, 'seconds': {WAIT_S}, 'orderly': True}}\n"
        "jobs = [Job(name, 'group_job_helpers', json.dumps(given).encode()) for name in 'ab']\n"
        "run_all(jobs, 2, print)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    wait_for(lambda: len(running(tmp_path)) == 2)
    pids = running(tmp_path)
    parent.kill()
    parent.communicate()
    wait_for(lambda: not any(alive(pid) for pid in pids))
    assert {path.name for path in tmp_path.glob("stopped-*")} == {f"stopped-{p}" for p in pids}


def test_a_job_that_hangs_ends_a_while_after_its_parent(tmp_path):
    """One that can't stop in good order is given its grace and no more."""
    code = (
        "from quintet.jobs import work; work.ORPHAN_GRACE_S = 0.2\n"
        "import group_job_helpers; group_job_helpers.main()"
    )
    with subprocess.Popen([sys.executable, "-c", code, "1"], stdin=subprocess.PIPE) as process:
        give(process, job(tmp_path, seconds=WAIT_S, stubborn=True).payload)
        wait_for(lambda: running(tmp_path))
        process.stdin.close()
        assert process.wait(WAIT_S) == 130


def test_one_job_has_its_limits_and_the_newest_of_its_answers(tmp_path):
    """Its own lines have no name in front; what it says about a key twice holds the second time."""
    said: list[str] = []
    ended = run_one(job(tmp_path, twice=True), said.append)
    assert ended.answer == {"said": "second", "other": 1}
    assert said[0] == "hello"
    late = run_one(job(tmp_path, seconds=WAIT_S)._replace(limits=Limits(1.0)), said.append)
    assert (late.status, late.late, late.answer) == (-9, True, None)
    full = run_one(job(tmp_path, mib=600)._replace(limits=Limits(WAIT_S, 4e8)), said.append)
    assert full.status == 1
    assert "MemoryError" in said[-1]
    assert run_one(job(tmp_path, mib=600), said.append).status == 0


def test_an_interrupted_wait_for_one_job_kills_it(tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background

    def interrupt(line: str) -> None:
        if line == "to stderr":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_one(job(tmp_path, seconds=WAIT_S, stubborn=True), interrupt)
    signal.signal(signal.SIGINT, before)
    assert not any(alive(pid) for pid in running(tmp_path))


def test_a_job_that_closes_its_channel_is_ended_at_once(tmp_path: Path) -> None:
    """It can't answer any more, so nobody waits until its time is over."""
    said: list[str] = []
    begin_s = time.monotonic()
    outcome = run_one(job(tmp_path, closes=True, seconds=600), said.append)
    assert time.monotonic() - begin_s < 60
    assert (outcome.status, outcome.answer, outcome.late) == (-signal.SIGKILL, None, False)
    assert said.count("closed its channel, did not end within 5 s, and is killed") == 1


def test_a_job_that_closes_its_channel_may_end_itself(tmp_path: Path) -> None:
    outcome = run_one(job(tmp_path, closes=True, status=5), lambda _: None)
    assert outcome == Outcome(5, None)
