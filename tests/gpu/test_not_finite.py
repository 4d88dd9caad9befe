"""What becomes NaN on a GPU is found late, and is told as on the CPU: the same error, the same kept
batch, and no NaN acts.
"""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gpu_runs_helpers import PLAIN
from gymnasium import spaces

import quintet
from quintet.checkpoints import checkpoint
from quintet.errors import NonFiniteError

HUGE_AT = 150
OFF_POLICY: dict[str, dict[str, Any]] = {
    "acer": {"replay_start_steps_per_stream": 20, "replay_ratio": 9.0},
    "ddpg": {
        "replay_start_steps": 64,
        "replay_capacity_steps": 2000,
        "updates_per_env_step": 2.0,
        "batch_size": 8,
    },
}


class Spike(gymnasium.Env[Any, Any]):
    """One reward is too large for a loss; actions must be finite."""

    observation_space = spaces.Box(-9.0, 9.0, (3,), np.float32)
    total = 0
    tried = False

    def __init__(self, box: bool = False) -> None:
        box_space: Any = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = box_space if box else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.tried = seed < 100  # by the check whether episodes repeat, which has small seeds
        self.row = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        Spike.total += not self.tried
        self.row += 1
        assert np.isfinite(action).all()
        obs = np.full(3, self.row / 30, np.float32)
        return obs, 3e38 if Spike.total == HUGE_AT else 1.0, self.row >= 30, False, {}


@pytest.mark.parametrize("algo", ["ppo", "impala", "appo", "acer", "ddpg"])
def test_the_same_error_and_the_same_batch(algo: str, tmp_path: Path) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    for device in ("cpu", "cuda"):
        Spike.total = 0
        options = PLAIN | OFF_POLICY.get(algo, {}) | {"runtime.device": device}
        options |= {"env.num_streams": 2, "env.streams_per_group": 2, "env.num_processes": 1}
        options |= {"env.kwargs": {"box": algo == "ddpg"}, "model.policy_hidden": [8]}
        if algo != "ddpg":
            options |= {"reward_normalizer": "none", "unroll_steps": 16}
        if algo == "appo":
            options |= {"minibatch_steps": 32, "minibatches_per_iteration": 1}
        folder = tmp_path / device
        with pytest.raises(NonFiniteError) as raised:
            quintet.train(algo, Spike, total_steps=2000, seed=1, run_dir=folder, config=options)
        kept = checkpoint.read(folder / "failed_batch").tensors["batch"]
        told.append((str(raised.value).replace(str(folder), ""), dict(kept)))
    (of_cpu, expected), (of_gpu, found) = told
    assert of_gpu == of_cpu
    assert found.keys() == expected.keys()
    for name, x in found.items():
        assert x.numpy().tobytes() == expected[name].numpy().tobytes(), (name, x, expected[name])


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["impala", "acer"])
def test_a_policy_of_a_population_is_replaced_as_on_the_cpu(algo: str, tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    for device in ("cpu", "cuda"):
        Spike.total = HUGE_AT - 400
        options = PLAIN | OFF_POLICY.get(algo, {}) | {"runtime.device": device}
        options |= {"env.num_streams": 4, "env.streams_per_group": 2, "env.num_processes": 1}
        options |= {"reward_normalizer": "none", "unroll_steps": 16, "population.size": 2}
        options["model.policy_hidden"] = [8]
        if algo == "impala":
            options["batch_unrolls"] = 2
        folder = tmp_path / device
        ran = quintet.train(algo, Spike, total_steps=1200, seed=1, run_dir=folder, config=options)
        assert Spike.total > HUGE_AT
        assert "policy 1 has diverged" in (folder / "log.txt").read_text()
        found.append({name: x.clone() for name, x in ran.policy.publication.tensors.items()})
    assert all((x == found[1][name]).all() for name, x in found[0].items())
