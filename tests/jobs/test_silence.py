"""Time in which a process had no core is not counted as silence."""

import os
import subprocess
import sys
import time

import pytest

from quintet.jobs.silence import CoreWaits, Silence, delays_of


class Machine:
    """A clock, and how long threads of a process and its descendants have waited for a core."""

    def __init__(self) -> None:
        self.now_s, self.own, self.below = 100.0, {1: 5.0}, {}

    def pass_(self, seconds: float, waited: float = 0.0, thread: int = 1) -> None:
        self.now_s += seconds
        which = self.below if thread in self.below else self.own
        which[thread] = which.get(thread, 0.0) + waited

    def waits(self) -> CoreWaits:
        return CoreWaits(lambda: self.now_s, lambda _: dict(self.own), lambda _: dict(self.below))

    def silence(self) -> Silence:
        return Silence(lambda: self.now_s, self.waits)


def test_only_time_with_a_core_or_without_a_wish_for_one_is_silence() -> None:
    machine = Machine()
    silence = machine.silence()
    assert silence.look(7, "row 1", 0.5) == 0.0
    machine.pass_(0.5)
    assert silence.look(7, "row 1", 0.5) == pytest.approx(0.5)
    for _ in range(300):
        machine.pass_(0.5, waited=0.48)
        counted = silence.look(7, "row 1", 0.5)
    assert counted == pytest.approx(0.5 + 300 * 0.02)
    assert "(and 144 s more in which it had no core)" in silence.told
    for _ in range(10):
        machine.pass_(0.5)  # it sleeps
        counted = silence.look(7, "row 1", 0.5)
    assert counted == pytest.approx(11.5)


def test_a_sign_of_life_begins_anew() -> None:
    machine = Machine()
    silence = machine.silence()
    for _ in range(10):
        machine.pass_(1.0, waited=0.9)
        silence.look(7, "row 1", 1.0)
    assert silence.without_core_s == pytest.approx(9 * 0.9)
    assert silence.look(7, "row 2", 1.0) == 0.0
    assert silence.told == ""


def test_a_pause_of_the_one_who_looks_counts_as_two_looks() -> None:
    """It was stopped itself, or busy for a minute, and perhaps all processes with it."""
    machine = Machine()
    silence = machine.silence()
    silence.look(7, "row 1", 0.5)
    machine.pass_(60.0)
    assert silence.look(7, "row 1", 0.5) == pytest.approx(1.0)
    for _ in range(60):
        machine.pass_(0.5)
        counted = silence.look(7, "row 1", 0.5)
    assert counted == pytest.approx(31.0)


def test_a_process_of_another_machine_is_judged_by_the_clock() -> None:
    machine = Machine()
    silence = machine.silence()
    for _ in range(11):
        machine.pass_(0.5, waited=0.5)
        counted = silence.look(None, 3, 0.5)
    assert counted == pytest.approx(5.0)


def test_a_compiler_that_waits_for_a_core_counts_as_its_parent() -> None:
    machine = Machine()
    machine.below = {9: 50.0}
    waits = machine.waits()
    waits.look(7)
    machine.pass_(2.0, waited=1.9, thread=9)
    assert waits.look(7) == pytest.approx(1.9)
    machine.below[10] = 0.7  # another one, that has begun since
    machine.pass_(1.0)
    assert waits.look(7) == 0.0
    machine.pass_(1.0, waited=0.6, thread=10)
    assert waits.look(7) == pytest.approx(0.6)
    machine.pass_(1.0, waited=0.6, thread=10)
    assert waits.look(7, deep=False) == 0.0


def test_no_more_is_taken_off_than_has_passed() -> None:
    machine = Machine()
    waits = machine.waits()
    assert waits.look(7) == 0.0
    machine.pass_(1.0, waited=30.0)
    assert waits.look(7) == 1.0


@pytest.mark.skipif(not delays_of(os.getpid()), reason="the kernel keeps no account")
def test_processes_that_share_a_core_wait_for_it() -> None:
    core = min(os.sched_getaffinity(0))
    burn = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    both = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(4)]
    try:
        time.sleep(0.3)
        waits = CoreWaits()
        waits.look(both[0].pid)
        time.sleep(1.0)
        assert waits.look(both[0].pid) > 0.4
    finally:
        for process in both:
            process.kill()
            process.wait()
