"""Exports of the largest networks among the recorded runs, from short runs of their presets."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from installed_helpers import need

import quintet

need("exports must have the extra export", "onnxscript")

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
LARGEST = (
    "ppo-Pong-v5",
    "appo-Pong-v5-10M",
    "appo-vizdoom.gymnasium_wrapper.VizdoomHealthGathering-v1",
    "acer-Pong-v5",
    "impala-Pong-v5",
    "ppo-Breakout-v5",
    "impala-BabyAI-GoToRedBall-v0-6M",
    "impala-BabyAI-GoToLocal-v0-10M",
    "ddpg-HalfCheetah-v4",
    "acer-HalfCheetah-v4",
)

REPLAY_START = {"replay_start_steps": 5_000, "replay_start_steps_per_stream": 300}
"""Most steps before updates, of which a short run has some too."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGEST)
def test_recorded_runs(name: str, tmp_path: Path) -> None:
    record = json.loads((RESULTS / f"{name}.json").read_text())["config"]
    package = "vizdoom" if record["env.backend"] == "gymnasium" else record["env.backend"]
    if find_spec(package) is None:
        pytest.skip(f"{record['env.id']} must have the package {package}")
    kwargs = {"env.kwargs": record["env.kwargs"]} if record["env.kwargs"] else {}
    config: dict[str, Any] = {
        "eval.episodes": 0,
        "report.progress": False,
        "runtime.compile": "off",
        **kwargs,
    }
    for name, most in REPLAY_START.items():
        if record.get(name, 0) > most:
            config[name] = most
    made = quintet.train(
        record["algo"], record["env.id"], 12_000, run_dir=tmp_path / "run", config=config
    )
    policy = made.policy
    network = policy.description["model"]
    for option in ("encoder", "policy_hidden", "core", "core_skip", "shared_torso"):
        if f"model.{option}" in record:
            assert network[option] == record[f"model.{option}"], option
    found = policy.export(tmp_path / "out", steps=10_000)
    assert found.certificate.compared.greedy.compared >= 10_000
    assert "samples" not in found.certificate.observations
