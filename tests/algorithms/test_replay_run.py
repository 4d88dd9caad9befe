"""A run of a learner with replay: its folder, its reports, and the same bytes after a resume."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_a2c import A2C, A2CConfig, A2CLearner

import quintet
from quintet.algorithms import registry
from quintet.protocols import DataPlan, ReplayPlan

OPTIONS = {
    "env.num_streams": 4, "env.backend": "gymnasium", "eval.episodes": 0, "report.interval_s": 1e-3,
    "report.sinks": ["jsonl"], "checkpoint.interval_updates": 10,
}  # fmt: skip
BUDGET = 1_600


def learner(plan: ReplayPlan) -> type:
    class Replaying(A2CLearner):
        """Learns from what is drawn as from what is fresh."""

        @property
        def plan(self) -> DataPlan:
            return replace(super().plan, replay=plan)

    return Replaying


PLANS = [
    ReplayPlan("windows", 500, steps=2, columns=32, draws="owed", rate=0.1),
    ReplayPlan(
        "sequences", 600, steps=8, columns=4, draws="poisson", rate=1.5, start_steps=200,
        column_source="per_stream",
    ),
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=["windows", "sequences"])
def test_a_run_with_replay_is_exact_over_a_resume(
    plan: ReplayPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.ALGORITHMS, "rep", replace(A2C, make_learner=learner(plan)))
    run = tmp_path / "run"
    seen: list[dict[str, float]] = []

    def report(metrics: dict[str, float]) -> bool:
        seen.append(metrics)
        return len(seen) == 33  # a stop between two scheduled checkpoints

    stopped = quintet.train("rep", "CartPole-v1", BUDGET, 1, run, OPTIONS, on_report=report)
    assert stopped.status == "stopped"
    assert (run / "replay").is_dir()
    assert max(metrics["replay/size"] for metrics in seen) > 200
    resumed = quintet.train("rep", "CartPole-v1", BUDGET, 1, run, OPTIONS | {"resume": "exact"})
    whole = quintet.train("rep", "CartPole-v1", BUDGET, 1, tmp_path / "whole", OPTIONS)
    assert whole.metrics["updates"] > 60
    a, b = (r.policy.publication.tensors for r in (whole, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert whole.metrics["replay/size"] == resumed.metrics["replay/size"]
    shutil.rmtree(run / "replay")
    with pytest.raises(quintet.errors.CheckpointError, match="replay"):
        quintet.train("rep", "CartPole-v1", BUDGET * 2, 1, run, OPTIONS)


def test_no_option_of_a_learner_without_replay_makes_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.ALGORITHMS, "a2c", A2C)
    assert A2CConfig().unroll_steps == 8
    quintet.train("a2c", "CartPole-v1", 256, 1, tmp_path / "run", OPTIONS)
    assert not (tmp_path / "run" / "replay").exists()
