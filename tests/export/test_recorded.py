"""Exports of the largest networks among the recorded runs, from short runs of their presets."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import quintet

pytest.importorskip("onnxscript", reason="exports must have the extra export")

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
LARGEST = (
    "ppo-Pong-v5",
    "appo-Pong-v5-10M",
    "appo-vizdoom.gymnasium_wrapper.VizdoomHealthGathering-v1",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGEST)
def test_recorded_runs(name: str, tmp_path: Path) -> None:
    record = json.loads((RESULTS / f"{name}.json").read_text())["config"]
    package = "vizdoom" if record["env.backend"] == "gymnasium" else record["env.backend"]
    if find_spec(package) is None:
        pytest.skip(f"{record['env.id']} must have the package {package}")
    kwargs = {"env.kwargs": record["env.kwargs"]} if record["env.kwargs"] else {}
    config = {"eval.episodes": 0, "report.progress": False, "runtime.compile": "off", **kwargs}
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
