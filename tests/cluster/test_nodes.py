"""Runs whose workers live on the nodes of a cluster."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_run_helpers import hashes

ray = pytest.importorskip("ray", reason="Ray, the extra `cluster`, is not installed")

from clusters_helpers import actors, nothing_is_left, without_ray, workers_of  # noqa: E402
from exact_run_helpers import COMMON, SMALL, Drifting  # noqa: E402

import quintet  # noqa: E402
from quintet.checkpoints.lock import run_lock  # noqa: E402
from quintet.errors import CheckpointError, ConfigError  # noqa: E402

STEPS = 3_200
CONFIG: dict[str, Any] = COMMON | SMALL | {
    "report.progress": False,
    "checkpoint.interval_iterations": 5,
    "checkpoint.max_cut_frac": 1.0,
    "env.num_streams": 8,
    "env.streams_per_group": 2,
    "runtime.actor_threads": 1,
}  # fmt: skip

# Both nodes are waited for, at each start, on a busy machine too.
BOTH = {"cluster__nodes_min": 2, "cluster__wait_s": 300.0}


@pytest.fixture(autouse=True)
def all_ended() -> Iterator[None]:
    yield
    assert nothing_is_left()


def train(folder: Path, address: str | None, on_report: Any = None, **options: Any) -> Any:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return quintet.train(
        "ppo",
        Drifting,
        total_steps=STEPS,
        seed=7,
        run_dir=folder,
        config=CONFIG | named,
        cluster=address,
        on_report=on_report,
    )


class Once:
    """Does something at the third report."""

    def __init__(self, what: Callable[[], None]) -> None:
        self.what, self.reports = what, 0

    def __call__(self, _: Any) -> None:
        self.reports += 1
        if self.reports == 3:
            self.what()


@pytest.mark.slow
def test_lockstep_has_the_bytes_of_one_process_also_after_a_node_died(
    address: str, tmp_path: Path
) -> None:
    train(tmp_path / "serial", None)
    lockstep = {"runtime__kind": "lockstep", "runtime__lag": 0, "runtime__num_workers": 3}
    lockstep |= BOTH
    kill = Once(lambda: actors()[0].kill())
    result = train(tmp_path / "nodes", address, on_report=kill, **lockstep)
    assert kill.reports > 3
    assert result.metrics["data/nodes"] == 2
    assert result.metrics["node/0/in_bytes_per_s"] > 0
    assert hashes(tmp_path / "nodes") == hashes(tmp_path / "serial")
    said = (tmp_path / "nodes" / "log.txt").read_text()
    assert said.count("going back to the last exact checkpoint") == 1
    assert " was lost: " in said


@pytest.mark.slow
def test_async_gives_up_the_streams_of_a_lost_node_and_goes_on(
    address: str, tmp_path: Path
) -> None:
    lost: list[int] = []

    def kill_all_workers_but_one() -> None:
        first, second = actors()
        lost.append(len(workers_of(second)))
        workers_of(first)[0].kill()
        second.kill()

    kill = Once(kill_all_workers_but_one)
    options = {"runtime__kind": "async", "runtime__num_workers": 4, "runtime__max_restarts": 2}
    options |= BOTH
    result = train(tmp_path, address, on_report=kill, **options)
    metrics = result.metrics
    assert lost == [2]
    assert metrics["env_steps"] == STEPS
    assert metrics["data/worker_restarts"] == 2
    assert metrics["data/lost_nodes"] == 1
    assert metrics["data/executed_env_steps"] == STEPS + metrics["data/discarded_env_steps"]
    said = (tmp_path / "log.txt").read_text()
    assert "on node 0 (" in said or "on node 1 (" in said
    assert said.count("(replaced, ") == 2


@pytest.mark.slow
def test_nodes_that_never_come_are_told(address: str, tmp_path: Path) -> None:
    given = {"cluster.nodes_min": 3, "cluster.wait_s": 1, "runtime.kind": "async"}
    with pytest.raises(ConfigError, match=r"nodes_min=3 must be met within 1 s"):
        train(tmp_path / "run", address, **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"runtime.inference": "server"}, r"runtime\.inference must be local"),
        ({"runtime.kind": "serial"}, r"cluster\.address=.* has no effect without runtime\.kind="),
        ({"cluster.nodes_min": 3, "cluster.nodes_max": 2}, r"nodes_min must be at most nodes_max"),
    ],
)
def test_what_a_cluster_can_not_do_is_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Before anybody connects to one."""
    given = {"runtime.kind": "async"} | options
    with pytest.raises(ConfigError, match=words):
        train(tmp_path / "run", "127.0.0.1:1", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("bad", ["127.0.0.1:1", "nobody.invalid:6379"])
def test_an_address_without_a_cluster_is_refused(bad: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must name a running Ray cluster .* got " + bad):
        train(tmp_path / "run", bad, runtime__kind="async")
    assert not (tmp_path / "run").exists()


def test_a_folder_in_use_is_refused_before_nodes_are_awaited(tmp_path: Path) -> None:
    """Those that the other process uses would be awaited in vain."""
    with (
        run_lock(tmp_path / "run"),
        pytest.raises(CheckpointError, match="in use by the process with pid"),
    ):
        train(tmp_path / "run", "127.0.0.1:1", runtime__kind="async")


def test_a_cluster_needs_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_ray(monkeypatch)
    with pytest.raises(ConfigError, match=r"needs Ray.*pip install 'quintet-rl\[cluster\]'"):
        train(tmp_path / "run", "auto", runtime__kind="async")
