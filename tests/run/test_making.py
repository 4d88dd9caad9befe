"""The cost of making environments keeps exact checkpoints apart, and is measured once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from run_helpers import SMALL, iterations, names, run, weights

import quintet
from quintet import checkpoint, uniform
from quintet.config.layers import Layer
from quintet.config.saved import load_config
from quintet.envs.env_source import settle
from quintet.errors import ConfigError, WorkerFault
from quintet.run import launch, making
from quintet.system import saved_options

STEP_S = 30e-6


class Clock:
    now_s, made, make_s, first_s, most = 0.0, 0, 0.0, 0.0, 1000


class Simulator(gymnasium.Env):
    """Takes time of a clock of its own, and none of the wall's; episodes of ten steps."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        Clock.now_s += Clock.make_s + Clock.first_s
        Clock.first_s = 0.0
        Clock.made += 1
        if Clock.made > Clock.most:
            raise RuntimeError("no licence is left")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self.np_random.random(1, np.float32), {}

    def step(self, action):
        Clock.now_s += STEP_S
        self.left -= 1
        return self.np_random.random(1, np.float32), float(action), self.left == 0, False, {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    for name, value in {"now_s": 0.0, "made": 0, "make_s": 0.0, "first_s": 0.0}.items():
        monkeypatch.setattr(Clock, name, value)
    monkeypatch.setattr(Clock, "most", 1000)
    monkeypatch.setattr(making, "unhindered_s", lambda: Clock.now_s)
    monkeypatch.setattr(uniform, "perf_counter", lambda: Clock.now_s)
    return Clock


def resolved(env: Any = Simulator, **more: Any) -> Any:
    """What the beginning of a run resolves the option to."""
    values = {**SMALL, "env.num_streams": 8, "total_env_steps": 128, "run_dir": "unused"}
    values |= {name.replace("__", "."): value for name, value in more.items()}
    says, source = settle(env)
    values |= {f"env.{name}": value for name, value in says.items()}
    loaded = load_config("ppo", [], Layer("call", values), source)
    begin = making.unhindered_s()
    source = launch.open_source(loaded.config, loaded.env)
    opened_s = making.unhindered_s() - begin
    found = launch.resolve(loaded, source.spaces)
    config = making.with_restart_cost(found.config, source, opened_s)
    source.close()
    return config.checkpoint.restart_env_steps


def test_the_cost_of_a_restart_is_measured(clock: type[Clock]) -> None:
    clock.make_s = 0.5
    assert resolved() == 4**8  # 4 s of 50 us: 80,000
    clock.make_s, clock.first_s = 0.5, 60.0
    assert resolved(preset="none") == 4**8, "what the first one imports is no cost of a restart"
    # Two processes share both.
    two = {"runtime__kind": "lockstep", "runtime__num_workers": 2}
    assert resolved(**two) == 4**8  # 2 s of 35 us: 57,143


def test_what_is_made_fast_or_never_again_costs_nothing(clock: type[Clock]) -> None:
    clock.make_s = 0.09
    before = clock.made
    assert resolved(preset="none") == 0
    assert clock.made - before == 8, "no environment is made to measure"
    clock.first_s = 60.0
    assert resolved(preset="none") == 0, "the first environment may import what makes it"
    clock.make_s = 0.5
    assert resolved(runtime__kind="async", runtime__num_workers=1) == 0
    assert resolved("quintet.envs.toy:Contextual") == 0
    given = gymnasium.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([Simulator] * 8))
    assert resolved(given) == 0


def test_an_option_that_is_given_is_not_measured(clock: type[Clock]) -> None:
    clock.make_s = 0.5
    assert resolved(checkpoint__restart_env_steps=0) == 0
    assert resolved(checkpoint__restart_env_steps=77) == 77


def test_environments_that_cannot_be_made_beside_those_of_the_run(clock: type[Clock]) -> None:
    clock.make_s, clock.most = 0.5, 8
    assert resolved(preset="none") == 4**9  # 4 s of 20 us: 200,000
    clock.most = clock.made + 3
    with pytest.raises(ConfigError, match="no licence is left"):
        resolved(preset="none")


def test_two_measurements_seldom_differ() -> None:
    assert [making.coarse(x) for x in (0.1, 1.0, 3.0, 60.0, 64.0, 100.0)] == [1, 1, 4, 64, 64, 64]


OFTEN = {
    "checkpoint.interval_iterations": 1,
    "checkpoint.keep": 100,
    "preset": "none",
    "env.num_processes": 1,
}


def train(folder: Path, total: int = 640, **more: Any) -> Any:
    own = {name.replace(".", "__"): value for name, value in OFTEN.items()}
    return run(folder, total, Simulator, **own, **more)


def exact_ones(folder: Path) -> list[int]:
    found = [checkpoint.read(folder / "checkpoints" / name).meta for name in names(folder)]
    return [meta["iteration"] for meta in found if meta["exact"]]


def test_a_run_without_room_for_restarts_makes_none_and_says_so(
    clock: type[Clock], tmp_path: Path
) -> None:
    clock.make_s = 0.5
    train(tmp_path)
    assert clock.made == 5, "four streams, and one for the measurement"
    assert exact_ones(tmp_path) == [11], "the end"
    assert iterations(tmp_path) == list(range(1, 12)), "other checkpoints are written as ever"
    said = (tmp_path / "log.txt").read_text()
    assert "this run can be resumed, but not with the same bytes: an exact checkpoint makes" in said
    assert "about 65,536 env_steps (checkpoint.restart_env_steps), and this may take 5% of" in said
    stored = saved_options.read(tmp_path)
    assert stored is not None
    assert stored.values["checkpoint.restart_env_steps"] == 4**8


def test_restarts_are_as_rare_as_they_are_dear(clock: type[Clock], tmp_path: Path) -> None:
    train(tmp_path / "free", checkpoint__max_cut_frac=1.0)
    assert exact_ones(tmp_path / "free") == list(range(1, 12))
    assert clock.made == 4 * 11
    assert "environments anew" not in (tmp_path / "free" / "log.txt").read_text()
    dear = {"checkpoint__max_cut_frac": 1.0, "checkpoint__restart_env_steps": 9}
    train(tmp_path / "dear", **dear)
    assert exact_ones(tmp_path / "dear") == [3, 6, 9, 11]  # 9 / 5% = 180 env_steps of 64 each
    said = (tmp_path / "dear" / "log.txt").read_text()
    assert "exact checkpoints are at least 3 iterations apart" in said


def test_no_clock_decides_after_the_start(
    clock: type[Clock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is resumed goes on with what was measured, on whatever machine."""
    dear = {"checkpoint__max_cut_frac": 1.0}
    monkeypatch.setattr(making, "_restart_env_steps", lambda *_: 9)
    whole = train(tmp_path / "whole", **dear)
    stopping = SMALL | OFTEN | {"checkpoint.max_cut_frac": 1.0}
    quintet.train(
        "ppo", Simulator, 640, 0, tmp_path / "part", stopping, lambda r: r["env_steps"] >= 250
    )
    monkeypatch.setattr(making, "_restart_env_steps", lambda *_: 4**8)
    part = train(tmp_path / "part", resume="exact", **dear)
    assert exact_ones(tmp_path / "part") == exact_ones(tmp_path / "whole")
    assert weights(part) == weights(whole)


def test_a_run_that_goes_back_does_not_measure_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def _run(loaded: Any, *_: Any, may_go_back: bool, **__: Any) -> str:
        seen.append(loaded.config.checkpoint.restart_env_steps)
        if may_go_back:
            raise launch._GoesBack("exact", 64)
        return "done"

    monkeypatch.setattr(launch, "_run", _run)
    loaded = load_config("ppo", [], Layer("call", {"env.id": "CartPole-v1", "run_dir": "unused"}))
    assert launch.run(loaded) == "done"
    assert seen == ["auto", 64]


def test_a_run_that_goes_back_leaves_the_reason_if_it_is_refused(tmp_path: Path) -> None:
    """Its new start may find too few nodes, or the folder taken."""
    ended: list[Any] = []
    folder = SimpleNamespace(end_record=lambda *given, **more: ended.append((*given, more)))
    trainer: Any = SimpleNamespace(
        folder=folder, counters=SimpleNamespace(env_steps=5), policies=[], stop=None,
        open=lambda: None, close=lambda: None,
    )  # fmt: skip
    closed: Any = SimpleNamespace(close=lambda: None)
    cause = WorkerFault("the node is lost")
    with pytest.raises(launch._GoesBack), launch._ends_told(trainer, closed, closed):
        raise launch._GoesBack("exact", 64) from cause
    assert ended == [("failed", 5, cause, {"in_log": False})]
