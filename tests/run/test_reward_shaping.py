"""Values by which environments weigh their rewards: given, and tuned by a population."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from shaped_tasks_helpers import LENGTH, Weighed, make, plain
from small_run_helpers import hashes

import quintet
from quintet.envs.vector import allocate_obs, allocate_row
from quintet.errors import ConfigError
from quintet.observe.lineage import EVENTS
from quintet.observe.report_files import read_metrics
from quintet.run.population import Population
from quintet.runtime.delivery import Batch
from quintet.types import REWARD_SHAPING

SHARED = {"each": 1.0}
SMALL: dict[str, Any] = {
    "env.num_streams": 6,
    "unroll_steps": 16,
    "minibatch_steps": 32,
    "report.sinks": ["jsonl"],
    "report.progress": False,
    "report.interval_s": 0.0,
    "eval.episodes": 0,
    "runtime.kind": "serial",
    "env.reward_shaping": {"right": 0.0, "each": 1.0},
}
SIDE_BY_SIDE = SMALL | {
    "population.size": 3,
    "population.pbt": False,
    "population.tuned": ["reward_shaping.each"],
    "population.initial": {"reward_shaping.each": [1.0, 2.0, 4.0]},
}
TUNED = SMALL | {
    "population.size": 3,
    "population.tuned": ["reward_shaping.each", "learning_rate"],
    "population.objective": "episode/success_rate",
    "population.mutation_rate": 0.7,
    "population.start_env_steps": 200,
    "population.period_env_steps": 100,
    "population.min_episodes": 3,
    "env.success": "info:won",
    "checkpoint.interval_iterations": 6,
    "checkpoint.max_cut_frac": 1.0,
    "checkpoint.keep": 100,
}
FIXED = {k: v for k, v in SIDE_BY_SIDE.items() if k not in SMALL} | {
    "population.objective": "episode/return_mean",
    "population.mutation_rate": 0.15,
    "population.min_episodes": 20,
    "env.success": None,
}
"""Values that stay."""


def train(folder: Path, config: dict[str, Any], total: int = 2_000, **given: Any) -> Any:
    # A report takes as long as an update; the last one is always made.
    reports = {} if given or config.get("population.pbt") is False else {"report.interval_s": 1e6}
    return quintet.train(
        "appo", "shaped_tasks_helpers:make", total, 3, folder, config | reports, **given
    )


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]


def test_given_values_replace_those_that_the_environment_declares() -> None:
    env = quintet.make_vector_env(make, 2, reward_shaping={"each": 3.0})
    obs, row = (f(env.spaces.observation, n) for f, n in ((allocate_obs, (2,)), (allocate_row, 2)))
    for _ in range(2):  # environments are made anew
        env.restart([0, 1], obs)
        env.send(np.array([0, 1]))
        env.recv(row)
        assert row.raw_reward.tolist() == [3.0, 3.0]
    env.close()


def test_what_is_written_counts_from_the_next_step_on() -> None:
    env = quintet.make_vector_env(
        make, 2, reward_shaping={"right": 0.0, "each": 1.0}, frame_stack=2, reward_clip="abs_one"
    )
    obs, row = (f(env.spaces.observation, n) for f, n in ((allocate_obs, (2,)), (allocate_row, 2)))
    env.restart([0, 1], obs)
    seen = []
    for change in (None, (1, [5.0, 0.5]), None):
        if change is not None:
            env.shaping[change[0]] = change[1]  # type: ignore[attr-defined]
        env.send(np.array([1, 1]))
        env.recv(row)
        seen.append(row.raw_reward.tolist())
    assert seen == [[1.0, 1.0], [1.0, 5.5], [1.0, 5.5]]
    env.close()


@pytest.mark.parametrize(
    ("maker", "declared"), [(make, "each, right, unused"), (plain, "there are none")]
)
def test_values_that_are_not_declared_are_refused(maker: Any, declared: str) -> None:
    with pytest.raises(ConfigError, match=rf"env.reward_shaping .*\({declared}\), got leap"):
        quintet.make_vector_env(maker, 2, reward_shaping={"leap": 3.0})


def test_a_dict_that_environments_share_is_refused() -> None:
    class Shared(Weighed):
        def __init__(self) -> None:
            super().__init__()
            self.reward_shaping = SHARED

    with pytest.raises(ConfigError, match=r"share one; make it in __init__"):
        quintet.make_vector_env(Shared, 2, reward_shaping={"each": 3.0})
    alone = quintet.make_vector_env(Shared, 1, reward_shaping={"each": 3.0})
    obs = allocate_obs(alone.spaces.observation, (1,))
    for _ in range(2):
        alone.restart([0], obs)
    alone.close()


def test_other_kinds_of_environments_are_refused() -> None:
    vector = gymnasium.vector.AsyncVectorEnv([Weighed] * 2)
    for env in ("CartPole-v1", vector):
        with pytest.raises(ConfigError, match=r"reward_shaping must have single Gymnasium env"):
            quintet.make_vector_env(env, 2, reward_shaping={"each": 3.0})
    vector.close()


@pytest.mark.parametrize(
    "runtime",
    [
        {},
        # Episodes draw their policy.
        pytest.param({"env.num_streams": 4, "env.streams_per_group": 4}, marks=pytest.mark.slow),
        pytest.param(
            {"runtime.kind": "lockstep", "runtime.num_workers": 2}, marks=pytest.mark.slow
        ),
        pytest.param({"runtime.kind": "async", "runtime.num_workers": 3}, marks=pytest.mark.slow),
        pytest.param(
            {"runtime.kind": "lockstep", "runtime.num_workers": 2, "runtime.inference": "server"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_each_policy_is_paid_by_its_own_values(tmp_path: Path, runtime: dict[str, Any]) -> None:
    train(tmp_path / "run", SIDE_BY_SIDE | runtime, 1_000)
    reports = read_metrics(tmp_path / "run")
    for policy, each in enumerate((1.0, 2.0, 4.0)):
        name = f"policy_{policy}/episode/return_mean"
        returns = [report[name] for report in reports if name in report]
        assert returns
        assert set(returns) == {each * LENGTH}


def test_what_is_published_is_what_the_population_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every decision, and from the first batch after a resume on."""
    consider, seen = Population.consider, set[float]()

    def watched(self: Population, batch: Batch, *given: Any) -> bool:
        def check() -> None:
            for policy, values in zip(self.policies, self.controller.values, strict=True):
                published = policy.publication().tensors[REWARD_SHAPING].tolist()
                assert published == [values["reward_shaping.each"], 0.0]
                seen.add(published[0])

        check()
        copied = consider(self, batch, *given)
        check()
        return copied

    monkeypatch.setattr(Population, "consider", watched)
    often = TUNED | {"population.mutation_rate": 1.0}
    train(tmp_path / "run", often, on_report=lambda report: report["env_steps"] > 1_000)
    assert len(seen) > 3  # more than the first values
    train(tmp_path / "run", often)


@pytest.mark.slow
def test_a_population_tunes_them_and_a_resume_goes_on(tmp_path: Path) -> None:
    whole, again, half = tmp_path / "whole", tmp_path / "again", tmp_path / "half"
    train(whole, TUNED)
    found = events(whole)
    values = {event.get("after", event.get("values"))["reward_shaping.each"] for event in found}
    assert len(values) > 3
    assert any(event["event"] == "copied" for event in found)
    last = read_metrics(whole)[-1]
    now = {event["policy"]: event.get("after", event.get("values")) for event in found}
    for policy, mine in now.items():
        name = f"policy_{policy}/hyperparameter/reward_shaping.each"
        assert last[name] == pytest.approx(mine["reward_shaping.each"])
    train(again, TUNED | {"runtime.kind": "lockstep", "runtime.lag": 0, "runtime.num_workers": 2})
    assert events(again) == found
    train(half, TUNED, on_report=lambda report: report["env_steps"] > 1_000)
    assert 3 < len(events(half)) < len(found)
    train(half, TUNED | {"resume": "exact"})
    assert events(half) == found
    assert hashes(half) == hashes(whole) == hashes(again)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"population.objective": "episode/return_mean"},
            "can't rank policies with different reward shaping",
        ),
        (
            {"population.tuned": ["reward_shaping.each", "reward_shaping.leap"]},
            r"first values other than 0 for reward_shaping.leap: .* '\{\"leap\": \.\.\.\}'",
        ),
        (
            {"population.tuned": ["reward_shaping.right"]},
            "first values other than 0 for reward_shaping.right",
        ),
        ({"population.initial": {"reward_shaping.each": [1.0, 0.0, 2.0]}}, "that are not 0"),
    ],
)
def test_what_can_not_be_tuned_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        train(tmp_path / "run", TUNED | change)


@pytest.mark.parametrize(
    ("algo", "options", "mixes"),
    [
        ("acer", {"unroll_steps": 8}, True),
        ("acer", {"unroll_steps": 8, "replay_ratio": 0.0}, False),
        ("acer", {"unroll_steps": 8, **FIXED}, False),
        ("appo", {"unroll_steps": 16, "minibatch_steps": 32}, False),
    ],
)  # fmt: skip
def test_a_replay_with_rewards_of_old_weights_is_told(
    algo: str, options: dict[str, Any], mixes: bool, tmp_path: Path
) -> None:
    config = {k: v for k, v in TUNED.items() if "_steps" not in k} | options
    if algo == "acer" and options.get("replay_ratio") != 0.0:
        config |= {"replay_start_steps_per_stream": 0}
    quintet.train(algo, "shaped_tasks_helpers:make", 200, 3, tmp_path, config)
    told = "updates mix rewards of old and new weights" in (tmp_path / "log.txt").read_text()
    assert told is mixes
