"""Runs under a batch system, which a stand-in plays: it gives notice to all processes of a job's
step, waits, kills them, and begins the same script again where that asked for it.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import quick_helpers
from small_run_helpers import hashes, newest

from quintet.checkpoints import manifest

ROOT = Path(__file__).parents[2]
GRACE_S, WAIT_S = 60.0, 120.0
STEPS = 3_000
WORDS = [
    "-m", "quintet", "train", "ppo", "--env", "test_preemption:Paced", "--total-steps", str(STEPS),
    "--env.num-streams", "4", "--env.streams-per-group", "2", "--unroll-steps", "16",
    "--minibatch-steps", "32", "--num-epochs", "1", "--model.policy-hidden", "8",
    "--report.interval-s", "0", "--runtime.compile", "off", "--runtime.threads", "1",
    "--eval.episodes", "2", "--eval.interval", "1000", "--resume", "exact",
]  # fmt: skip
KINDS = {
    "serial": (),
    "lockstep": ("--runtime.kind", "lockstep", "--runtime.num-workers", "2"),
    "apart": ("--env.num-processes", "2"),
}
slow = pytest.mark.slow


class Paced(gymnasium.Env[Any, Any]):
    """Stays for long at the moment that the file in `MOMENT` names, which it makes known."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, who: str = "training") -> None:
        self.who, self.steps = who, 0
        self.stay("made")

    def stay(self, moment: str) -> None:
        file = os.environ.get("MOMENT")
        if file and Path(file).exists() and Path(file).read_text() == moment:
            Path(file).write_text("now")
            time.sleep(1.0 if moment == "evaluated" else WAIT_S)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.normal(size=2).clip(-9, 9).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.who == "evaluated":
            self.stay("evaluated")
        time.sleep(0.0005)
        obs = self.np_random.normal(size=2).clip(-9, 9).astype(np.float32)
        return obs, float(action) + float(obs[0]), self.steps == 10, False, {}


def of_step(pid: int) -> list[psutil.Process]:
    """All processes of a job's step."""
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def notify(pid: int, *numbers: int) -> None:
    """Signals all processes of a step, in whatever group they are."""
    for process in of_step(pid):
        for number in numbers:
            with suppress(psutil.Error):
                process.send_signal(number)


def wait_for(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@contextmanager
def step(words: list[str], moment: Path | None = None) -> Iterator[Any]:
    """A step of a job that runs a command; what is left of it is killed."""
    environ = {"PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).parent, ROOT / "tests")))}
    with quick_helpers.begin(words, environ | ({"MOMENT": str(moment)} if moment else {})) as begun:
        left = []
        try:
            yield begun
        finally:
            left = of_step(begun.pid)
            for process in left:
                with suppress(psutil.Error):
                    process.kill()


def ended(begun: Any, within_s: float = GRACE_S) -> tuple[int, str]:
    """Exit status, as a shell sees it, and output; SIGKILL would come after the grace."""
    begin = time.monotonic()
    out, _ = begun.communicate(timeout=within_s)
    assert time.monotonic() - begin < within_s, out
    status = begun.returncode
    return 128 - status if status < 0 else status, out


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """The tensors of a run of a kind that nobody disturbs."""

    @cache
    def of(kind: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp(kind) / "run"
        with step([*WORDS, "--seed", "1", "--run-dir", str(folder), *KINDS[kind]]) as begun:
            status, out = ended(begun, WAIT_S)
        assert status == 0, out
        return hashes(folder)

    return lambda kind: of("serial" if kind == "apart" else kind)


def has_saved(folder: Path) -> bool:
    return manifest.newest(folder / "checkpoints") is not None


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        ("serial", "training"),
        pytest.param("lockstep", "training", marks=slow),
        pytest.param("apart", "training", marks=slow),
        *(pytest.param(kind, "made", marks=slow) for kind in KINDS),
        *(pytest.param(kind, "evaluated", marks=slow) for kind in KINDS),
    ],
)
def test_a_preempted_run_goes_on_by_the_same_command(
    tmp_path: Path, undisturbed: Callable[[str], dict[str, str]], kind: str, moment: str
) -> None:
    folder, file = tmp_path / "run", tmp_path / "moment"
    file.write_text(moment)
    words = [*WORDS, "--seed", "1", "--run-dir", str(folder), *KINDS[kind]]
    words += ["--eval.env.kwargs", json.dumps({"who": "evaluated"})]
    with step(words, file) as begun:
        if moment == "training":
            wait_for(lambda: has_saved(folder))
        else:
            wait_for(lambda: file.read_text() == "now")
        notify(begun.pid, signal.SIGCONT, signal.SIGTERM)
        if kind != "serial":  # Slurm's second one; it may end a process that is leaving
            time.sleep(0.3)
            notify(begun.pid, signal.SIGCONT, signal.SIGTERM)
        status, out = ended(begun)
    assert status == 143, out
    assert "Traceback" not in out
    if moment != "made":
        assert "the same command" in out
        found = manifest.newest(folder / "checkpoints")
        assert found is not None
        assert 0 < found.meta["env_steps"] < STEPS
    with step(words) as begun:
        status, out = ended(begun, WAIT_S)
    assert status == 0, out
    assert hashes(folder) == undisturbed(kind)


@pytest.mark.parametrize("moment", ["training", pytest.param("made", marks=slow)])
def test_a_notice_by_sigusr1_ends_nothing(
    tmp_path: Path, undisturbed: Callable[[str], dict[str, str]], moment: str
) -> None:
    """Some batch systems send it to all processes, whatever these are doing."""
    folder, file = tmp_path / "run", tmp_path / "moment"
    file.write_text("made" if moment == "made" else "")
    words = [*WORDS, "--seed", "1", "--run-dir", str(folder), *KINDS["lockstep"]]
    words += ["--checkpoint.keep", "99"]
    with step(words, file) as begun:
        if moment == "made":
            wait_for(lambda: file.read_text() == "now")
            notify(begun.pid, signal.SIGUSR1)
            time.sleep(0.3)
            assert begun.poll() is None
            return
        wait_for(lambda: has_saved(folder))
        notify(begun.pid, signal.SIGUSR1)
        status, out = ended(begun, WAIT_S)
    assert status == 0, out
    assert "saved as asked" in out
    assert hashes(folder) == undisturbed("lockstep")


@slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_group_of_seeds_is_preempted(
    tmp_path: Path, undisturbed: Callable[[str], dict[str, str]], number: int
) -> None:
    words = [*WORDS, "--run-dir", str(tmp_path / "g"), "--seeds", "1,2", "--jobs", "1"]
    with step(words) as begun:
        wait_for(lambda: has_saved(tmp_path / "g/s1"))
        notify(begun.pid, signal.SIGCONT, number)
        status, out = ended(begun, WAIT_S)
    assert status == (143 if number == signal.SIGTERM else 0), out
    assert "Traceback" not in out
    if number == signal.SIGTERM:
        assert not (tmp_path / "g/s2").exists()
        with step(words) as begun:
            status, out = ended(begun, WAIT_S)
        assert status == 0, out
    assert hashes(tmp_path / "g/s1") == undisturbed("serial")
    assert newest(tmp_path / "g/s2").meta["env_steps"] == STEPS


# The script of the documents


class Slurm:
    """Plays the batch system with the job script of the documents.

    more: options that its command gets, so that it is over soon.
    """

    def __init__(self, folder: Path, more: list[str]) -> None:
        text = (ROOT / "docs/quick-start.md").read_text()
        (script,) = (
            x for x in re.findall(r"^```bash\n(.*?)^```$", text, re.M | re.S) if "srun" in x
        )
        self.options = dict(
            word[2:].partition("=")[::2]
            for word in re.findall(r"^#SBATCH (.*)$", script, re.M)[0].split()
        )
        self.folder = folder
        quintet = shlex.join([sys.executable, "-m", "quintet"])
        programs = {
            "srun": f'echo $$ > {folder}/step.tmp; mv {folder}/step.tmp {folder}/step; exec "$@"',
            "scontrol": f'echo "$@" >> {folder}/asked',
            "quintet": f'exec {quintet} "$@" {shlex.join(more)}',
        }
        (folder / "bin").mkdir()
        for name, line in programs.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (folder / "bin" / name).chmod(0o755)
        (folder / "job.sh").write_text(script)

    def run(self, task: int, preempt: Callable[[Path], bool] | None = None) -> tuple[int, bool]:
        """Runs the script for a task of the array: its exit status, and whether it asked to be
        begun again.

        preempt: tells, with the run's folder, when the job is preempted; None: never.
        """
        number = str(700 + task)
        (self.folder / "asked").write_text("")
        (self.folder / "step").unlink(missing_ok=True)
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        own = {"SLURM_JOB_ID": number, "SLURM_ARRAY_TASK_ID": str(task), "PATH": path}
        with (
            open(self.folder / f"{task}.out", "a") as output,
            subprocess.Popen(
                ["bash", "job.sh"],
                cwd=self.folder,
                env=os.environ | own,
                stdout=output,
                stderr=output,
            ) as script,
        ):
            if preempt is not None:
                wait_for(lambda: preempt(self.folder / f"runs/array/s{task}"))
                pid = int((self.folder / "step").read_text())
                notify(pid, signal.SIGCONT, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    script.wait(GRACE_S)
                for process in of_step(pid):
                    process.kill()
            status = script.wait(WAIT_S)
        return status, (self.folder / "asked").read_text() == f"requeue {number}\n"


@slow
def test_the_job_array_of_the_documents_goes_on_by_itself(tmp_path: Path) -> None:
    more = "--total-steps 30000 --runtime.compile off --eval.episodes 1 --report.interval-s 0"
    more += " --env.num-streams 4 --unroll-steps 32 --minibatch-steps 64 --num-epochs 2"
    more += " --checkpoint.interval-iterations 20 --checkpoint.max-cut-frac 1 --resume exact"
    slurm = Slurm(tmp_path, more.split())
    assert slurm.options["array"] == "0-4"
    assert slurm.options["signal"] == "TERM@120"
    assert {"requeue", "open-mode"} <= slurm.options.keys()
    for task in (0, 1):
        assert slurm.run(task, has_saved) == (143, True), (tmp_path / f"{task}.out").read_text()
        at = manifest.newest(tmp_path / f"runs/array/s{task}/checkpoints")
        assert at is not None
        assert 0 < at.meta["env_steps"] < 30_000
        assert slurm.run(task) == (0, False)
    disturbed = hashes(tmp_path / "runs/array/s0")
    (tmp_path / "runs/array/s0").rename(tmp_path / "runs/before")
    assert slurm.run(0) == (0, False)
    assert hashes(tmp_path / "runs/array/s0") == disturbed
    # The tasks have made the folder of a group.
    group = ["--seeds", "0,1", "--run-dir", "runs/array", *more.split()]
    words = ["train", "ppo", "--env", "CartPole-v1", *group]
    done = subprocess.run(
        [sys.executable, "-m", "quintet", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("this run is finished") == 2
