"""Environments live as long as the run: what they keep, and what resumes make of it."""

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import quick_helpers
from gymnasium import spaces
from run_helpers import SMALL, log, names, weights

import quintet
from quintet.checkpoints import checkpoint
from quintet.errors import ConfigError, QuintetError

OFTEN = {
    "checkpoint.interval_iterations": 1,
    "checkpoint.max_cut_frac": 1.0,
    "checkpoint.keep": 100,
    "runtime.compile": "off",
    "env.streams_per_group": 2,
    "runtime.actor_threads": 1,
}


class Levels(gymnasium.Env):
    """A game of ten steps whose pay depends on the number of its episodes."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, offers: bool = True) -> None:
        self.offers, self.played = offers, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        self.played += 1
        return self._look(), {}

    def step(self, action):
        self.left -= 1
        pay = float(action == self.goal) * (1 + 0.1 * self.played)
        return self._look(), pay, self.left == 0, False, {"played": self.played}

    def _look(self):
        self.goal = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.goal]


class Saving(Levels):
    """Offers what it keeps."""

    def state_dict(self) -> dict[str, Any]:
        return {"played": self.played}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.played = state["played"]


class OwnNoise(gymnasium.Wrapper):
    """A wrapper with a generator of its own, which it offers."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.draw = np.random.default_rng(3)

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward + self.draw.normal()), *rest

    def state_dict(self) -> dict[str, Any]:
        return self.draw.bit_generator.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draw.bit_generator.state = state


class Broken(Saving):
    """Its state can't be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"played": self.played, "how": self.reset}


def noisy() -> gymnasium.Env:
    return OwnNoise(Saving())


pytestmark = pytest.mark.usefixtures("checked_apart")

KINDS: dict[str, dict[str, Any]] = {
    "serial": {"env.num_processes": 1},
    "steppers": {"env.num_processes": 4},
    "lockstep": {"runtime.kind": "lockstep", "runtime.num_workers": 2, "runtime.lag": 0},
}
EACH = [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "serial")) for kind in KINDS]


def train(folder: Path, env: Any = Saving, until: int = 640, **more: Any) -> Any:
    config = {**SMALL, **OFTEN, **{name.replace("__", "."): x for name, x in more.items()}}
    return quintet.train(
        "ppo", env, 640, 3, folder, config, lambda report: report["env_steps"] >= until
    )


def exact_ones(folder: Path) -> list[int]:
    found = [checkpoint.read(folder / "checkpoints" / name).meta for name in names(folder)]
    return [meta["iteration"] for meta in found if meta["exact"]]


def states(folder: Path) -> list[bytes]:
    tensors = checkpoint.read(folder / "checkpoints" / names(folder)[-1]).tensors["environments"]
    return [tensors[name].numpy().tobytes() for name in sorted(tensors)]


@pytest.mark.parametrize("kind", EACH)
@pytest.mark.parametrize("env", [Saving, pytest.param(noisy, marks=pytest.mark.slow)])
def test_what_environments_offer_is_saved_and_restored_with_the_same_bytes(
    env: Any, kind: str, tmp_path: Path
) -> None:
    whole = train(tmp_path / "whole", env)
    assert "not exact" not in log(tmp_path / "whole")
    assert exact_ones(tmp_path / "whole") == list(range(1, 12))
    folder = tmp_path / kind
    train(folder, env, until=250, **KINDS[kind])
    assert len(exact_ones(folder)) < 8, "it was stopped"
    part = train(folder, env, resume="exact", **KINDS[kind])
    assert weights(part) == weights(whole)
    assert states(folder) == states(tmp_path / "whole")


def until_killed(folder: str, kind: str) -> None:
    """Trains in a process of its own, until it kills itself."""

    def report(metrics: dict[str, float]) -> None:
        if metrics["env_steps"] > 320:
            os.kill(os.getpid(), signal.SIGKILL)

    config = {**SMALL, **OFTEN, **KINDS[kind]}
    quintet.train("ppo", Saving, 640, 3, folder, config, report)


@pytest.mark.parametrize("kind", EACH)
def test_a_killed_run_goes_on_with_what_environments_kept(kind: str, tmp_path: Path) -> None:
    whole, folder = train(tmp_path / "whole"), tmp_path / "run"
    code = f"import test_living_environments as t; t.until_killed({str(folder)!r}, {kind!r})"
    path = os.pathsep.join((str(Path(__file__).parent), *sys.path))
    with quick_helpers.begin(["-c", code], {"PYTHONPATH": path}) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(exact_ones(folder)) < 8
    assert states(folder) != states(tmp_path / "whole")
    part = train(folder, resume="exact", **KINDS[kind])
    assert weights(part) == weights(whole)
    assert states(folder) == states(tmp_path / "whole")


def test_an_environment_lives_as_long_as_the_run(tmp_path: Path) -> None:
    train(tmp_path / "run", Saving)
    played = [int(re.findall(rb"\d+", state)[0]) for state in states(tmp_path / "run")]
    assert len(played) == 4
    assert min(played) > 20, "640 env_steps of 4 streams are 15 games each, but for cut ones"


@pytest.mark.parametrize("kind", EACH)
def test_a_run_does_not_claim_what_is_not_known_to_hold(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, Levels, until=250, **KINDS[kind])
    assert exact_ones(folder) == []
    said = [line for line in log(folder).splitlines() if "not exact" in line]
    assert len(said) == 1
    for way in ("state_dict() and load_state_dict(state)", "--env.fresh-at-checkpoints true"):
        assert way in said[0]
    with pytest.raises(ConfigError, match=r"resume=exact needs .*reward at step"):
        train(folder, Levels, resume="exact", **KINDS[kind])
    train(folder, Levels, **KINDS[kind])
    assert "results will differ from the uninterrupted run" in log(folder)


@pytest.mark.parametrize("kind", EACH)
def test_fresh_environments_make_resumes_exact(kind: str, tmp_path: Path) -> None:
    fresh = {"env__fresh_at_checkpoints": True}
    whole = train(tmp_path / "whole", Levels, **fresh)
    assert "not exact" not in log(tmp_path / "whole")
    train(tmp_path / kind, Levels, until=250, **fresh, **KINDS[kind])
    part = train(tmp_path / kind, Levels, resume="exact", **fresh, **KINDS[kind])
    assert weights(part) == weights(whole)


@pytest.mark.slow
def test_an_async_run_restores_what_environments_offer(tmp_path: Path) -> None:
    options = {"runtime.kind": "async", "runtime.num_workers": 2}
    train(tmp_path, Saving, until=250, **options)
    before = [int(re.findall(rb"\d+", state)[0]) for state in states(tmp_path)]
    train(tmp_path, Saving, **options)
    after = [int(re.findall(rb"\d+", state)[0]) for state in states(tmp_path)]
    assert min(before) > 3
    assert all(b > a + 3 for a, b in zip(before, after, strict=True))


def test_a_state_that_cannot_be_saved_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(QuintetError, match=r"state_dict\(\) must return dicts, .*method"):
        train(tmp_path, Broken)
