"""Replay on every path: lockstep, async, several policies, several learners."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from small_run_helpers import hashes

import quintet
from quintet.algorithms import registry
from quintet.algorithms.impala.learner import ImpalaLearner
from quintet.algorithms.parts.setup import ALONE
from quintet.checkpoints import checkpoint
from quintet.errors import ConfigError
from quintet.options.layers import Layer
from quintet.options.saved import load_config
from quintet.protocols import DataPlan, Learner, ReplayPlan
from quintet.run import launch, learners
from quintet.types import Rollout

OPTIONS = {
    "env.num_streams": 4, "env.streams_per_group": 2, "env.backend": "gymnasium",
    "unroll_steps": 8, "batch_unrolls": 4, "model.policy_hidden": [8], "eval.episodes": 0,
    "report.interval_s": 0.0, "report.sinks": ["jsonl"], "report.progress": False,
    "checkpoint.interval_iterations": 10, "checkpoint.max_cut_frac": 1.0, "runtime.compile": "off",
}  # fmt: skip
SERIAL = {"runtime.kind": "serial"}
LOCKSTEP = {"runtime.kind": "lockstep", "runtime.num_workers": 2}
LAG_1 = {"runtime.kind": "lockstep", "runtime.num_workers": 1, "runtime.lag": 1}
ASYNC = {"runtime.kind": "async", "runtime.num_workers": 2}
BUDGET = 960


class Sequences(ImpalaLearner):
    """Learns from what is drawn as from what is fresh."""

    replay = ReplayPlan("sequences", 600, 8, 4, "poisson", 1.5, start_steps=100)

    @property
    def plan(self) -> DataPlan:
        return replace(super().plan, replay=self.replay)


class Windows(Sequences):
    replay = ReplayPlan("windows", 500, 2, 8, "owed", 0.1)


class Fixed(Sequences):
    replay = ReplayPlan("sequences", 600, 8, 4, "fixed", 2)


class SlowToLearn(Windows):
    def update(self, batch: Rollout, env_steps: int) -> None:
        time.sleep(0.01)
        super().update(batch, env_steps)


SEEDS = {Sequences: 1, Windows: 2, Fixed: 3, SlowToLearn: 4}


def enter(learner: type[Sequences]) -> None:
    registry.LEARNERS.loaded["rep"] = replace(registry.find("impala"), make_learner=learner)


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is taken out again."""
    monkeypatch.setitem(registry.LEARNERS.loaded, "rep", registry.find("impala"))


def train(folder: Path, learner: type[Sequences], kind: dict[str, Any], **given: Any) -> Any:
    enter(learner)
    env = given.pop("env", "CartPole-v1")
    options = OPTIONS | kind | given.pop("options", {})
    return quintet.train("rep", env, BUDGET, SEEDS[learner], folder, options, **given)


def drawn(report: dict[str, float]) -> float:
    """Updates from replay so far: every fresh batch is one of all updates."""
    return report["version"] - report["iterations"]


# Lockstep


@pytest.mark.slow
@pytest.mark.parametrize("learner", [Sequences, Windows])
def test_lockstep_of_lag_0_gives_the_bytes_of_serial(
    learner: type[Sequences], tmp_path: Path
) -> None:
    serial = train(tmp_path / "serial", learner, SERIAL)
    train(tmp_path / "lockstep", learner, LOCKSTEP | {"runtime.lag": 0})
    assert hashes(tmp_path / "serial") == hashes(tmp_path / "lockstep")
    assert drawn(serial.metrics) > 20


def killed(run: str) -> None:
    """Trains until SIGKILL, in a process of its own."""

    def report(metrics: dict[str, float]) -> None:
        if metrics["iterations"] == 26:
            os.kill(os.getpid(), signal.SIGKILL)

    train(Path(run), Sequences, LAG_1, on_report=report)


@pytest.mark.slow
def test_kill_9_in_lockstep_of_lag_1_changes_no_byte(tmp_path: Path) -> None:
    run, whole = tmp_path / "run", tmp_path / "whole"
    code = f"import test_replay_paths as t; t.killed({str(run)!r})"
    here = Path(__file__).parent
    where = os.environ | {"PYTHONPATH": str(here.parent)}
    process = subprocess.run([sys.executable, "-c", code], cwd=here, env=where, timeout=120)
    assert process.returncode == -signal.SIGKILL
    train(run, Sequences, LAG_1)
    train(whole, Sequences, LAG_1)
    assert hashes(run) == hashes(whole)
    said = (run / "log.txt").read_text()
    assert "resumed" in said
    assert "differ from the uninterrupted" not in said


# Async


def slow_env() -> gymnasium.Env[Any, Any]:
    return SlowSteps(gymnasium.make("CartPole-v1"))


class SlowSteps(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        time.sleep(0.002)
        return super().step(action)


@pytest.mark.parametrize(
    ("learner", "env"),
    [(SlowToLearn, "CartPole-v1"), pytest.param(Windows, slow_env, marks=pytest.mark.slow)],
    ids=["learner", "env"],
)
def test_neither_draws_nor_samples_run_away_in_async(
    learner: type[Sequences], env: Any, tmp_path: Path
) -> None:
    """Whichever is slow, a tenth of an update is drawn for every env_step that was learned from,
    and no more waits than a few batches and what the slots hold; over a resume too.
    """
    reports: list[dict[str, float]] = []

    def stop(report: dict[str, float]) -> bool:
        reports.append(report)
        return len(reports) == 20

    assert train(tmp_path, learner, ASYNC, env=env, on_report=stop).status == "stopped"
    assert train(tmp_path, learner, ASYNC, env=env, on_report=stop).status == "finished"
    assert reports[-1]["env_steps"] == BUDGET
    for report in reports:
        assert drawn(report) == report["env_steps"] // 10
    batch, prefetched, slots = 32, 2, 2
    ahead = [report["data/executed_env_steps"] - report["env_steps"] for report in reports[:20]]
    assert max(ahead) <= (prefetched + 1 + slots) * batch
    # Ten batches of a column of each stream, and one batch of one group alone.
    assert "room for 119 rows per stream" in (tmp_path / "log.txt").read_text()
    if learner is SlowToLearn:
        assert max(ahead) >= prefetched * batch  # it was waited for


def test_a_fixed_number_is_drawn_for_every_fresh_batch(tmp_path: Path) -> None:
    reports: list[dict[str, float]] = []
    train(tmp_path, Fixed, SERIAL, on_report=reports.append)
    assert all(drawn(report) == 2 * report["iterations"] for report in reports)
    assert reports[-1]["iterations"] >= BUDGET // 32


def test_ages_of_weights_that_draws_alone_exceed_are_refused(tmp_path: Path) -> None:
    options = {"runtime.max_policy_lag": 9, "runtime.publish_interval_iterations": 2}
    with pytest.raises(
        ConfigError, match=r"must be 1 with replay and a bound of 9 updates .* got 2"
    ):
        train(tmp_path / "run", Windows, ASYNC, options=options)


# Several policies


def two_policies(folder: Path, kind: dict[str, Any], on_report: Any = None) -> launch.Result:
    enter(Sequences)
    given = {"run_dir": str(folder), "total_env_steps": BUDGET, "seed": 5, "env.id": "CartPole-v1"}
    rates = {"learning_rate": [3e-3, 1e-3]}
    given |= {"population.size": 2, "population.pbt": False, "population.initial": rates}
    loaded = load_config("rep", [], Layer("call", OPTIONS | kind | given))
    return launch.run(loaded, on_report)


@pytest.mark.parametrize(
    "kind", [SERIAL, pytest.param(LOCKSTEP, marks=pytest.mark.slow)], ids=["serial", "lockstep"]
)
def test_every_policy_has_a_memory_of_its_own_rows(
    kind: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = ImpalaLearner.update
    seen: dict[Learner, set[int]] = {}

    def watched(self: Sequences, batch: Rollout, env_steps: int) -> None:
        if batch.replayed:
            seen.setdefault(self, set()).update(batch.policy_id[batch.valid].tolist())
        update(self, batch, env_steps)

    monkeypatch.setattr(ImpalaLearner, "update", watched)
    run, whole = tmp_path / "run", tmp_path / "whole"
    two_policies(whole, kind)
    assert sorted(map(tuple, seen.values())) == [(0,), (1,)]
    sizes = [(whole / f"policy_{k}/replay/rows.bin").stat().st_size for k in range(2)]
    assert min(sizes) > 600 * 8
    assert not (whole / "replay").exists()
    # Ten batches of a column of each stream, and what one stream may have beyond its share.
    assert (whole / "log.txt").read_text().count("room for 128 rows per stream") == 2
    two_policies(run, kind, on_report=lambda report: report["iterations"] >= 26)
    two_policies(run, kind | {"resume": "exact"})
    assert hashes(run) == hashes(whole)
    both = [checkpoint.latest(each / "checkpoints", warn=print) for each in (run, whole)]
    (a, b), *_ = [
        [part["replay"]["rows"]["checksums"] for part in found.meta["policies"]]
        for found in both
        if found is not None
    ]
    assert a != b


# Several learners


def make_replaying(config: Any, spaces: Any, ranks: Any = ALONE, policy: int = 0) -> Learner:
    """In any process."""
    enter(next(each for each, seed in SEEDS.items() if seed == config.seed))
    return MAKE_LEARNER(config, spaces, ranks, policy)


MAKE_LEARNER = learners.make_learner


@pytest.mark.slow
@pytest.mark.parametrize("learner", [Sequences, Windows])
def test_two_learners_share_every_draw(
    learner: type[Sequences], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learners, "make_learner", make_replaying)
    one = train(tmp_path / "one", learner, SERIAL)
    two = train(tmp_path / "two", learner, SERIAL | {"runtime.num_learners": 2})
    assert drawn(one.metrics) == drawn(two.metrics) > 20
    a, b = (each.policy.publication.tensors for each in (one, two))
    for name, x in a.items():
        torch.testing.assert_close(b[name], x, rtol=1e-5, atol=1e-6, msg=name)
    assert len(list(tmp_path.glob("two/**/rows.bin"))) == 1
