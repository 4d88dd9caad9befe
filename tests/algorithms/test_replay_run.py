"""A run of a learner with replay: its folder, its reports, and the same bytes after a resume."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from a2c_helpers import A2C, A2CConfig, A2CLearner

import quintet
from quintet.algorithms import registry
from quintet.protocols import DataPlan, ReplayPlan
from quintet.run import saving

OPTIONS = {
    "env.num_streams": 4, "env.backend": "gymnasium", "eval.episodes": 0, "report.interval_s": 1e-3,
    "report.sinks": ["jsonl"], "checkpoint.interval_iterations": 10, "checkpoint.max_cut_frac": 1.0,
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
    monkeypatch.setitem(registry.LEARNERS.loaded, "rep", replace(A2C, make_learner=learner(plan)))
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


def killed(run: str, iteration: int) -> None:
    """Trains until SIGKILL; for a process of its own."""
    registry.LEARNERS.loaded["rep"] = replace(A2C, make_learner=learner(PLANS[1]))

    def report(metrics: dict[str, float]) -> None:
        if metrics["iterations"] >= iteration:
            os.kill(os.getpid(), signal.SIGKILL)

    quintet.train("rep", "CartPole-v1", BUDGET, 1, run, OPTIONS, on_report=report)


def kill_at(iteration: int, run: Path) -> None:
    code = f"import test_replay_run as t; t.killed({str(run)!r}, {iteration})"
    process = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, timeout=120)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_kill_9_between_checkpoints_changes_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        registry.LEARNERS.loaded, "rep", replace(A2C, make_learner=learner(PLANS[1]))
    )
    run, damaged = tmp_path / "run", tmp_path / "damaged"
    kill_at(39, run)
    assert len(list((run / "checkpoints").iterdir())) == 3
    shutil.copytree(run, damaged)
    resumed = quintet.train("rep", "CartPole-v1", BUDGET, 1, run, OPTIONS)
    whole = quintet.train("rep", "CartPole-v1", BUDGET, 1, tmp_path / "whole", OPTIONS)
    a, b = (r.policy.publication.tensors for r in (whole, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)

    newest = max((damaged / "checkpoints").iterdir())
    (newest / "learner.safetensors").write_bytes(b"")
    with pytest.raises(
        quintet.errors.CheckpointError,
        match=r"skipped a damaged .* can't be resumed: .*overwritten since.* --init-from (\S+)",
    ) as refused:
        quintet.train("rep", "CartPole-v1", BUDGET, 1, damaged, OPTIONS)
    donor = str(refused.value).split("--init-from ")[1].split()[0]
    options = OPTIONS | {"init_from": donor}
    again = quintet.train("rep", "CartPole-v1", 64, 1, tmp_path / "again", options)
    assert again.status == "finished"


@pytest.mark.slow
def test_a_finished_run_with_replay_can_be_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        registry.LEARNERS.loaded, "rep", replace(A2C, make_learner=learner(PLANS[0]))
    )
    # None may be left out, whatever they cost: the rings reach back for one interval.
    monkeypatch.setattr(saving, "_TIME_FRAC", 0.0)
    run = tmp_path / "run"
    options = OPTIONS | {"checkpoint.interval_iterations": "auto", "checkpoint.keep": 200}
    quintet.train("rep", "CartPole-v1", BUDGET, 1, run, options)

    def stop(metrics: dict[str, float]) -> bool:
        return metrics["iterations"] >= 77

    longer = ("rep", "CartPole-v1", 3 * BUDGET, 1, run, options)
    assert quintet.train(*longer, on_report=stop).status == "stopped"
    assert "every 2 iterations, not every 7: the replay" in (run / "log.txt").read_text()
    assert quintet.train(*longer).status == "finished"
    metas = [json.loads(path.read_text()) for path in run.glob("checkpoints/*/meta.json")]
    written = sorted(meta["iteration"] for meta in metas)
    assert written[0] <= 2
    assert written[-1] >= 150
    assert max(b - a for a, b in pairwise(written)) <= 2


def test_a_replay_that_does_not_fit_leaves_a_folder_for_the_corrected_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    huge = replace(PLANS[0], capacity_steps=10**13)
    monkeypatch.setitem(registry.LEARNERS.loaded, "rep", replace(A2C, make_learner=learner(huge)))
    with pytest.raises(quintet.errors.ConfigError, match="on the disk of"):
        quintet.train("rep", "CartPole-v1", BUDGET, 1, run, OPTIONS)
    monkeypatch.setitem(
        registry.LEARNERS.loaded, "rep", replace(A2C, make_learner=learner(PLANS[0]))
    )
    quintet.train("rep", "CartPole-v1", 64, 1, run, OPTIONS)


def test_no_option_of_a_learner_without_replay_makes_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.LEARNERS.loaded, "a2c", A2C)
    assert A2CConfig().unroll_steps == 8
    quintet.train("a2c", "CartPole-v1", 256, 1, tmp_path / "run", OPTIONS)
    assert not (tmp_path / "run" / "replay").exists()


ACER = {
    "preset": "none", "env.num_streams": 4, "env.streams_per_group": 2, "env.backend": "gymnasium",
    "unroll_steps": 8, "replay_ratio": 1.5, "replay_capacity_steps_per_stream": 160,
    "replay_start_steps_per_stream": 16, "model.policy_hidden": [8], "eval.episodes": 0,
    "report.interval_s": 0.0, "report.sinks": ["jsonl"], "report.progress": False,
    "checkpoint.interval_iterations": 10,
}  # fmt: skip
ENV_OF = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1"}


def acer(folder: Path, kind: str, actions: str, **options: object) -> Any:
    workers = {} if kind == "serial" else {"runtime.num_workers": 2}
    config = ACER | {"runtime.kind": kind} | workers | options
    return quintet.train("acer", ENV_OF[actions], 800, 2, folder, config)


@pytest.mark.parametrize(
    "actions", ["discrete", pytest.param("continuous", marks=pytest.mark.slow)]
)
def test_acer_in_lockstep_without_lag_has_the_bytes_of_serial(actions: str, tmp_path: Path) -> None:
    serial = acer(tmp_path / "serial", "serial", actions)
    lockstep = acer(tmp_path / "lockstep", "lockstep", actions, **{"runtime.lag": 0})
    assert serial.metrics["updates"] == lockstep.metrics["updates"] > 40
    a, b = (r.policy.publication.tensors for r in (serial, lockstep))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    "actions", [pytest.param("discrete", marks=pytest.mark.slow), "continuous"]
)
def test_acer_learns_from_replay_in_async_and_says_what_it_takes(
    actions: str, tmp_path: Path
) -> None:
    found = acer(tmp_path, "async", actions).metrics
    assert found["env_steps"] == 800
    reports = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    ages = [report["replay/age_mean"] for report in reports if "replay/age_mean" in report]
    assert max(ages) > 5
    assert found["replay/size"] > 500
    assert found["updates"] > 40
    assert "replay of 640 rows takes " in (tmp_path / "log.txt").read_text()
