"""The script that shows whether a policy heeds its mission."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import quintet
from quintet.errors import ConfigError

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "shuffled_missions.py"
SMALL = {
    "env.num_streams": 4, "unroll_steps": 32, "minibatch_steps": 64, "model.policy_hidden": (16,),
    "report.progress": False, "report.sinks": [], "runtime.compile": "off", "eval.episodes": 0,
}  # fmt: skip


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    import shuffled_missions

    return shuffled_missions


class Errand(gymnasium.Env):
    """A mission of three, one-hot, for an episode of 1 to 4 steps: every step pays 1 for the
    action that the mission names.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Dict({"mission": spaces.Box(0, 1, (3,), np.float32)})
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.mission = int(self.np_random.integers(3))
        self.left = int(self.np_random.integers(1, 5))
        return {"mission": np.eye(3, dtype=np.float32)[self.mission]}, {}

    def step(self, action):
        self.left -= 1
        obs = {"mission": np.eye(3, dtype=np.float32)[self.mission]}
        return obs, float(action == self.mission), self.left == 0, False, {}


@pytest.fixture(scope="module")
def obedient(tmp_path_factory: pytest.TempPathFactory) -> quintet.Policy:
    folder = tmp_path_factory.mktemp("missions") / "run"
    config = SMALL | {"learning_rate": 3e-3}
    env = "test_shuffled_missions:Errand"
    return quintet.train("ppo", env, 5_000, run_dir=folder, config=config).policy


@pytest.mark.slow
def test_an_obedient_policy_does_what_another_mission_says(script, obedient) -> None:
    record = script.measured(obedient, 300, 10_000, 20)
    assert (record["success"], record["episodes"]) == ("reward>0", 300)
    assert record["as_is"]["success_rate"] == 1.0
    # Of 300 draws: three standard deviations.
    assert record["shuffled"]["changed_frac"] == pytest.approx(2 / 3, abs=0.08)
    kept = 1 - record["shuffled"]["changed_frac"]
    # Of all episodes that were begun, those of the shares are most.
    assert record["shuffled"]["success_rate"] == pytest.approx(kept, abs=0.02)
    assert record["random"]["low"] < 1 / 3 < record["random"]["high"]


def test_a_mission_is_another_streams_and_stays_for_the_episode(script) -> None:
    missions = np.array([[1], [2], [3]])
    shuffled = script.Shuffled()
    seen = shuffled({"mission": missions, "x": missions}, np.ones(3, bool))
    assert seen["mission"].tolist() == [[3], [1], [2]]
    assert seen["x"].tolist() == [[1], [2], [3]]
    missions[:] = [[1], [2], [9]]  # stream 2 begins anew
    seen = shuffled({"mission": missions}, np.array([False, False, True]))
    assert seen["mission"].tolist() == [[3], [1], [2]]
    missions[:] = [[9], [2], [9]]
    seen = shuffled({"mission": missions}, np.array([True, False, False]))
    assert seen["mission"].tolist() == [[9], [1], [2]]
    assert shuffled.changed == [True, True, True, True, False]


def test_wilsons_interval(script) -> None:
    for wins, count, low, high in ((0, 10, 0.0, 0.2775), (50, 100, 0.4038, 0.5962),
                                   (10, 10, 0.7225, 1.0)):  # fmt: skip
        assert script.wilson(wins, count) == pytest.approx((low, high), abs=1e-4)


def test_what_has_no_missions_is_refused(script, tmp_path) -> None:
    env = "quintet.envs.toy:Contextual"
    policy = quintet.train("ppo", env, 128, run_dir=tmp_path, config=SMALL).policy
    with pytest.raises(ConfigError, match=r"leaf 'mission' is required, .* has \['obs'\]"):
        script.measured(policy, 4, 0, 4)
    with pytest.raises(ConfigError, match="at least two streams"):
        script.measured(policy, 4, 0, 1)


@pytest.mark.slow
def test_on_a_task_of_babyai(script, tmp_path) -> None:
    """As it is, it is what `quintet.evaluate` says."""
    pytest.importorskip("envpool")
    config = SMALL | {"env.success": "reward>0", "model.core": "lstm"}
    run = tmp_path / "run"
    policy = quintet.train("ppo", "BabyAI-GoToObj-v0", 256, run_dir=run, config=config).policy
    arguments = [run, "--episodes", "6", "--streams", "6"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    record = json.loads(done.stdout)
    scores = quintet.evaluate(policy, episodes=6, seed=10_000)
    assert record["as_is"]["success_rate"] == scores.success_rate
    assert record["env"] == "BabyAI-GoToObj-v0"
    assert record["shuffled"]["changed_frac"] > 0.5
    assert all(
        0 <= record[way]["low"] <= record[way]["high"] <= 1 for way in ("shuffled", "random")
    )
