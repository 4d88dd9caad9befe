"""Populations and evaluations of runs whose workers live on nodes."""

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray, the extra `cluster`, is not installed")

from exact_run_helpers import COMMON, Drifting

import quintet
from quintet.observe.report_files import read_metrics

pytestmark = pytest.mark.slow

NODES: dict[str, Any] = COMMON | {"cluster.nodes_min": 2, "cluster.wait_s": 300.0}


def test_all_policies_of_a_population_have_workers_on_nodes(address: str, tmp_path: Path) -> None:
    config = NODES | {
        "population.size": 2,
        "env.num_streams": 8,
        "env.streams_per_group": 2,
        "runtime.num_workers": 4,
        "unroll_steps": 16,
        "minibatch_steps": 64,
        "eval.episodes": 2,
        "report.sinks": ["jsonl"],
    }
    result = quintet.train("appo", Drifting, 6_400, 1, tmp_path, config, cluster=address)
    last = read_metrics(tmp_path)[-1]
    assert result.metrics["env_steps"] == 6_400
    assert last["data/nodes"] == 2
    for policy in (0, 1):
        assert last[f"policy_{policy}/updates"] > 10
        assert f"policy_{policy}/eval/return_mean" in last
    assert all(last[f"node/{node}/workers"] == 2 for node in (0, 1))


class Long(Drifting):
    """Takes a second for an evaluation's episode of 40 steps."""

    def step(self, action: Any) -> Any:
        time.sleep(0.025)
        return super().step(action)


def test_nodes_stay_in_the_run_while_an_evaluation_takes_longer_than_their_timeout(
    address: str, tmp_path: Path
) -> None:
    config = NODES | {
        "runtime.kind": "async",
        "env.num_streams": 4,
        "runtime.num_workers": 2,
        "unroll_steps": 16,
        "minibatch_steps": 32,
        "cluster.node_timeout_s": 2.0,
        "eval.episodes": 6,
        "eval.interval": 200,
        "eval.env.id": Long,
    }
    result = quintet.train("ppo", Drifting, 800, 1, tmp_path, config, cluster=address)
    metrics = result.metrics
    assert metrics["time/evaluation_frac"] > 0.3
    assert metrics["data/lost_nodes"] == metrics["data/worker_restarts"] == 0
    assert metrics["env_steps"] == 800
