"""Environments of gym's old interface are adapted, and the run says so."""

import math
import sys
from collections import namedtuple
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from envs_helpers import record
from gymnasium import spaces

import quintet
from quintet.envs.old_gym import OldGym, adapt, as_gymnasium
from quintet.envs.other_apis import is_old
from quintet.envs.public import make_vector_env

BoxSpace = namedtuple("BoxSpace", "low high shape dtype")
DiscreteSpace = namedtuple("DiscreteSpace", "n")
LIMIT = 4


class Plain:
    """Shows a number that its generator draws; a limit of four steps, and an end at action 1."""

    observation_space = BoxSpace(0, 1000, (np.int64(1),), np.int64)
    action_space = DiscreteSpace(2)
    metadata = None

    def _look(self):
        return self.rng.integers(1000, size=1)

    def reset(self):
        self.steps = 0
        return self._look()

    def step(self, action):
        self.steps += 1
        limited = self.steps == LIMIT
        info = {"TimeLimit.truncated": not action} if limited else {}
        return self._look(), 1.0, bool(action) or limited, info


class BySeed(Plain):
    def seed(self, seed=None):
        self.rng = np.random.default_rng(seed)


class ByMaker(Plain):
    def __init__(self, seed=None):
        self.rng = np.random.default_rng(seed)


class HalfConverted(BySeed, gymnasium.Env):
    """Derived from Gymnasium's class, with reset and seeds of gym."""


class SeededReset(Plain, gymnasium.Env):
    observation_space = spaces.Box(0, 1000, (1,), np.int64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        return super().reset()


NO = np.zeros((12, 2), np.int64)


@pytest.mark.parametrize("make_env", [BySeed, ByMaker, HalfConverted])
def test_an_old_environment_is_stepped_with_its_seeds_and_limit(make_env):
    env = make_vector_env(make_env, 2)
    (note,) = env.description.notes
    assert "spaces, resets and steps are adapted" in note
    first = record(env, [3, 4], NO)
    drawn = np.random.default_rng(3).integers(1000, size=1)
    assert first.obs["obs"][0, 0] == drawn
    assert record(env, [3, 4], NO).as_bytes() == first.as_bytes()
    assert record(env, [5, 4], NO).as_bytes() != first.as_bytes()
    ends = first.truncated | first.terminated
    assert ends[LIMIT - 1].all()
    assert first.truncated[LIMIT - 1].all()
    assert not first.terminated.any()
    ended = record(env, [3, 4], np.ones((2, 2), np.int64))
    assert ended.terminated[0].all()
    assert not ended.truncated.any()


def test_what_only_returns_old_forms_is_read_and_told():
    env = make_vector_env(SeededReset, 2)
    with pytest.warns(RuntimeWarning) as told:
        rows = record(env, [3, 4], NO)
    assert rows.truncated[LIMIT - 1].all()
    # Others may come from what earlier tests have left, when it is collected meanwhile.
    texts = [str(each.message) for each in told if "SeededReset" in str(each.message)]
    said = {text.partition(": ")[2] for text in texts}
    assert len(said) == 2
    assert any(text.startswith("step returns four values") for text in said)


def test_wrappers_of_gymnasium_stay_around_the_adapted_environment():
    env = adapt(gymnasium.wrappers.TimeLimit(HalfConverted(), 2))
    assert isinstance(env, gymnasium.wrappers.TimeLimit)
    env.reset(seed=1)
    env.step(0)
    assert env.step(0)[2:4] == (False, True)
    assert adapt(env) is env
    assert isinstance(env.env, OldGym)
    assert isinstance(env.unwrapped, HalfConverted)


def test_a_gymnasium_environment_stays_as_it_is():
    env = gymnasium.make("CartPole-v1")
    assert not is_old(env)
    assert not is_old(gymnasium.wrappers.NormalizeReward(env))


def gyms(name, **attributes):
    return type(name, (), {"__module__": "gym.spaces", **attributes})()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (gyms("Discrete", n=3, shape=(), start=1), spaces.Discrete(3, start=1)),
        (gyms("MultiBinary", n=4, shape=(4,)), spaces.MultiBinary([4])),
        (gyms("MultiDiscrete", nvec=np.array([2, 3]), shape=(2,)), spaces.MultiDiscrete([2, 3])),
        (
            gyms("Dict", spaces={"a": gyms("Tuple", spaces=(DiscreteSpace(2),))}),
            spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2)])}),
        ),
        (
            gyms("Box", low=-np.ones(2), high=np.full(2, np.inf), shape=(2,), dtype=np.float32),
            spaces.Box(-1.0, math.inf, (2,), np.float32),
        ),
    ],
)
def test_spaces_are_read_by_their_attributes(given, expected):
    assert as_gymnasium(given) == expected


def test_what_is_no_space_stays_for_the_message():
    odd = gyms("Text", max_length=3)
    assert as_gymnasium(odd) is odd


def test_an_id_of_gym_is_made_without_its_wrappers(monkeypatch):
    spec = SimpleNamespace(entry_point=ByMaker, max_episode_steps=3, kwargs={})
    module = SimpleNamespace(spec=lambda name: {"Old-v0": spec}[name])
    monkeypatch.setitem(sys.modules, "gym", module)
    env = make_vector_env(f"{__name__}:Old-v0", 2)
    rows = record(env, [3, 4], NO)
    assert env.description.max_steps == 3
    assert rows.truncated[2].all()
    assert rows.obs["obs"][0, 1] == np.random.default_rng(4).integers(1000, size=1)


def test_a_run_says_what_is_adapted_and_resumes_exactly(tmp_path):
    config = {
        "env.num_streams": 2,
        "unroll_steps": 16,
        "report.progress": False,
        "eval.episodes": 1,
        "runtime.compile": "off",
    }
    quintet.train("ppo", ByMaker, 128, run_dir=tmp_path / "a", config=config)
    said = (tmp_path / "a" / "log.txt").read_text()
    assert said.count("spaces, resets and steps are adapted") == 1
    assert "not exact" not in said


def test_gym_itself_is_not_imported():
    assert "gym" not in sys.modules


def test_statistics_of_a_user_s_own_normalising_wrapper_are_told():
    class Mine(gymnasium.wrappers.NormalizeReward):
        """As people derive it to keep its statistics."""

    env = make_vector_env(lambda: Mine(SeededReset()), 1)
    assert env.description.statistics == ("NormalizeReward",)
