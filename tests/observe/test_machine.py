"""What a run takes of its machine is measured, and told from what others take."""

import mmap
import subprocess
import sys
import time

import psutil
import pytest

from quintet.observe import machine
from quintet.observe.machine import MachineUse
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
    assert sum(v for name, v in report.items() if "cores" in name) <= cores + 0.1


@pytest.mark.parametrize("own", [True, False])
def test_work_of_children_is_own_and_of_others_is_theirs(own: bool) -> None:
    code = "import time; e = time.perf_counter() + 20\nwhile time.perf_counter() < e: pass"
    if own:
        busy = psutil.Process(subprocess.Popen([sys.executable, "-c", code]).pid)
    else:  # the shell ends, and the process is nobody's child
        shell = ["sh", "-c", f"{sys.executable} -c '{code}' >/dev/null 2>&1 & echo $!"]
        busy = psutil.Process(int(subprocess.run(shell, capture_output=True, check=True).stdout))
    try:
        time.sleep(0.3)
        use = MachineUse()
        before = busy.cpu_times().user
        begin = time.perf_counter()
        time.sleep(1.0)
        report = use.report()
        ran = busy.cpu_times().user - before
        passed_s = time.perf_counter() - begin
    finally:
        busy.kill()
        busy.wait()
    share = ran / passed_s
    assert share > 0.2  # of a core, or nothing was measured
    name = "machine/cores_used" if own else "machine/cores_used_by_others"
    assert report[name] > share - 0.15
    if not own:
        assert report["machine/cores_used"] < 0.2


def test_what_is_begun_after_it_is_own_in_the_first_report_and_later() -> None:
    use = MachineUse()
    code = "import time; e = time.perf_counter() + 20\nwhile time.perf_counter() < e: pass"
    busy = psutil.Process(subprocess.Popen([sys.executable, "-c", code]).pid)
    try:
        begin, before = time.perf_counter(), 0.0
        for _ in range(2):
            time.sleep(0.7)
            report = use.report()
            now, passed_s = sum(busy.cpu_times()[:2]), time.perf_counter() - begin
            share = (now - before) / passed_s
            assert share > 0.2
            assert report["machine/cores_used"] == pytest.approx(share, abs=0.15)
            begin, before = time.perf_counter(), now
    finally:
        busy.kill()
        busy.wait()


def test_nothing_is_said_of_others_where_cores_are_everybody_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 0.5)
    assert MachineUse().report().keys() == {"process/resident_bytes", "machine/cores_used"}
