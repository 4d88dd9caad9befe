"""Processes that have no core are slow, and nobody takes them for hung."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from quintet.envs.vector import EnvDescription
from quintet.jobs.silence import Silence, delays_of
from quintet.observe.timing import PhaseTimer
from quintet.runtime.processes.arena import Arena
from quintet.runtime.processes.hang_notice import Watch
from quintet.runtime.processes.messages import progress_specs
from quintet.runtime.processes.process import COMPILING, IMPORTING, MAKING, Process, ProcessKind
from quintet.system import user_code

HERE = Path(__file__).parent


class Starved:
    """Waits for a core all the time, or never."""

    def __init__(self, frac: float) -> None:
        self.frac = frac

    def look(self, _pid: int, deep: bool = True) -> float:
        return 0.5 * self.frac  # of the half second since the last look


def worker(frac: float) -> tuple[Process, list[float]]:
    now = [1000.0]
    kind = ProcessKind("worker 0", "stream 0", "none", b"")
    process = Process(kind, Arena.create(progress_specs(kind.name)), print, 60.0)
    process.row[:2] = 1000_000_000_000, 3
    process.child, process.ready = SimpleNamespace(pid=7), True
    process.channel = SimpleNamespace(poll=lambda: False)
    process.silence = Silence(lambda: now[0], lambda: Starved(frac))
    return process, now


@pytest.mark.parametrize(("frac", "silent_s"), [(0.0, 120.0), (1.0, 0.0)])
def test_a_worker_is_judged_by_the_time_in_which_it_had_a_core(frac, silent_s):
    process, now = worker(frac)
    for _ in range(240):
        now[0] += 0.5
        counted = process.silent_s(0.0)
    assert counted == pytest.approx(silent_s, abs=0.6)


@pytest.mark.parametrize(
    ("row", "doing", "cure"),
    [
        (IMPORTING, "importing modules", "worker_timeout_s"),
        (MAKING, "making or resetting environments", "take so long to make"),
        (COMPILING, "compiling or computing its first actions", "compile off"),
        (3, "", "worker_timeout_s"),
    ],
)
def test_what_a_process_does_before_its_first_row_is_told_apart(row, doing, cure):
    process, _ = worker(0.0)
    process.row[1] = row
    assert process.doing == doing
    assert cure in process.cure
    assert process.allowed_s == (60.0 if row >= 0 else 120.0)


def watched(frac: float, wait_s: float) -> list[str]:
    """What a watch says of a step that takes so long; it looks every 12 ms."""
    said: list[str] = []
    timer = PhaseTimer()
    waits = SimpleNamespace(look=lambda *_, **__: 0.025 * frac)  # the most that a look counts
    silence = Silence(make_waits=lambda: waits)
    watch = Watch(timer, EnvDescription("Slow", "gymnasium"), 0.05, said.append, silence)
    with watch.running():
        timer.switch("stepping")
        watch._ending.wait(wait_s)
    return said


def test_the_watch_of_this_process_counts_alike():
    assert "Slow (gymnasium), all streams" in watched(0.0, 0.5)[0]
    assert watched(1.0, 0.5) == []


def test_compiling_is_not_told_as_a_hang():
    code = compile("def compiled(f):\n    return f()\n", "/x/torch/_inductor/codecache.py", "exec")
    names = {}
    exec(code, names)
    # `_words` stands for quintet's code that acts, from which on frames are looked at.
    said = user_code._words(lambda: names["compiled"](lambda: watched(0.0, 0.3)))
    assert "PyTorch compiles the network for acting" in said[0]
    assert "hangs" not in said[0]


@pytest.mark.slow
@pytest.mark.skipif(not delays_of(os.getpid()), reason="the kernel keeps no account")
@pytest.mark.parametrize("kind", ["async", "lockstep"])
def test_workers_on_a_busy_core_are_not_replaced(kind, tmp_path):
    """Steps of 0.6 s of a core beside ten busy processes, each of which takes more than 6 s: more
    than the 4 s that a row may take by the time in which it had a core.
    """
    core = min(os.sched_getaffinity(0))
    burn = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    code = (
        f"import os; os.sched_setaffinity(0, [{core}])\n"
        "import quintet, burner\n"
        "quintet.train('ppo', burner.Burner, 6, 3, 'run', {'runtime.kind': "
        f"{kind!r}, 'runtime.num_workers': 1, 'runtime.worker_timeout_s': 4.0, "
        "'env.num_streams': 1, 'unroll_steps': 4, 'minibatch_steps': 4, 'num_epochs': 1, "
        "'eval.episodes': 0, 'runtime.compile': 'off', 'report.progress': False})\n"
    )
    busy = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(10)]
    try:
        subprocess.run(
            [sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=300,
            env=os.environ | {"PYTHONPATH": str(HERE)},
        )  # fmt: skip
    finally:
        for process in busy:
            process.kill()
            process.wait()
    said = (tmp_path / "run" / "log.txt").read_text()
    assert "silent" not in said
    assert "6/6 env steps" in said
