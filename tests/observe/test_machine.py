"""What a run takes of its machine is measured, and told from what others take."""

import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from quintet.observe.machine import MachineUse
from quintet.observe.metrics import METRICS


def burn(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_every_name_is_declared() -> None:
    assert MachineUse().report().keys() <= METRICS.keys()


def test_memory_is_that_of_this_process() -> None:
    machine = MachineUse()
    before = machine.report()["process/resident_bytes"]
    held = np.ones(50_000_000 // 8)
    grown = machine.report()["process/resident_bytes"] - before
    assert held.nbytes * 0.9 < grown < held.nbytes * 1.5


def test_own_work_is_no_work_of_others() -> None:
    machine = MachineUse()
    spent = time.process_time()
    begin = time.perf_counter()
    burn(0.5)
    report = machine.report()
    spent = (time.process_time() - spent) / (time.perf_counter() - begin)
    assert report["machine/cores_used"] == pytest.approx(spent, abs=0.1)
    cores = psutil.cpu_count() or 1
    assert sum(v for name, v in report.items() if "cores" in name) <= cores + 0.1


def test_work_of_others_is_seen() -> None:
    machine = MachineUse()
    code = "import time; e = time.perf_counter() + 20\nwhile time.perf_counter() < e: pass"
    other = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(0.3)
        machine.report()
        before = psutil.Process(other.pid).cpu_times().user
        begin = time.perf_counter()
        time.sleep(1.0)
        report = machine.report()
        ran = psutil.Process(other.pid).cpu_times().user - before
        passed_s = time.perf_counter() - begin
    finally:
        other.kill()
        other.wait()
    assert report["machine/cores_used"] < 0.2
    assert report["machine/cores_used_by_others"] > ran / passed_s - 0.15
