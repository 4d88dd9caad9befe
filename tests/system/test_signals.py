"""Ctrl-C while environments are made."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

BLOCK = """
import signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
from quintet.system.signals import interrupts_for_us_alone
with interrupts_for_us_alone():
    {doing}
print("after", flush=True)
"""


@contextmanager
def in_block(doing: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is in the block, which does `doing`."""
    command = [sys.executable, "-c", BLOCK.format(doing=doing)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        too_late = threading.Timer(30.0, process.kill)
        too_late.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "in\n"
            yield process
        finally:
            too_late.cancel()
            process.kill()


def test_ctrl_c_interrupts_a_constructor_in_python() -> None:
    with in_block("print('in', flush=True)\n    while True: time.sleep(0.01)") as process:
        process.send_signal(signal.SIGINT)
        out, said = process.communicate()
    assert (process.returncode, out) == (-signal.SIGINT, "")
    assert said.endswith("KeyboardInterrupt\n")


def test_a_second_ctrl_c_ends_a_constructor_that_hangs_in_c() -> None:
    # The main thread is in C code by then; in Python it would be interrupted.
    say = "threading.Timer(1.0, print, ['in'], {'flush': True})"
    with in_block(f"{say}.start(); time.sleep(600)") as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said == "waiting for an environment to be made; a second Ctrl-C ends at once\n"
        process.send_signal(signal.SIGINT)
        out, said = process.communicate()
    assert (process.returncode, out, said) == (130, "", "interrupted\n")


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_processes_that_begin_in_the_block_do_not_hear_ctrl_c() -> None:
    with in_block(
        "import subprocess; print('in', flush=True); subprocess.run(['cat', '/proc/self/status'])"
    ) as process:
        assert process.stdout is not None
        out = process.stdout.read()  # `communicate` would lose what came with the first line
    blocked = next(line for line in out.splitlines() if line.startswith("SigBlk"))
    assert int(blocked.split()[1], 16) >> (signal.SIGINT - 1) & 1
    assert out.endswith("after\n")
