"""A run that was resumed exactly writes the reports of one that was not interrupted."""

import json
from pathlib import Path
from typing import Any

import pytest

import quintet

SMALL: dict[str, Any] = {
    "env.num_streams": 6,
    "unroll_steps": 8,
    "preset": "none",
    "report.sinks": ["jsonl"],
    "report.progress": False,
    "report.interval_s": 0.0,
    "eval.episodes": 0,
    "runtime.kind": "serial",
    "checkpoint.interval_iterations": 2,
    "checkpoint.max_cut_frac": 1.0,
}
OF: dict[str, dict[str, Any]] = {
    "ppo": {"minibatch_steps": 24, "kl_coef_init": 0.5, "clip_schedule": "linear"},
    "appo": {"minibatch_steps": 16},
    "impala": {"batch_unrolls": 2},
    "acer": {"replay_capacity_steps_per_stream": 80, "replay_start_steps_per_stream": 8},
    "ddpg": {"replay_capacity_steps": 500, "batch_size": 8, "updates_per_env_step": 0.1},
}
CLOCKS = ("wall_s", "throughput/", "time/", "machine/", "process/")
TOTAL = 360


def reports(folder: Path, algo: str, policies: int, resumed: bool) -> list[dict[str, float]]:
    """All reports of a run, but for what clocks and the machine say."""
    config = SMALL | OF[algo] | {"lr_schedule": "linear"}
    if policies > 1:
        config |= {"population.size": policies, "population.min_episodes": 1}
    env = "Pendulum-v1" if algo == "ddpg" else "CartPole-v1"

    def train(on_report: Any = None, **given: Any) -> None:
        quintet.train(algo, env, TOTAL, 4, folder, config | given, on_report)

    if resumed:
        train(lambda report: report["env_steps"] > TOTAL / 2)
    train(resume="exact")
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [
        {name: x for name, x in line.items() if not any(each in name for each in CLOCKS)}
        for line in lines
    ]


@pytest.mark.parametrize(
    ("algo", "policies"),
    [
        ("ppo", 3),
        ("ddpg", 1),
        ("ddpg", 3),
        pytest.param("acer", 3, marks=pytest.mark.slow),
        pytest.param("ppo", 1, marks=pytest.mark.slow),
        pytest.param("acer", 1, marks=pytest.mark.slow),
        pytest.param("appo", 3, marks=pytest.mark.slow),
        pytest.param("impala", 3, marks=pytest.mark.slow),
    ],
)
def test_reports_are_those_of_a_run_without_interruption(
    algo: str, policies: int, tmp_path: Path
) -> None:
    """Also of policies that have not learned since."""
    whole = reports(tmp_path / "whole", algo, policies, resumed=False)
    parts = reports(tmp_path / "parts", algo, policies, resumed=True)
    assert len(whole) > 5
    for ours, theirs in zip(parts, whole, strict=True):
        assert ours == theirs
