"""What a run takes of its machine is measured, and told from what others take."""

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from quintet.observe import machine_use
from quintet.observe.machine_use import MachineUse
from quintet.observe.metrics import METRICS


def burn(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_every_name_is_declared() -> None:
    assert MachineUse().report().keys() <= METRICS.keys()


def test_memory_is_that_of_this_process() -> None:
    use = MachineUse()
    before = use.report()["process/resident_bytes"]
    # Not by an allocator, which may give what an earlier test has left it.
    with mmap.mmap(-1, size := 50_000_000) as held:
        held.write(bytes([1]) * size)
        grown = use.report()["process/resident_bytes"] - before
    assert size * 0.9 < grown < size * 3


def test_own_work_is_no_work_of_others() -> None:
    use = MachineUse()
    spent = time.process_time()
    begin = time.perf_counter()
    burn(0.5)
    report = use.report()
    spent = (time.process_time() - spent) / (time.perf_counter() - begin)
    assert report["machine/cores_used"] == pytest.approx(spent, abs=0.1)
    cores = psutil.cpu_count() or 1
    assert sum(v for name, v in report.items() if "cores_used" in name) <= cores + 0.1


CODE = "import time; e = time.perf_counter() + 200\nwhile time.perf_counter() < e: pass"
CLOCKS_S = 0.03
"""The system counts processor time in hundredths of a second, and is asked several times."""


class Reading(NamedTuple):
    """Of the clock, of another process's processor time and of this one's, in seconds."""

    wall: float
    busy: float
    own: float

    @classmethod
    def of(cls, busy: psutil.Process) -> "Reading":
        return cls(time.perf_counter(), sum(busy.cpu_times()[:2]), time.process_time())


class Around(NamedTuple):
    """Readings before and after a report, between which it took its own, however long that was."""

    before: Reading
    after: Reading


def around(busy: psutil.Process, act: Callable[[], Any]) -> tuple[Around, Any]:
    before = Reading.of(busy)
    result = act()
    return Around(before, Reading.of(busy)), result


def bounds(first: Around, last: Around) -> tuple[float, float]:
    """Least and most cores that both processes together can have kept busy between two reports."""
    least = Reading(*(b - a for a, b in zip(first.after, last.before, strict=True)))
    most = Reading(*(b - a for a, b in zip(first.before, last.after, strict=True)))
    return (
        (least.busy + least.own - CLOCKS_S) / most.wall,
        (most.busy + most.own + CLOCKS_S) / least.wall,
    )


def let_run(busy: psutil.Process, seconds: float = 0.3) -> None:
    """Waits until it had a core for so long, whatever else the machine does."""
    begin, end = sum(busy.cpu_times()[:2]), time.monotonic() + 120
    while sum(busy.cpu_times()[:2]) - begin < seconds:
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("own", [True, False])
def test_work_of_children_is_own_and_of_others_is_theirs(own: bool) -> None:
    if own:
        busy = psutil.Process(subprocess.Popen([sys.executable, "-c", CODE]).pid)
    else:  # the shell ends, and the process is nobody's child
        shell = ["sh", "-c", f"{sys.executable} -c '{CODE}' >/dev/null 2>&1 & echo $!"]
        busy = psutil.Process(int(subprocess.run(shell, capture_output=True, check=True).stdout))
    try:
        let_run(busy, 0.1)
        first, use = around(busy, MachineUse)
        let_run(busy)
        last, report = around(busy, use.report)
    finally:
        busy.kill()
        busy.wait()
    least, most = bounds(first, last)
    if own:
        assert least <= report["machine/cores_used"] <= most
        return
    # Without what the other process did.
    did = (last.before.busy - first.after.busy) / (last.after.wall - first.before.wall)
    assert report["machine/cores_used"] <= most - did + 2 * CLOCKS_S
    # Of all cores together, which are counted by other clocks.
    assert report["machine/cores_used_by_others"] > 0.7 * did


def test_what_is_begun_after_it_is_own_in_the_first_report_and_later() -> None:
    before = Reading(time.perf_counter(), 0.0, time.process_time())
    use = MachineUse()
    first = Around(before, Reading(time.perf_counter(), 0.0, time.process_time()))
    busy = psutil.Process(subprocess.Popen([sys.executable, "-c", CODE]).pid)
    try:
        for _ in range(2):
            let_run(busy)
            last, report = around(busy, use.report)
            least, most = bounds(first, last)
            assert least <= report["machine/cores_used"] <= most
            first = last
    finally:
        busy.kill()
        busy.wait()


def test_nothing_is_said_of_others_where_cores_are_everybody_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_use, "usable_cores", lambda: 0.5)
    assert "machine/cores_used" in MachineUse().report()
    assert "machine/cores_used_by_others" not in MachineUse().report()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux keeps no account here")
def test_what_threads_wait_for_a_core_is_told() -> None:
    """Two processes on one core: each waits for half of the time."""
    core = min(os.sched_getaffinity(0))
    busy = subprocess.Popen([sys.executable, "-c", CODE])
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(busy.pid, {core})
        time.sleep(0.3)  # with the core to itself
        os.sched_setaffinity(0, {core})
        use = MachineUse()
        burn(1.0)
        waited = use.report()["machine/cores_waited_for"]
    finally:
        os.sched_setaffinity(0, before)
        busy.kill()
        busy.wait()
    assert waited > 0.6, "a core, shared by the two, of which each lacked a half"
    use = MachineUse()
    time.sleep(1.0)
    assert use.report()["machine/cores_waited_for"] < 0.3


def test_systems_without_such_an_account_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_use, "_waits_ns", lambda _: {})
    assert "machine/cores_waited_for" not in MachineUse().report()
