"""Nodes that stop, join, or can't do their work."""

import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray, the extra `cluster`, is not installed")

import psutil
from clusters_helpers import actors, cluster_of, stop
from exact_run_helpers import Drifting
from test_nodes import CONFIG, STEPS, Once

import quintet
from quintet.errors import ConfigError, WorkerFault

pytestmark = pytest.mark.slow


class Slow(Drifting):
    """Takes its time, so that a run goes on while a node starts."""

    def step(self, action: Any) -> Any:
        time.sleep(0.005)
        return super().step(action)


def train(
    folder: Path, address: str, env: Any, on_report: Any, steps: int = STEPS, **config: Any
) -> Any:
    options = {"runtime.kind": "async", "runtime.num_workers": 4}
    options |= {f"cluster.{name}": value for name, value in config.items()}
    return quintet.train(
        "ppo", env, steps, 7, folder, CONFIG | options, on_report=on_report, cluster=address
    )


@pytest.mark.parametrize("who", ["actor", "raylet"])
def test_a_node_that_is_stopped_or_loses_its_raylet_is_given_up(who: str, tmp_path: Path) -> None:
    stopped: list[psutil.Process] = []
    hits: list[float] = []
    with cluster_of(1, num_cpus=2) as cluster:
        node = cluster.add_node(num_cpus=2)

        def hit(metrics: dict[str, float]) -> None:
            if hits or metrics["data/nodes"] < 2 or metrics["env_steps"] < 200:
                return
            hits.append(metrics["env_steps"])
            if who == "raylet":
                node.kill_raylet(check_alive=False)
            else:
                stopped.append(actors()[-1])
                stop(stopped[0])

        try:
            result = train(tmp_path, cluster.address, Slow, hit, 6_400, node_timeout_s=3.0)
        finally:
            for each in stopped:
                with suppress(psutil.NoSuchProcess):  # Ray has ended it
                    each.kill()
    metrics = result.metrics
    assert metrics["env_steps"] == 6_400
    assert metrics["data/lost_nodes"] == 1
    assert metrics["data/worker_restarts"] == 1
    assert metrics["data/executed_env_steps"] == 6_400 + metrics["data/discarded_env_steps"]
    said = (tmp_path / "log.txt").read_text()
    why = r"it sent nothing for 3 s \(cluster\.node_timeout_s\)" if who == "actor" else ""
    assert re.search(r"node \d \(\S+\) was lost: " + why, said)


def test_a_node_that_joins_gets_workers(tmp_path: Path) -> None:
    times: list[float] = []
    with cluster_of(1, num_cpus=2) as cluster:

        def report(metrics: dict[str, float]) -> bool:
            if not times:
                cluster.add_node(num_cpus=2)
                times.append(time.monotonic())
            elif metrics.get("node/1/env_steps_per_s", 0) > 0:
                times.append(time.monotonic())
            return len(times) > 1

        result = train(tmp_path, cluster.address, Slow, report, 200_000)
    assert result.metrics["node/0/workers"] == result.metrics["node/1/workers"] == 2
    assert result.metrics["data/worker_restarts"] == 0
    print(f"a node that joined was sampling after {times[1] - times[0]:.1f} s")
    assert times[1] - times[0] < 60
    assert "joins, with 2 cores" in (tmp_path / "log.txt").read_text()


def test_too_few_nodes_end_a_run_and_a_node_without_a_package_begins_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_of(1) as cluster:
        only_here = ModuleType("only_here")
        only_here.Lonely = type("Lonely", (Drifting,), {"__module__": "only_here"})
        monkeypatch.setitem(sys.modules, "only_here", only_here)
        words = r"the node \S+ must have the package only_here, which this run imports: install it"
        with pytest.raises(ConfigError, match=words):
            train(tmp_path / "package", cluster.address, only_here.Lonely, None)
        assert not (tmp_path / "package").exists()
        node = cluster.add_node(num_cpus=1)
        kill = Once(lambda: node.kill_raylet(check_alive=False))
        with pytest.raises(WorkerFault, match=r"nodes_min=2 nodes must be present, got 1 for"):
            train(tmp_path / "few", cluster.address, Slow, kill, 200_000, nodes_min=2, wait_s=30.0)
