"""Examination of whole environments: what is planted in one is what is found."""

import json
import os
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from quintet.doctor import apart, environment, pairs
from quintet.doctor.apart import examine_apart
from quintet.doctor.play import Reader, play
from quintet.doctor.seen import Seen
from quintet.envs.config import EnvConfig
from quintet.envs.env_source import settle
from quintet.envs.make import make_group_env
from quintet.envs.resolved import resolve_env
from quintet.errors import ConfigError
from quintet.findings.engine import Again, evaluate
from quintet.findings.record import Finding
from quintet.jobs.job import Outcome
from quintet.search.candidates import what_only_this_process_has
from quintet.types import ACTION_MASK, Spaces


class Point(gymnasium.Env[Any, Any]):
    """A point that moves left or right for 30 steps, with a fault."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.before = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.place = self.np_random.uniform(-1, 1) + (0.3 * self.before) * (self.fault == "keeps")
        self.before += 1.0
        self.turned = self.np_random.random() < 0.5
        self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        way = 2 * int(action) - 1
        if self.fault == "turned" and self.turned:
            way = -way
        if self.fault == "ignored":
            way = 1 if self.np_random.random() < 0.5 else -1
        self.place += 0.1 * way
        self.steps += 1
        reward = {"unpaid": 0.0, "nan": np.nan}.get(self.fault, -abs(self.place))
        return self._obs(), reward, False, self.steps >= 30, {}

    def _obs(self) -> Any:
        return np.array([self.place, self.steps / 30], np.float32)


class Hostile(gymnasium.Env[Any, Any]):
    """An environment that raises, hangs or ends its process."""

    def __init__(self, how: str = "raises") -> None:
        self.how, self.steps = how, 0
        print(f"threads of NumPy: {os.environ.get('OPENBLAS_NUM_THREADS')}")
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps > 20:
            _hostile(self.how)
        return np.zeros(1, np.float32), 0.0, False, False, {}


class _Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def _hostile(how: str) -> None:
    import os
    import sys
    import time

    if how == "raises":
        raise ValueError("out of the maze")
    if how == "mute":
        raise _Mute
    if how == "exits":
        sys.exit(3)
    if how == "dies":
        os._exit(7)
    if how == "hangs":
        time.sleep(1_000)


def _words(fault: str, name: str = "fault", cls: str = "Point") -> list[str]:
    return ["--env", f"test_environment:{cls}", "--env.kwargs", f'{{"{name}": "{fault}"}}']


def _names(fault: str) -> list[str]:
    loaded = environment.load("ppo", _words(fault))
    options = environment.options_of(loaded, "")
    *_, (_, found) = environment.examine(loaded, options, 0, 30.0, lambda _: None)
    return [each.name for each in found if each.degree != "note"]


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        pytest.param("", [], marks=pytest.mark.slow),
        pytest.param("ignored", ["action-ignored"], marks=pytest.mark.slow),
        ("turned", ["action-inconsistent"]),
        pytest.param("keeps", ["remembers"], marks=pytest.mark.slow),
        pytest.param("unpaid", ["reward-never-seen"], marks=pytest.mark.slow),
    ],
)
def test_what_is_planted_is_found_first(fault: str, wanted: list[str]):
    assert _names(fault)[:1] == wanted


@pytest.mark.parametrize(
    ("how", "wanted", "said"),
    [
        pytest.param("raises", "raises", "out of the maze", marks=pytest.mark.slow),
        pytest.param("mute", "raises", "_Mute", marks=pytest.mark.slow),
        pytest.param("exits", "raises", "sys.exit(3)", marks=pytest.mark.slow),
        pytest.param("dies", "dies", "ended with status 7", marks=pytest.mark.slow),
        pytest.param("hangs", "hangs", "but that did not end in", marks=pytest.mark.slow),
    ],
)
def test_a_hostile_environment_is_a_finding(
    how: str, wanted: str, said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    most_s = 8.0 if how == "hangs" else 60.0
    lines: list[str] = []
    found = examine_apart("ppo", _words(how, "how", "Hostile"), "", 0, most_s, lines.append)
    assert not found.whole
    assert found.found[0]["name"] == wanted
    assert said in found.found[0]["said"]
    assert not any("Traceback" in line for line in lines)
    assert "threads of NumPy: 1" in lines


@pytest.mark.slow
def test_the_time_of_a_step_is_told():
    found = examine_apart("ppo", ["--env", "quintet.envs.toy:Contextual"], "", 0, 20.0, print)
    assert found.step_s is not None
    assert 1e-7 < found.step_s < 0.01


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_wrong_options_are_an_error(apart: bool):
    examine: Any = partial(examine_apart, typed="", seed=0, most_s=60.0, say=print)
    with pytest.raises(ConfigError, match="unknown option"):
        (examine if apart else environment.load)("ppo", ["--env", "CartPole-v1", "--gama", "1"])


def test_an_environment_that_only_this_process_has_is_examined(monkeypatch: pytest.MonkeyPatch):
    class Lost(Point):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            raise RuntimeError("lost on the way")

    monkeypatch.setitem(gymnasium.registry, "Lost-v0", EnvSpec("Lost-v0", Lost))
    says, source = settle(lambda: gymnasium.make("Lost-v0"))
    own = what_only_this_process_has(source)
    found = examine_apart("ppo", ["--env", says["id"]], "", 0, 60.0, print, own)
    assert "lost on the way" in found.found[0]["said"]


def test_what_an_environment_has_not_implemented_is_told(monkeypatch: pytest.MonkeyPatch):
    def refuses(*_: Any) -> str:
        raise NotImplementedError

    monkeypatch.setattr(environment, "remembers", refuses)
    seen = Seen()
    loaded = environment.load("ppo", _words(""))
    dict(environment._stages(loaded, seen, 0, 30.0))["remembers"]()
    assert "lacks a method" in seen.unmade["remembers"]


class Long(Point):
    """Its first reward and its end come late."""

    def step(self, action: Any) -> Any:
        obs, *_ = super().step(action)
        return obs, float(self.steps == 70), self.steps == 120, False, {}


def test_ends_are_awaited_further_than_rows_are_kept():
    env = make_group_env(resolve_env(EnvConfig(id="test_environment:Long")), 2)
    with closing(env):
        until, never = (play(env, 100, 0, 10.0, further) for further in (1_000, 0))
        assert (len(until.reward), until.ended, until.steps) == (100, True, 120)
        assert (len(never.reward), never.ended, never.steps) == (100, False, 100)
        compared = pairs.compare(env, 0, 1.0)
        assert (compared.varied, compared.returns_differ) == (0, 0)


class Scene(Point):
    """Heeds no action in its first 50 steps, as games that begin with a scene."""

    def step(self, action: Any) -> Any:
        before = self.place
        obs, *_ = super().step(action)
        if self.steps <= 50:
            self.place = before
            obs[0] = before
        return obs, 0.0, False, self.steps == 120, {}


def test_actions_that_matter_late_are_not_ignored():
    env = make_group_env(resolve_env(EnvConfig(id="test_environment:Scene")), 12)
    with closing(env):
        found = pairs.compare(env, 0, 60.0)
        hasty = pairs.compare(env, 0, 0.0)
    assert found.changed
    assert found.looked == 60 + 1 + pairs.AFTER
    assert (hasty.changed, hasty.cut) == (0, True)
    (unsure,), (sure,) = (
        evaluate("environment", Seen(pairs=replace(hasty, compared=50, cut=cut)))
        for cut in (True, False)
    )
    assert unsure.name == sure.name == "action-ignored"
    assert unsure.weight < sure.weight


def test_what_counts_as_solved_is_known_within_wrappers():
    loaded = environment.load("ppo", ["--env", "test_environment:wrapped"])
    seen = Seen()
    stages = dict(environment._stages(loaded, seen, 0, 4.0))
    stages["check"]()
    stages["play"]()
    assert (seen.threshold, seen.wrapped) == (475.0, True)


def wrapped() -> Any:
    return gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), abs)  # type: ignore[arg-type]


class Portfolio(gymnasium.Env[Any, Any]):
    """Heeds only how the numbers of an action differ."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        weights = np.exp(action) / np.exp(action).sum()
        obs = weights.round(4).astype(np.float32)
        return obs, float(weights[0]), False, self.steps >= 30, {}


def test_actions_whose_differences_matter_are_not_saturated():
    env = make_group_env(resolve_env(EnvConfig(id="test_environment:Portfolio")), 12)
    with closing(env):
        assert pairs.compare(env, 0, 1.0).reached == 1.0


def test_choices_are_read_as_networks_read_them():
    class Choices:
        spaces = Spaces(
            spaces.Dict(
                {
                    "many": spaces.Discrete(1_000),
                    "parts": spaces.MultiDiscrete([3, 2]),
                }
            ),
            spaces.Discrete(2),
        )

    reader: Any = Reader(Choices())  # type: ignore[arg-type]
    rows = {"many": np.array([7, 8, 7]), "parts": np.array([[2, 1], [0, 1], [2, 1]])}
    numbers = reader.numbers(rows)
    assert numbers.shape == (3, len(reader.names))
    assert (numbers[0] == numbers[2]).all()
    assert np.abs(numbers).max() < 10.0
    shown = [name for name in reader.names if name]
    assert shown == ["parts[0]=0", "parts[0]=1", "parts[0]=2", "parts[1]=0", "parts[1]=1"]
    assert numbers[0, -5:].tolist() == [0.0, 0.0, 1.0, 0.0, 1.0]


def test_commands_repeat_the_environment():
    words = ["--env", "test_environment:Point", "--env.kwargs", '{"fault": "keeps"}']
    found = environment.options_of(environment.load("ddpg", words), "")
    assert found.again.look.endswith("""Point --env.kwargs '{"fault": "keeps"}'""")
    assert found.remember == "--env.frame-stack 4"
    assert environment.options_of(environment.load("ppo", words), "").remember.endswith(" lstm")


class Limited(Point):
    """Terminates after 500 steps, which no observation shows."""

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, self.steps >= 500, False, {}

    def _obs(self) -> Any:
        return np.array([self.place, self.turned], np.float32)


def test_a_limit_of_many_steps_is_seen():
    """The check alone has two episodes."""
    loaded = environment.load("ppo", ["--env", "test_environment:Limited", "--gamma", "0.1"])
    seen = Seen()
    stages = dict(environment._stages(loaded, seen, 0, 30.0))
    stages["check"]()
    assert not seen.choices
    stages["play"]()
    assert [each.name for each in seen.choices] == ["gamma", "time-limit"]
    assert "48 of 48 episodes were terminated after exactly 500 steps" in str(seen.choices[-1])


class Reseeds(Point):
    """Takes its first seed at every reset."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.own = self.own if seed is None else seed
        return super().reset(seed=self.own, options=options)


@pytest.mark.parametrize(("name", "found"), [("Reseeds", True), ("Point", False)])
def test_a_reset_that_seeds_again(name: str, found: bool):
    env = make_group_env(resolve_env(EnvConfig(id=f"test_environment:{name}")), 3)
    with closing(env):
        seen = evaluate("environment", Seen(played=play(env, 400, 0, 10.0)))
    assert ("same-start" in [each.name for each in seen]) == found


class Wide(Point):
    """Observes a hundred numbers, of which one is large, one is dead and two are alike; a picture
    that is still; and a picture whose frame is still."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = np.random.default_rng(0)
        self.observation_space = spaces.Dict(
            {
                "frame": spaces.Box(0, 255, (9, 9), np.uint8),
                "numbers": spaces.Box(-np.inf, np.inf, (100,), np.float32),
                "still": spaces.Box(0, 255, (9, 9), np.uint8),
            }
        )

    def _obs(self) -> Any:
        numbers = self.noise.standard_normal(100).astype(np.float32)
        numbers[7] *= 1e6
        numbers[8], numbers[10] = 3.0, numbers[9]
        frame = np.zeros((9, 9), np.uint8)
        frame[4, 4] = numbers[0] > 0
        return {"frame": frame, "numbers": numbers, "still": np.ones((9, 9), np.uint8)}


def test_numbers_of_large_leaves_are_looked_at():
    env = make_group_env(resolve_env(EnvConfig(id="test_environment:Wide")), 3)
    with closing(env):
        seen = Seen(played=play(env, 300, 0, 10.0))
    said = {each.name: each.said for each in evaluate("environment", seen)}
    assert "observation numbers[7] is of size" in said["observation-scale"]
    assert said["observation-dead"] == "observation 'still' never changed"
    assert "numbers[9] and numbers[10]" in said["observation-duplicate"]
    assert seen.played is not None
    rest = {"numbers": seen.played.large["numbers"], "frame": seen.played.large["frame"]}
    found = evaluate("environment", Seen(played=replace(seen.played, large=rest)))
    (dead,) = (each.said for each in found if each.name == "observation-dead")
    assert "1 of 100 numbers of the observation never changed (first: numbers[8])" in dead


class Masked(Point):
    """Allows no step to the right where it is right of the middle; with the fault "keeps" an
    episode depends on the one before."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(fault)
        self.action_space = spaces.Discrete(3, start=1)
        self.observation_space = spaces.Dict(
            {"x": self.observation_space, ACTION_MASK: spaces.MultiBinary(3)}
        )

    def step(self, action: Any) -> Any:
        assert self._obs()[ACTION_MASK][int(action) - 1]
        return super().step(int(action) - 1)

    def _obs(self) -> Any:
        return {"x": super()._obs(), ACTION_MASK: np.array([1, self.place <= 0.0, 0], np.int8)}


@pytest.mark.parametrize(
    "fault", ["", *(pytest.param(x, marks=pytest.mark.slow) for x in ("keeps", "ignored"))]
)
def test_masked_actions_are_compared_too(fault: str):
    words = ["--env", "test_environment:Masked", "--env.kwargs", json.dumps({"fault": fault})]
    seen = Seen()
    stages = dict(environment._stages(environment.load("ppo", words), seen, 0, 60.0))
    for name in ("check", "play", "pairs", "remembers"):
        stages[name]()
    assert not seen.unmade
    found = {each.name for each in environment.findings(seen) if each.degree == "likely"}
    wanted = {"": set[str](), "keeps": {"remembers"}, "ignored": {"action-ignored"}}[fault]
    assert found == wanted


class Forced(Masked):
    """Allows one action in all steps."""

    def _obs(self) -> Any:
        return {**super()._obs(), ACTION_MASK: np.array([1, 0, 0], np.int8)}


def test_actions_that_nobody_could_choose_are_not_ignored():
    env = make_group_env(resolve_env(EnvConfig(id="test_environment:Forced")), 12)
    with closing(env):
        found = pairs.compare(env, 0, 0.5)
    assert (found.compared, found.unlike) == (0, "")


class WholeNumbers(Point):
    """Its own action space is a Box, which quintet reads as a MultiDiscrete."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(1, 3, (2,), np.int64)
        self.observation_space = spaces.Dict(
            {"x": self.observation_space, ACTION_MASK: spaces.MultiBinary(6)}
        )

    def step(self, action: Any) -> Any:
        return super().step(int(action[0]) > 1)

    def _obs(self) -> Any:
        return {"x": super()._obs(), ACTION_MASK: np.ones(6, np.int8)}


def test_a_mask_of_another_kind_of_actions_is_told():
    seen = Seen()
    loaded = environment.load("ppo", ["--env", "test_environment:WholeNumbers"])
    stages = dict(environment._stages(loaded, seen, 0, 60.0))
    stages["remembers"]()
    assert seen.unmade == {"remembers": "its mask is of another kind of actions"}


def test_stages_without_time_are_told():
    loaded = environment.load("ppo", _words(""))
    options = environment.options_of(loaded, "")
    *_, (found, _) = environment.examine(loaded, options, 0, 0.0, lambda _: None)
    assert found.unmade["predict"] == "no time was left"


@pytest.mark.parametrize("fault", ["", "nan"])
def test_other_actions_show_in_the_next_observation(fault: str):
    config = EnvConfig(id="test_environment:Point", kwargs={"fault": fault})
    env = make_group_env(resolve_env(config), 12)
    found = pairs.compare(env, 0, 1.0)
    assert found.changed > 0.3 * found.compared
    assert set(found.first) == {1}
    assert not found.unlike
    assert found.starts > 1


def test_a_command_trains_in_a_folder_of_its_own():
    again = Again("quintet train ppo --env A/B-v0", "runs/ppo-A_B-v0-", "quintet check-env A/B-v0")
    found = Finding("", option="--gamma 0.9", name="option-far")
    told = "quintet train ppo --env A/B-v0 --gamma 0.9 --run-dir runs/ppo-A_B-v0-option-far"
    assert again.command(found) == told
    assert again.command(replace(found, subject="gamma")) == f"{told}-gamma"
    assert again.command(replace(found, option=None)) == again.look
    assert again.command(replace(found, option="")) == ""
    assert again.command(replace(found, option=None, command="other")) == "other"
    typed = again._replace(train=f"{again.train} --run-dir here")
    assert typed.command(found) == f"{typed.train} --gamma 0.9"


def test_a_slow_fit_is_no_fault_of_the_environment():
    answer: dict[str, Any] = {"stage": "predict", "hangs": "fits.py"}
    found = apart._examined(Outcome(3, answer), most_s=10.0)
    assert (found.found, found.unmade, found.whole) == ([], {"predict": "no time was left"}, False)
    answer["stage"] = "play"
    (hangs,) = apart._examined(Outcome(3, answer), most_s=10.0).found
    assert hangs["name"] == "hangs"
