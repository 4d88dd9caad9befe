"""What goes wrong with sampler processes, and what the run makes of it."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import quick_helpers
from processes_helpers import open_files, processes_of, runs
from small_run_helpers import hashes
from troubles_helpers import SMALL, Drifting

import quintet
from quintet.errors import ConfigError, EnvironmentFault, QuintetError, WorkerFault
from quintet.observe.timing import PhaseTimer
from quintet.options import resolve as resolution
from quintet.options.layers import Layer
from quintet.options.resolve import compose
from quintet.options.runtime import RuntimeConfig
from quintet.protocols import DataPlan
from quintet.run import learners
from quintet.run.sampling import make_sampling, open_source
from quintet.runtime.asynchronous import AsyncSampling
from quintet.runtime.lockstep import LockstepSampling
from quintet.runtime.policies import ONE_POLICY
from quintet.runtime.processes.grants import Died
from quintet.runtime.processes.messages import Failed, Place
from quintet.runtime.processes.process import WaitNotice
from quintet.runtime.processes.worker import _ignore, report_failure
from quintet.system import forks

SCRIPT = Path(__file__).with_name("troubles_helpers.py")
slow = pytest.mark.slow


def train(folder: Path, env: Any = Drifting, steps: int = 4_000, on_report=None, **runtime: Any):
    given = {"kind": "async", "num_workers": 2} | runtime
    config = SMALL | {f"runtime.{name}": value for name, value in given.items()}
    return quintet.train("ppo", env, steps, 7, folder, config, on_report=on_report)


@pytest.fixture(autouse=True)
def nothing_left():
    forks.watch()  # which opens files that stay
    files = open_files()
    yield
    gc.collect()  # an error's traceback holds what its frames held
    assert processes_of() == []
    assert open_files() <= files


class Once:
    """Does something to the first worker, at the second report."""

    def __init__(self, what, pause_s: float = 0.0) -> None:
        self.what, self.reports, self.pause_s = what, 0, pause_s

    def __call__(self, _report) -> None:
        time.sleep(self.pause_s)
        self.reports += 1
        if self.reports == 2:
            self.what(processes_of()[0])


@pytest.mark.parametrize("what", ["kill", pytest.param("suspend", marks=slow)])
def test_async_replaces_a_worker_that_is_killed_or_stopped(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timeout = 60.0 if what == "kill" else 2.0
    hit = Once(lambda worker: getattr(worker, what)(), pause_s=0.03)  # the other one runs on
    result = train(tmp_path, on_report=hit, steps=4_000, worker_timeout_s=timeout)
    assert result.status == "finished"
    assert result.metrics["env_steps"] == 4_000
    assert result.metrics["data/worker_restarts"] == 1
    said = (tmp_path / "log.txt").read_text()
    how = "was ended by SIGKILL" if what == "kill" else "has been silent for"
    assert how in said
    assert "replaced, 1 of at most 3 times" in said
    assert "worker 0 (streams 0 to 1, pid " in said
    assert "warning: worker 0 (streams 0 to 1, pid " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("trouble", "error", "words"),
    [
        (
            "raise",
            EnvironmentFault,
            r"step \d+ of its episode, seed \d+.* ValueError: the floor gave way "
            r"\(.*troubles_helpers.py:\d+ in make_trouble\); mend",
        ),
        pytest.param(
            "nan",
            EnvironmentFault,
            r"must be finite; .*stream \d, step \d+ after its reset with seed",
            marks=slow,
        ),
        ("hang", WorkerFault, r"worker \d .*must do a row within 1 s, .*silent .*at row \d+ of sl"),
        pytest.param(
            "die",
            WorkerFault,
            r"worker \d \(streams .* ended with status 3 at row \d+.*is above",
            marks=slow,
        ),
    ],
)
@pytest.mark.parametrize("kind", ["async", pytest.param("lockstep", marks=slow)])
def test_an_environment_that_misbehaves_ends_the_run_by_its_name(
    kind: str, trouble: str, error: type[QuintetError], words: str, tmp_path: Path
) -> None:
    restarts = {"max_restarts": 0 if trouble == "hang" else 1} if kind == "async" else {}
    with pytest.raises(error, match=words) as caught:
        train(tmp_path, partial(Drifting, trouble), kind=kind, worker_timeout_s=1.0, **restarts)
    if kind == "async":
        assert "runtime.max_restarts" in "".join(caught.value.__notes__)
    if trouble == "raise":
        assert "Traceback" in caught.value.detail
        assert "in step\n    self.make_trouble()" in caught.value.detail
    if trouble == "die":
        assert "farewell" in (tmp_path / "log.txt").read_text()


def server_of(_worker: psutil.Process) -> psutil.Process:
    return next(p for p in processes_of() if p.name().startswith("inference"))


@pytest.mark.parametrize(
    ("inference", "what"),
    [
        ("local", "kill"),
        pytest.param("server", "kill", marks=slow),
        pytest.param("local", "suspend", marks=slow),
        pytest.param("server", "suspend", marks=slow),
    ],
)
def test_lockstep_goes_back_once_and_ends_with_the_bytes_of_serial(
    inference: str, what: str, tmp_path: Path
) -> None:
    """Where a worker is killed or stopped, and where the inference server is."""
    streams = {"env.streams_per_group": 2}
    serial = SMALL | streams
    quintet.train("ppo", Drifting, 4_001, 7, tmp_path / "serial", serial)
    lockstep = serial | {"runtime.kind": "lockstep", "runtime.lag": 0}
    lockstep["runtime.inference"] = inference
    lockstep["runtime.worker_timeout_s"] = 60.0 if what == "kill" else 2.0
    served = inference == "server"
    hit = Once(lambda worker: getattr(server_of(worker) if served else worker, what)())
    hit.reports = -20  # there has been a checkpoint by then
    quintet.train("ppo", Drifting, 4_001, 7, tmp_path / "lockstep", lockstep, on_report=hit)
    assert hashes(tmp_path / "lockstep") == hashes(tmp_path / "serial")
    said = (tmp_path / "lockstep" / "log.txt").read_text()
    assert ("inference server (cpu, pid" if served else "worker 0 (streams") in said
    assert ("was ended by SIGKILL" if what == "kill" else "silent for") in said
    assert "resumed at update" in said


@pytest.mark.parametrize("what", ["kill", pytest.param("suspend", marks=slow)])
def test_async_replaces_the_server_and_gives_open_unrolls_up(what: str, tmp_path: Path) -> None:
    hit = Once(lambda worker: getattr(server_of(worker), what)(), pause_s=0.03)
    timeout = 60.0 if what == "kill" else 2.0
    result = train(
        tmp_path, on_report=hit, steps=4_000, inference="server", worker_timeout_s=timeout
    )
    assert result.metrics["env_steps"] == 4_000
    assert result.metrics["data/worker_restarts"] == 1
    assert result.metrics["server/batch_mean"] >= 1
    assert "inference server (cpu, pid" in (tmp_path / "log.txt").read_text()


class Damages:
    """Damages the newest exact checkpoint, or all of them, and kills a worker, once there is
    another one before to go on from.
    """

    def __init__(self, folder: Path, every: bool) -> None:
        self.folder, self.every, self.done = folder / "checkpoints", every, False

    def __call__(self, _report) -> None:
        found = sorted(self.folder.iterdir()) if self.folder.exists() else []
        exact = [each for each in found if json.loads((each / "meta.json").read_text())["exact"]]
        if self.done or not exact or len(found) < 2:
            return
        self.done = True
        for each in exact if self.every else exact[-1:]:
            file = each / "learner.safetensors"
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        processes_of()[0].kill()


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, True])
def test_lockstep_goes_back_past_a_damaged_exact_checkpoint(every: bool, tmp_path: Path) -> None:
    """To an exact one before it and the same bytes, or where none is whole to one that isn't."""
    options = SMALL | {"env.streams_per_group": 2, "checkpoint.keep": 100}
    if every:  # the first one is not exact
        options["checkpoint.max_cut_frac"] = 0.05
    serial, lockstep = tmp_path / "serial", tmp_path / "lockstep"
    if not every:
        quintet.train("ppo", Drifting, 2_001, 7, serial, options)
    options |= {"runtime.kind": "lockstep", "runtime.num_workers": 2, "runtime.lag": 0}
    result = quintet.train(
        "ppo", Drifting, 2_001, 7, lockstep, options, on_report=Damages(lockstep, every)
    )
    assert result.metrics["env_steps"] == 2_001
    said = (lockstep / "log.txt").read_text()
    if not every:
        assert hashes(lockstep) == hashes(serial)
    assert ("passed over damaged checkpoints: " in said) == every
    assert ("differ from the uninterrupted" in said) == every
    assert re.search(r"skipped a damaged checkpoint: \S+/learner.safetensors is corrupted", said)
    assert re.search(r"what was trained after \d+ env_steps is trained again", said)


@slow
def test_lockstep_goes_back_no_second_time(tmp_path: Path) -> None:
    with pytest.raises(WorkerFault, match="ended with status 3"):
        train(tmp_path, partial(Drifting, "die"), kind="lockstep", worker_timeout_s=60.0)


class SlowToMake(Drifting):
    def __init__(self) -> None:
        time.sleep(0.6)
        super().__init__()


@slow
def test_environments_may_take_longer_to_make_than_to_step(tmp_path: Path) -> None:
    """Two in each worker, which makes them anew after a checkpoint."""
    result = train(tmp_path, SlowToMake, 1_300, kind="lockstep", worker_timeout_s=1.0)
    assert result.status == "finished"
    assert "going back" not in (tmp_path / "log.txt").read_text()


@slow
def test_nobody_is_judged_by_time_in_which_this_process_was_stopped_too() -> None:
    """As a container is that is paused: all are silent for long, and go on."""
    loaded = compose("ppo", [Layer("test", {"env.id": "Drifting", **SMALL})], Drifting)
    config = loaded.config.model_copy(
        update={"runtime": RuntimeConfig(kind="lockstep", num_workers=2, worker_timeout_s=1.0)}
    )
    source = open_source(config, loaded.env)
    config = resolution.resolve(replace(loaded, config=config), source.spaces).config
    learner = learners.make_learner(config, source.spaces)
    sampling = make_sampling(config, source, [learner], PhaseTimer(), print, print, print)
    try:
        assert isinstance(sampling, LockstepSampling)
        sampling.publish(learner.publication())
        sampling.restart(0)
        sampling.collect(10_000)
        assert all(each.channel.poll(60) for each in sampling.workers.processes)
        for process in processes_of():
            process.suspend()
        sampling.collect(10_000)  # what is there; they are told to go on
        time.sleep(4.0)
        assert sampling.workers.events(0.0) == []
        for process in processes_of():
            process.resume()
        sampling.collect(10_000)
    finally:
        sampling.close()
        source.close()


@pytest.mark.parametrize(
    ("kind", "number", "inference"),
    [
        ("async", signal.SIGKILL, "local"),
        pytest.param("async", signal.SIGINT, "local", marks=slow),
        pytest.param("async", signal.SIGTERM, "local", marks=slow),
        pytest.param("lockstep", signal.SIGINT, "local", marks=slow),
        pytest.param("lockstep", signal.SIGKILL, "local", marks=slow),
        pytest.param("lockstep", signal.SIGTERM, "local", marks=slow),
        pytest.param("async", signal.SIGKILL, "server", marks=slow),
        pytest.param("lockstep", signal.SIGTERM, "server", marks=slow),
    ],
)
def test_no_worker_outlives_its_parent(
    kind: str, number: int, inference: str, tmp_path: Path
) -> None:
    process = quick_helpers.begin([SCRIPT, tmp_path, kind, "10000000", inference])
    assert process.stdout is not None
    while "report" not in process.stdout.readline():
        assert process.poll() is None
    found = processes_of(process.pid)
    assert len(found) == (2 if inference == "local" else 3)
    policies = [os.sched_getscheduler(worker.pid) for worker in found]
    assert policies.count(os.SCHED_BATCH) == 2
    # To the whole group, as a terminal does with Ctrl-C; to all, as service managers do.
    os.killpg(process.pid, number)
    if number == signal.SIGTERM:
        for each in psutil.Process(process.pid).children(recursive=True):  # also the fork server
            each.terminate()
    process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 0
        assert "stopped at" in (tmp_path / "log.txt").read_text()
        assert any((tmp_path / "checkpoints").iterdir())
    _, alive = psutil.wait_procs(found, timeout=5)
    assert not alive


@slow
def test_a_worker_that_can_not_begin_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it raised ValueError: not here"):
        train(tmp_path, only_here)


SPAWNED = """
import multiprocessing, sys
import quintet
from troubles_helpers import SMALL, Drifting

class Mine(Drifting):
    pass

def run(folder):
    options = {"runtime.kind": "lockstep", "runtime.num_workers": 1}
    quintet.train("ppo", Mine, 64, 7, folder, SMALL | options)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=run, args=(sys.argv[1],))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@slow
def test_an_environment_of_a_script_that_trains_in_a_process_of_multiprocessing(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SPAWNED)
    path = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, script, tmp_path / "run"]
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


class TwoDieAtOnce:
    """Workers of which two are found dead by one look."""

    def __init__(self) -> None:
        plan = DataPlan(unroll_steps=4, columns_per_batch=2)
        places = [Place(0, 0, 2)]
        self.spec = SimpleNamespace(plan=plan, places=places, num_streams=2, assignment=ONE_POLICY)
        self.say, self.grants = print, SimpleNamespace(samplers=())

    def start(self) -> None: ...

    def close(self) -> None: ...

    def wait_notice(self) -> WaitNotice:
        return WaitNotice(print, str)

    def events(self, _timeout_s: float) -> list[Died]:
        return [Died(index, WorkerFault(f"worker {index} is gone"), 0) for index in range(2)]


def test_async_ends_where_several_workers_die_at_once() -> None:
    sampling = AsyncSampling(TwoDieAtOnce(), PhaseTimer(), max_restarts=0)  # type: ignore[arg-type]
    sampling.restart(0)
    with pytest.raises(WorkerFault, match="worker 0 is gone"):
        sampling.collect(100)
    closing = threading.Thread(target=sampling.close, daemon=True)
    closing.start()
    closing.join(timeout=5)
    assert not closing.is_alive()


def in_worker() -> bool:
    """Whether this process leaves signals to its parent."""
    return signal.getsignal(signal.SIGTERM) is _ignore


def only_here() -> Drifting:
    if in_worker():
        raise ValueError("not here")
    return Drifting()


STARTER = """
import sys
from quintet.jobs.child_process import Child

tied = Child("slow", "slow_to_import", print, preload=[sys.argv[1]])
print("pid", tied.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("where", ["slow_to_import", "json"])
def test_a_tied_child_ends_with_its_parent_while_modules_are_imported(
    where: str, tmp_path: Path
) -> None:
    """In the process that it is forked from, or in itself."""
    begun = tmp_path / "begun"
    (tmp_path / "slow_to_import.py").write_text(
        f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(1_000)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(SCRIPT.parent)])
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTER, where],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline().split()[1]))
    end = time.monotonic() + 60
    while not begun.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 10
    while runs(child):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_tied_child_whose_parent_is_gone_already_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("print('here')\n")
    ended = subprocess.run(
        [sys.executable, "-c", "from quintet.jobs.entry import main; main()", "1", "x", "loud"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
    )
    assert (ended.returncode, ended.stdout) == (130, b"")


class DiesAsItIsMade(Drifting):
    """Once, in a worker, as the system does to one for which there is no memory."""

    def __init__(self, mark: str, by: signal.Signals = signal.SIGKILL) -> None:
        if in_worker() and not os.path.exists(mark):
            with suppress(FileNotFoundError):
                Path(mark).touch()
            os.kill(os.getpid(), by)
        super().__init__()


@pytest.mark.parametrize(
    ("kind", "by"),
    [("async", signal.SIGKILL), pytest.param("lockstep", signal.SIGABRT, marks=slow)],
)
def test_a_worker_that_is_killed_while_it_starts_is_one_of_those_that_may_die(
    kind: str, by: signal.Signals, tmp_path: Path
) -> None:
    env = partial(DiesAsItIsMade, str(tmp_path / "mark"), by)
    result = train(tmp_path / "run", env, 1_000, kind=kind, num_workers=1)
    assert result.status == "finished"
    said = (tmp_path / "run" / "log.txt").read_text()
    assert f"was ended by {by.name} (was there enough memory?) before it was ready" in said
    assert ("replaced, 1 of at most 3" if kind == "async" else "going back to the last") in said


def test_a_worker_that_finds_no_memory_says_so() -> None:
    sent: list[Failed] = []
    channel: Any = SimpleNamespace(send=sent.append)
    report_failure(channel, RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    report_failure(channel, RuntimeError("shapes"))
    assert [each.kind for each in sent] == ["WorkerFault", "WorkerFault"]
    assert sent[0].text.startswith("memory ran out (RuntimeError: DefaultCPUAllocator: can't all")
    assert sent[1].text.startswith("it raised RuntimeError: shapes")


def test_async_does_not_replace_workers_for_ever_that_die_while_they_start(tmp_path: Path) -> None:
    env = partial(DiesAsItIsMade, str(tmp_path / "no folder" / "mark"))
    with pytest.raises(WorkerFault, match="before it was ready"):
        train(tmp_path / "run", env, 1_000, num_workers=1, max_restarts=1)


class WithProgram(Drifting):
    """Begins a program and ends it by SIGTERM when it is closed, which takes a moment."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.file = Path(place) / f"{os.getpid()}-{id(self)}"
        self.program = subprocess.Popen(["sleep", "60"])
        self.file.touch()

    def close(self) -> None:
        time.sleep(0.2)
        self.program.terminate()
        self.file.write_text(str(self.program.wait(20)))
        super().close()


class Failing(WithProgram):
    def step(self, action: Any) -> Any:
        raise ValueError("no floor")


@pytest.mark.parametrize("env", [pytest.param(WithProgram, marks=slow), Failing])
def test_workers_close_environments_which_can_end_their_programs(env, tmp_path: Path) -> None:
    (ended := tmp_path / "ended").mkdir()
    options = {"steps": 64, "kind": "lockstep", "num_workers": 1}
    with pytest.raises(EnvironmentFault) if env is Failing else nullcontext():
        train(tmp_path / "run", partial(env, str(ended)), **options)
    found = [path.read_text() for path in ended.iterdir()]
    assert found
    assert set(found) == {str(-signal.SIGTERM)}
