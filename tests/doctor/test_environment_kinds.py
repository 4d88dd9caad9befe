"""Environments of kinds that raised false alarms, and faults of others, through the command."""

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from quintet.commands.cli import main

PERIOD, DAYS, SIZE = 6, 30, 7


class Horizon(gymnasium.Env[Any, Any]):
    """Orders for a shop of 30 days with random demand."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.stock, self.left = float(self.np_random.integers(0, 9)), DAYS
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        have = self.stock + int(action)
        sold = min(have, float(self.np_random.poisson(2.0)))
        self.stock, self.left = min(have - sold, 20.0), self.left - 1
        return self._obs(), sold - 0.3 * float(action), self.left == 0, False, {}

    def _obs(self) -> Any:
        return np.array([self.stock, self.left / DAYS if self.shown else 0.5], np.float32)


class Clock(Horizon):
    """Its prices are turned in every sixth step, which nothing shows; episodes are cut."""

    def step(self, action: Any) -> Any:
        turned = (DAYS - self.left) % PERIOD == 2
        obs, *_, over, _, _ = super().step(action)
        return obs, 3.0 * turned * (float(action) - 1.0) + 0.1 * self.stock, False, over, {}

    def _obs(self) -> Any:
        return np.array([self.stock, 0.0], np.float32)


class Pays(Clock):
    """The first action pays at every step, the others for an empty shop."""

    def step(self, action: Any) -> Any:
        obs, _, _, over, _ = super().step(action)
        return obs, 0.5 if int(action) == 0 else float(self.stock == 0), False, over, {}


class Board(gymnasium.Env[Any, Any]):
    """A grid with walls, a walker and a goal, all of which are shown."""

    observation_space = spaces.MultiBinary((2, SIZE, SIZE))
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.at, self.goal = self.np_random.integers(0, SIZE, (2, 2))
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        new = np.clip(self.at + ((0, 1), (0, -1), (1, 0), (-1, 0))[int(action)], 0, SIZE - 1)
        if new[0] != 3 or new[1] in (1, 5):
            self.at = new
        there = bool((self.at == self.goal).all())
        return self._obs(), float(there) - 0.01, there, False, {}

    def _obs(self) -> Any:
        obs = np.zeros((2, SIZE, SIZE), np.int8)
        obs[(0, *self.at)] = obs[(1, *self.goal)] = 1
        return obs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kwargs", "wanted", "unwanted", "said"),
    [
        ("Horizon", {}, "", {"time-limit", "observation-memory", "hidden-clock"}, ""),
        ("Horizon", {"shown": False}, "time-limit", set(), "after exactly 30 steps"),
        ("Clock", {}, "hidden-clock", {"reward-noise"}, "repeats every 6 steps"),
        ("Pays", {}, "action-pays", set(), "action 0 got a reward above 0 in each of"),
        ("Board", {}, "", {"observation-memory", "reward-noise", "observation-noise"}, ""),
    ],
)
def test_each_kind_is_told(
    name: str, kwargs: dict[str, Any], wanted: str, unwanted: set[str], said: str,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    words = [
        "doctor",
        f"test_environment_kinds:{name}",
        "--env.kwargs",
        json.dumps(kwargs),
        "--json",
    ]
    status = main([*words, "--probe-seed", "1"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["findings"]
    told = {each["name"]: each["said"] for each in found}
    assert not unwanted & told.keys()
    assert said in told.get(wanted, "")
    if wanted not in ("time-limit", "hidden-clock"):
        assert status == 0, told
    else:
        assert status == 1
        assert main([*words, "--probe-seed", "1", "--known", wanted]) == 0
