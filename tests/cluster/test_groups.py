"""Groups of runs on the nodes of a cluster."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_run_helpers import hashes

pytest.importorskip("ray", reason="Ray, the extra `cluster`, is not installed")

import psutil
from clusters_helpers import actors, cluster_of, nothing_is_left, stop, without_ray
from exact_run_helpers import COMMON, SMALL, Drifting

import quintet
from quintet.commands import cli
from quintet.errors import ConfigError
from quintet.observe.report_files import read_metrics

TESTS = Path(__file__).parent.parent
WAIT_S = 300.0


@pytest.fixture(autouse=True)
def all_ended() -> Iterator[None]:
    yield
    assert nothing_is_left()


@pytest.mark.slow
def test_runs_on_nodes_are_those_of_one_machine(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = {"cluster.nodes_min": 2, "cluster.wait_s": WAIT_S, "runtime.max_restarts": 1}
    config = COMMON | SMALL | both
    folder = tmp_path / "nodes"
    placed = quintet.train(
        "ppo", Drifting, 640, None, folder, config, seeds=[1, 2], cluster=address
    )
    said = capsys.readouterr().out
    assert {*re.findall(r"\[s([12])\] runs on node [01] \(", said)} == {"1", "2"}
    assert len({*re.findall(r"\] runs on (node \d) ", said)}) == 2
    assert "[s1] 100%" in said
    for there, seed in zip(placed, (1, 2), strict=True):
        here = quintet.train("ppo", Drifting, 640, seed, tmp_path / f"s{seed}", COMMON | SMALL)
        assert there.status == here.status == "finished"
        assert hashes(there.run_dir) == hashes(here.run_dir)
        options = [(each.run_dir / "config.yaml").read_text() for each in (there, here)]
        assert options[0] == options[1]
    assert sorted(each.name for each in folder.iterdir()) == ["s1", "s2"]


@pytest.mark.slow
def test_trials_of_a_sweep_run_on_the_nodes(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    given = {**SMALL, "total_env_steps": 640, "eval.episodes": 1, "cluster.wait_s": WAIT_S}
    options = [
        word
        for name, x in given.items()
        for word in (f"--{name}", json.dumps(x) if isinstance(x, list | tuple) else str(x))
    ]
    more = ["--search", "learning_rate", "--trials", "2", "--jobs", "2", "--best", "0"]
    folder = tmp_path / "sweep"
    words = ["sweep", "ppo", "--env", "quintet.envs.toy:Contextual", "--run-dir", str(folder)]
    assert cli.main([*words, *options, *more, "--cluster", address]) == 0
    said = capsys.readouterr().out
    assert {*re.findall(r"\[(000[12])\] runs on node [01] \(", said)} == {"0001", "0002"}
    assert (folder / "trials.csv").read_text().count(",complete,") == 2


@pytest.mark.slow
def test_a_node_without_the_environment_s_package_is_refused(address: str, tmp_path: Path) -> None:
    home = os.getpid()

    def make() -> Any:
        if os.getpid() != home:
            raise ModuleNotFoundError("No module named 'simulator'", name="simulator")
        return Drifting()

    config = COMMON | SMALL | {"cluster.wait_s": WAIT_S}
    with pytest.raises(ConfigError, match=r"the node \S+ .*No module named 'simulator'"):
        quintet.train("ppo", make, 640, None, tmp_path / "g", config, seeds=[1], cluster=address)
    assert list(tmp_path.iterdir()) == []


def test_a_group_needs_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_ray(monkeypatch)
    with pytest.raises(ConfigError, match=r"needs Ray.*pip install 'quintet-rl\[cluster\]'"):
        quintet.train(
            "ppo", Drifting, 640, None, tmp_path, COMMON | SMALL, seeds=[1], cluster="auto"
        )


@pytest.fixture
def two_nodes() -> Iterator[Any]:
    with cluster_of(1, num_cpus=2) as cluster:
        yield cluster


class Group:
    """The command of a group of three slow runs, in a process."""

    def __init__(self, folder: Path, address: str, *more: str) -> None:
        words = ["train", "ppo", "--env", "run_helpers:Trouble", "--run-dir", str(folder)]
        words += ["--env.kwargs", '{"kind": "slow", "after": 0}', "--total-steps", "4000"]
        words += ["--env.num-streams", "4", "--unroll-steps", "16", "--minibatch-steps", "32"]
        words += ["--num-epochs", "1", "--eval.episodes", "0", "--report.interval-s", "0"]
        words += ["--checkpoint.interval-iterations", "5", "--seeds", "1,2,3"]
        words += ["--cluster", address, "--cluster.wait-s", str(WAIT_S), *more]
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quintet", *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONPATH": f"{TESTS / 'run'}{os.pathsep}{TESTS}"},
            # A shell's background jobs ignore Ctrl-C, and what they start inherits that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip

    def run_until(self, begun: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not begun():
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.1)

    def all_have_checkpoints(self) -> bool:
        return len({*(p.parts[-3] for p in self.folder.glob("s*/checkpoints/0*"))}) == 3

    def end(self) -> tuple[int, str]:
        said = self.process.communicate(timeout=WAIT_S)[0]
        return self.process.returncode, said


def require_whole(folder: Path) -> None:
    """Every run has done its env_steps, each once."""
    for seed in (1, 2, 3):
        steps = [report["env_steps"] for report in read_metrics(folder / f"s{seed}")]
        assert steps == sorted({*steps})
        assert steps[-1] == 4_000


@pytest.mark.slow
@pytest.mark.parametrize("who", ["host", "stopped host", "raylet", "run"])
def test_a_run_whose_node_dies_starts_again_on_another(
    two_nodes: Any, tmp_path: Path, who: str
) -> None:
    node = two_nodes.add_node(num_cpus=2)
    group = Group(tmp_path / "g", two_nodes.address, "--cluster.node-timeout-s", "5")
    group.run_until(group.all_have_checkpoints)
    *_, last = actors("Host")
    if who == "raylet":
        node.kill_raylet(check_alive=False)
    elif who == "run":
        last.children()[0].kill()
    elif who == "host":
        last.kill()
    else:
        stop(last)
    try:
        status, said = group.end()
    finally:
        if who == "stopped host" and last.is_running():
            last.kill()
    assert "Traceback" not in said
    if who == "run":  # as on one machine
        assert status == 1, said
        assert re.search(r"error: seed \d: its process was ended by SIGKILL", said)
        again = Group(tmp_path / "g", two_nodes.address)
        status, said = again.end()
    else:
        assert len(re.findall(r"node \d \(\S+\) was lost: ", said)) >= 1
        assert re.search(r"starts again on another node from its folder \(1 of at most 3", said)
    assert status == 0, said
    require_whole(tmp_path / "g")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["Ctrl-C", "kill -9"])
def test_the_same_command_goes_on(two_nodes: Any, tmp_path: Path, how: str) -> None:
    group = Group(tmp_path / "g", two_nodes.address, "--jobs", "2")
    group.run_until(lambda: len([*tmp_path.glob("g/s*/checkpoints/0*/meta.json")]) > 3)
    runs = [run for host in actors("Host") for run in host.children()]
    group.process.send_signal(signal.SIGINT if how == "Ctrl-C" else signal.SIGKILL)
    status, said = group.end()
    assert "Traceback" not in said
    if how == "Ctrl-C":
        assert status == 130
        assert said.count("] stopped at") == 2
        assert re.search(r"^3 +not begun", said, re.MULTILINE)
        assert not any(run.is_running() for run in runs)
    status, said = Group(tmp_path / "g", two_nodes.address).end()
    assert status == 0, said
    require_whole(tmp_path / "g")
    psutil.wait_procs(runs, timeout=30)
    assert not any(run.is_running() for run in runs)
