"""DDPG in whole runs: what its streams do wherever they act, what it learns of endings, how many
updates it makes, and several learners.
"""

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import exploring_helpers
import gymnasium
import numpy as np
import pytest
import torch
from exact_run_helpers import Pushed
from small_run_helpers import newest
from torch import Tensor

import quintet
from quintet.algorithms.ddpg.actor import DDPGActor
from quintet.algorithms.ddpg.exploration import perturbation
from quintet.algorithms.ddpg.learner import DDPGLearner
from quintet.checkpoints import checkpoint
from quintet.run.launch import Result
from quintet.types import ActOutput, Rollout

slow = pytest.mark.slow

SMALL: dict[str, Any] = {
    **exploring_helpers.SMALL,
    "preset": "none",
    "env.num_streams": 4,
    "unroll_steps": 10,
    "batch_size": 16,
    "updates_per_env_step": 0.25,
    "replay_capacity_steps": 600,
    "replay_start_steps": 60,
    "exploration": "adaptive-param_0.3,ou_0.2,normal_0.1",
    "adapt_interval_updates": 5,
    "model.policy_hidden": [16, 16],
    "runtime.compile": "off",
    "runtime.kind": "serial",
}
LOCKSTEP = {"runtime.kind": "lockstep", "runtime.lag": 0}


def train(
    folder: Path, total: int, env: Any = Pushed, on_report: Any = None, **given: Any
) -> Result:
    options = SMALL | given
    if "param" not in options["exploration"]:
        del options["adapt_interval_updates"]
    return quintet.train("ddpg", env, total, 7, folder, options, on_report=on_report)


def left(folder: Path) -> tuple[Any, Any]:
    """Hashes of all that was learned, and checksums of all that was executed."""
    found = newest(folder)
    return checkpoint.tensor_hashes(found), found.meta["replay"]["rows"]["checksums"]


# Streams


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serial") / "run"
    result = train(folder, 400)
    assert result.metrics["updates"] > 50
    return folder


@pytest.mark.parametrize(
    "spread",
    [
        pytest.param({"runtime.num_workers": 1}, marks=slow),
        pytest.param({"runtime.num_workers": 2}, marks=slow),
        {"runtime.num_workers": 2, "runtime.inference": "server"},
    ],
    ids=["one worker", "two workers", "two workers, server"],
)
def test_streams_explore_alike_wherever_they_act(
    spread: dict[str, Any], serial: Path, tmp_path: Path
) -> None:
    """By the bytes of every executed action, and of what was learned of them."""
    train(tmp_path / "run", 400, **LOCKSTEP, **spread)
    assert left(tmp_path / "run") == left(serial)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=slow), pytest.param(1, marks=slow)])
def test_a_stream_is_perturbed_by_what_is_published_and_its_own_seed_at_its_own_starts(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever group it is in.  Each act of a run is looked at."""
    act = DDPGActor.act
    streams: dict[tuple[int, int], list[int]] = defaultdict(list)

    def watched(self: DDPGActor, obs: Any, state: Any, is_first: Tensor, noise: Any) -> ActOutput:
        out = act(self, obs, state, is_first, noise)
        before, after = state["weights"], out.state["weights"]
        for row in range(len(is_first)):
            if not is_first[row]:
                assert torch.equal(after[row], before[row])
                continue
            seed = int(noise[row, 0])
            z = perturbation(self.theta.numel(), seed)
            expected = self.theta + self.scale * self.moved * z
            torch.testing.assert_close(after[row], expected, rtol=1e-5, atol=1e-6)
            streams[id(self), row].append(seed)
        return out

    monkeypatch.setattr(DDPGActor, "act", watched)
    options = {"env.streams_per_group": size, "checkpoint.interval_iterations": 1_000}
    train(tmp_path, 500, **options)
    assert len(streams) == 4
    assert min(map(len, streams.values())) > 3
    seeds = [seed for each in streams.values() for seed in each]
    assert len(set(seeds)) == len(seeds)


# Endings

HORIZON, GAMMA = 5, 0.8


class Paid(gymnasium.Env[Any, Any]):
    """Pays 1 per step, for five steps; observations tell the step."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, truncates: bool):
        self.truncates = truncates

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        over = self.steps == HORIZON
        return self._obs(), 1.0, over and not self.truncates, over and self.truncates, {}

    def _obs(self) -> Any:
        return np.array([self.steps / HORIZON], np.float32)


def truncated() -> Paid:
    return Paid(truncates=True)


def terminated() -> Paid:
    return Paid(truncates=False)


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (truncated, {}),
        pytest.param(terminated, {}, marks=slow),
        pytest.param(truncated, {"truncation_as_termination": True}, marks=slow),
    ],
    ids=["truncated", "terminated", "truncation as termination"],
)
def test_the_value_of_a_truncated_episode_goes_on(
    env: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    """As if it had no end: 1 / (1 - gamma) in every step; where it terminates, what is left."""
    learning = {
        "gamma": GAMMA, "batch_size": 32, "updates_per_env_step": 1.0, "critic_lr": 1e-2,
        "tau": 0.2, "exploration": "normal_0.1", "critic_l2_coef": 0.0, "unroll_steps": 5,
        "checkpoint.interval_iterations": 1_000,
    }  # fmt: skip
    result = train(tmp_path, 600, env, **learning, **options)
    endless = env is truncated and not options
    to_go = np.arange(HORIZON, 0, -1)
    expected = 1 / (1 - GAMMA) if endless else ((1 - GAMMA**to_go) / (1 - GAMMA)).mean()
    assert result.metrics["q/target_mean"] == pytest.approx(expected, rel=0.1)


# Async

SLEEP_S = 0.002  # per step of an environment, and three times that per update


class SlowSteps(Pushed):
    def step(self, action: Any) -> Any:
        time.sleep(SLEEP_S)
        return super().step(action)


@slow
@pytest.mark.parametrize("what", ["learner", "environment"])
def test_async_keeps_the_ratio_of_updates_to_env_steps(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 5% of the steps that were learned from and, once these are more than what may wait, of
    all that were executed: whichever of both sides is the slow one.
    """
    update = DDPGLearner.update

    def sleeping(self: DDPGLearner, batch: Rollout, env_steps: int) -> None:
        time.sleep(3 * SLEEP_S * batch.replayed)
        update(self, batch, env_steps)

    if what == "learner":
        monkeypatch.setattr(DDPGLearner, "update", sleeping)
    reports: list[dict[str, float]] = []
    total, start, rate = 3_000, 60, 0.1
    options = {
        "runtime.kind": "async", "runtime.num_workers": 2, "unroll_steps": 5,
        "updates_per_env_step": rate, "model.policy_hidden": [8],
        "checkpoint.interval_iterations": 99, "action_layer": 1,
    }  # fmt: skip
    env = Pushed if what == "learner" else SlowSteps
    train(tmp_path, total, env, reports.append, **options)
    assert reports[-1]["env_steps"] == total
    late = [report for report in reports if report["env_steps"] > 0.7 * total]
    assert len(late) > 10
    for report in late:
        learned, executed = report["env_steps"], report["data/executed_env_steps"]
        assert report["updates"] / (learned - start) == pytest.approx(rate, rel=0.01)  # whole ones
        assert report["updates"] / (executed - start) == pytest.approx(rate, rel=0.05)


# Several learners


def test_two_learners_in_processes_are_one(tmp_path: Path) -> None:
    """All that a checkpoint holds, after what few updates float32 does not drive apart."""
    options = {"normalize_returns": True, "popart": True, "exploration": "adaptive-param_0.3"}
    both = []
    for learners in (1, 2):
        folder = tmp_path / str(learners)
        result = train(folder, 160, **options, **{"runtime.num_learners": learners})
        assert result.metrics["updates"] == 25
        both.append(newest(folder).tensors["learner"] | newest(folder).tensors["policy"])
    assert both[0].keys() == both[1].keys()
    for name, x in both[0].items():
        torch.testing.assert_close(both[1][name], x, rtol=1e-4, atol=1e-5, msg=name)
