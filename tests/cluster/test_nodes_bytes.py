"""The same bytes on any number of nodes, for learners with and without replay."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_run_helpers import newest

pytest.importorskip("ray", reason="Ray, the extra `cluster`, is not installed")

from clusters_helpers import cluster_of
from corridor_helpers import CURRICULA, Corridor
from exact_run_helpers import ACER, COMMON, DDPG, SMALL, Drifting, Pushed

import quintet
from quintet.checkpoints import checkpoint

pytestmark = pytest.mark.slow

LEVELS = {"env.curriculum": CURRICULA["levels"], "env.success": "info:won"}
KINDS: dict[str, tuple[type, int, dict[str, Any]]] = {
    "ppo": (Drifting, 3_201, SMALL | {"model.core": "gru", "model.core_size": 8, "bptt_steps": 8}),
    "ddpg": (Pushed, 2_001, DDPG | {"updates_per_env_step": 0.1}),
    "acer": (Pushed, 2_001, ACER),
    "ppo-levels": (Corridor, 3_201, SMALL | LEVELS),
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with cluster_of(3) as cluster:
        yield cluster.address


def hashes(algo: str, folder: Path, lag: int, nodes: int, address: str) -> dict[str, str]:
    env, steps, config = KINDS[algo]
    clustered = {"address": address, "nodes_min": nodes, "nodes_max": nodes} if nodes else {}
    result = quintet.train(
        algo.partition("-")[0],
        env,
        steps,
        seed=7,
        run_dir=folder,
        config=COMMON
        | {"checkpoint.interval_iterations": 5, "checkpoint.max_cut_frac": 1.0}
        | config
        | {"env.num_streams": 6, "env.streams_per_group": 2, "runtime.kind": "lockstep"}
        | {"runtime.lag": lag, "runtime.num_workers": 3 if nodes else 1, "cluster": clustered},
    )
    assert result.metrics.get("data/nodes", 0) == nodes
    found = newest(folder)
    return checkpoint.tensor_hashes(found)


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("algo", KINDS)
def test_the_bytes_do_not_depend_on_the_number_of_nodes(
    algo: str, lag: int, address: str, tmp_path: Path
) -> None:
    wanted = hashes(algo, tmp_path / "here", lag, 0, "")
    for nodes in (1, 2, 3):
        assert hashes(algo, tmp_path / str(nodes), lag, nodes, address) == wanted
