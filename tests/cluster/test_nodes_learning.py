"""A score that a learner on nodes reaches only if nothing is lost or mixed up between them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray, the extra `cluster`, is not installed")

from clusters_helpers import cluster_of, nothing_is_left

import quintet

pytestmark = pytest.mark.slow


def test_cartpole_is_learned_on_three_nodes(tmp_path: Path) -> None:
    means = []
    with cluster_of(3) as cluster:
        for seed in (11, 12, 13):
            run_dir = tmp_path / str(seed)
            words = f"train appo --env CartPole-v1 --seed {seed} --run-dir {run_dir}"
            nodes = f"--cluster {cluster.address} --cluster.nodes-min 3 --cluster.wait-s 300"
            command = [sys.executable, "-m", "quintet", *words.split(), *nodes.split()]
            subprocess.run([*command, "--eval.episodes", "0"], check=True)
            means.append(quintet.evaluate(quintet.load(run_dir), episodes=100).mean)
            assert '"data/nodes": 3' in (run_dir / "metrics.jsonl").read_text()
        assert nothing_is_left()
    print(means)
    assert sum(means) / 3 >= 495.0, means
