"""What speaks for and against the parts of each learner."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym
from ppo_helpers import CONTINUOUS

import quintet
from quintet.algorithms import registry
from quintet.findings.health import judged as states

NORMALIZED = {"normalize_observations": True, "reward_normalizer": "return_std"}


def judged(algo: str, report: dict[str, float], **options: Any) -> dict[str, str]:
    one = registry.find(algo)
    found = states(one.judged(one.config(**options), CONTINUOUS), report)
    return {each.part: each.state for each in found}


@pytest.mark.parametrize("algo", registry.LEARNERS.names())
def test_each_learner_is_judged_by_what_it_reports(algo: str) -> None:
    one = registry.find(algo)
    options = one.config(**({} if algo in ("ppo", "ddpg") else NORMALIZED))
    parts = one.judged(options, CONTINUOUS)
    assert [part.name for part in parts] == ["policy", "value_function", "normalizers"]
    for part in parts:
        for each in part.evidence:
            assert each.metric in one.reported(), each
            assert each.given is None or each.given[0] in one.reported(), each
            # Sound values are possible ones, and each bound says what is beyond it.
            assert each.possible.low <= each.sound.low <= each.sound.high <= each.possible.high
            assert (each.sound.low == -np.inf or each.sound.low == 0.0) or each.below
            assert each.sound.high == np.inf or each.above


@pytest.mark.parametrize("algo", ["ppo", "appo", "impala", "acer"])
def test_a_gradient_of_which_nothing_is_left_is_doubtful(algo: str) -> None:
    """KL 6e-8, gradient norm 2.6e6 and a value loss of 5.9e10 were told as healthy."""
    kl = {"ppo": "policy/kl", "acer": "trust_region/kl_to_average"}.get(algo, "policy/approx_kl")
    report = {
        "updates": 1e4, "optim/learning_rate": 3e-4, "policy/clip_frac": 0.0, kl: 6e-8,
        "optim/grad_norm": 2.6e6, "value/explained_variance": 2e-7, "value/error_frac": 0.9999,
    }  # fmt: skip
    found = judged(algo, report)
    assert found["policy"] == found["value_function"] == "doubtful"
    # Reports before the statistics can be compared with a batch tell nothing of the normalisers.
    clip = {"normalizer/observation_clip_frac": 0.0, "normalizer/reward_std": 500.0}
    assert judged(algo, report | clip, **NORMALIZED)["normalizers"] == "not known yet"


def test_ddpg() -> None:
    good = {
        "updates": 1e4, "exploration/action_saturation_frac": 0.2, "reference/action_std": 0.4,
        "value/explained_variance": 0.9, "value/error_frac": 0.05,
        "normalizer/observation_clip_frac": 0.001, "normalizer/observation_unlike_frac": 0.0,
    }  # fmt: skip
    assert set(judged("ddpg", good).values()) == {"reliable"}
    assert judged("ddpg", good | {"q/target_bound_frac": 2.0})["value_function"] == "not known yet"
    warming_up = {"updates": 0.0, "exploration/action_saturation_frac": 0.01}
    assert set(judged("ddpg", warming_up).values()) == {"not known yet"}
    for change in (
        {"exploration/action_saturation_frac": 0.99},
        {"reference/action_std": 1e-6},
        {"value/explained_variance": -0.5, "value/error_frac": 0.8},
        {"value/error_frac": 0.99},
        {"q/target_bound_frac": 4.0},
        {"normalizer/observation_unlike_frac": 1.0},
    ):
        assert [*judged("ddpg", good | change).values()].count("doubtful") == 1, change


def test_returns_that_are_all_alike_are_explained() -> None:
    """A solved CartPole: targets hardly differ, and are met."""
    report = {"updates": 2e3, "value/explained_variance": -0.43, "value/error_frac": 8e-5}
    assert judged("appo", report)["value_function"] == "reliable"
    worse = report | {"value/error_frac": 0.5}
    assert judged("appo", worse)["value_function"] == "doubtful"


class Paying(gymnasium.Env[dict[str, Any], Any]):
    """Pays 1e4 for one of two actions; the leaves of its observation differ in scale by 1e8."""

    def __init__(self) -> None:
        box = gym.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = gym.Dict({"small": box, "large": box})
        self.action_space = gym.Discrete(2)

    def _observe(self) -> dict[str, Any]:
        self.x = self.np_random.normal(size=2).astype(np.float32)
        return {"small": 1e-3 * self.x, "large": 1e5 * (self.x + 3.0)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        reward = 1e4 * float((self.x[0] > 0) == bool(action))
        self.steps += 1
        return self._observe(), reward, False, self.steps >= 20, {}


def test_rewards_of_1e4_through_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def last(name: str, **config: Any) -> dict[str, float]:
        folder = tmp_path / name
        quintet.train(
            "ppo", Paying, total_steps=3072, run_dir=folder,
            config={
                "unroll_steps": 64, "num_epochs": 4, "eval.episodes": 0, "report.sinks": ["jsonl"],
                "report.interval_s": 0.0, "runtime.compile": "off", **config,
            },
        )  # fmt: skip
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        reports = [json.loads(line) for line in lines]
        assert reports[0]["health/value_function"] == reports[0]["health/normalizers"] == 0.0
        return {k: x for k, x in reports[-1].items() if k.startswith("health/")}

    normalized = last("normalized")
    assert normalized["health/policy"] == normalized["health/normalizers"] == 1.0
    capsys.readouterr()
    raw = last("raw", reward_normalizer="none")
    assert raw["health/policy"] == raw["health/value_function"] == -1.0
    told, log = capsys.readouterr().out, (tmp_path / "raw" / "log.txt").read_text()
    for line in (
        "health: policy doubtful: gradient norm (clipped to 0.5)",
        "health: value function doubtful: ",
        "health: normalizers reliable: observations clipped",
    ):
        assert line in told
        assert line in log
