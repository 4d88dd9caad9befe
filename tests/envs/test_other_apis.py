"""Environments of other interfaces: the message names what is missing and the way out."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from envs_helpers import record
from gymnasium import spaces

from quintet.envs.public import make_vector_env
from quintet.envs.vector import allocate_obs, allocate_row
from quintet.errors import ConfigError, EnvironmentFault

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
ZEROS = np.zeros(2, np.float32)


class Base:
    observation_space, action_space = BOX, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return ZEROS, {}

    def step(self, action):
        return ZEROS, 0.0, False, False, {}


class OddReset(Base, gymnasium.Env):
    def reset(self, *, seed=None, options=None):
        return ZEROS, 0.0


class OldStep(Base, gymnasium.Env):
    def step(self, action):
        return ZEROS, 0.0, False, {}


class OwnTypeError(Base, gymnasium.Env):
    def reset(self, *, seed=None, options=None):
        raise TypeError("the map takes no argument 'seed'")


class Nothing(Base, gymnasium.Env):
    def step(self, action):
        return None


class WithLists(Base, gymnasium.Env):
    def reset(self, *, seed=None, options=None):
        return [ZEROS, None]

    def step(self, action):
        return [ZEROS, 0.0, False, False, {}]


def of_package(name, **members):
    """An object whose class comes from another library."""
    base = type("Env", (), {"__module__": name})
    return type("Theirs", (base,), {**Base.__dict__, **members})()


def play(make_env):
    record(make_vector_env(make_env, 1), [5], np.zeros((2, 1), np.int64))


@pytest.mark.parametrize(
    ("make_env", "says"),
    [
        (OddReset, "stream 0, reset, seed 5: the environment returned 2 values from reset"),
        (lambda: gymnasium.wrappers.TimeLimit(OldStep(), 9), "returned 4 values from step"),
        (OwnTypeError, "raised TypeError: the map takes no argument 'seed'"),
        (Nothing, r"returned a NoneType from step; it must be step\(action\), which returns"),
    ],
)
def test_the_old_api_is_told_by_what_it_returned(make_env, says):
    with pytest.raises(EnvironmentFault, match=says):
        play(make_env)


def test_lists_and_an_info_that_is_none_are_taken_as_meant():
    play(WithLists)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (
            of_package("pettingzoo.utils.env"),
            "several agents: give the function that makes it with --env.backend pettingzoo",
        ),
        (
            of_package("mine", possible_agents=["a", "b"]),
            "PettingZoo's own makers and those named parallel_env don't need that",
        ),
        (of_package("stable_baselines3.common.vec_env"), "a function that makes a single environ"),
    ],
)
def test_an_environment_of_another_library_is_told_with_the_way_out(env, says):
    with pytest.raises(ConfigError, match=says):
        make_vector_env(env)
    with pytest.raises(ConfigError, match=says):
        make_vector_env(lambda: env)


def test_an_environment_that_is_no_maker_is_told_with_the_way_out():
    with pytest.raises(ConfigError, match=r"Theirs.*; give its class, or a function that makes"):
        make_vector_env(of_package("mine"))


def test_a_registered_environment_that_gymnasium_refuses_is_told_with_the_way_out():
    gymnasium.register("NoGymnasium-v0", entry_point=Base)
    try:
        with pytest.raises(ConfigError, match="give its class, or a function"):
            make_vector_env("NoGymnasium-v0")
    finally:
        del gymnasium.registry["NoGymnasium-v0"]


class Gives(gymnasium.Env):
    """Its step returns what it was given."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, reward=1.0, terminated=True, truncated=False, info=None, obs=None):
        self.given = reward, terminated, truncated, info
        self.obs = np.zeros(2, np.float32) if obs is None else obs

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return self.obs, *self.given


class Scalar:
    """As a tensor that NumPy can't take."""

    def __array__(self, *args, **kwargs):
        raise RuntimeError("requires grad")

    def item(self):
        return 3.0


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        *((given, 3.0) for given in (3, 3.0, np.float32(3), np.int8(3), np.array(3.0))),
        *((given, 3.0) for given in (np.array([3.0]), np.array([[3]]), [3.0], (3,), Scalar())),
        *((given, 3.0) for given in (torch.tensor(3.0), torch.tensor([3.0], requires_grad=True))),
        (True, 1.0),
        (np.bool_(True), 1.0),
    ],
)
def test_a_reward_of_one_number_is_taken(reward, number):
    env = make_vector_env(lambda: Gives(reward), 1)
    env.restart([0], allocate_obs(env.spaces.observation, (1,)))
    row = allocate_row(env.spaces.observation, 1)
    env.send(np.zeros(1, np.int64))
    env.recv(row)
    assert row.reward == number


class Unsayable:
    def __repr__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"reward": None}, r"must return a reward that is one number; gave None"),
        ({"reward": np.ones(2)}, r"shape \(2,\); weigh several objectives into one number"),
        ({"reward": [1.0, 2.0]}, r"gave \[1.0, 2.0\]; weigh several"),
        ({"reward": "1.5"}, r"gave '1.5'"),
        ({"reward": {}}, r"one number; gave \{\}"),
        ({"reward": []}, r"one number; gave \[\]"),
        ({"reward": 1j}, r"one number; gave 1j"),
        ({"reward": 10**400}, r"must return a reward that a float can hold; int too large"),
        ({"reward": np.array(10**5000)}, r"one number; gave a ndarray"),
        ({"reward": Unsayable()}, r"one number; gave a Unsayable"),
        ({"terminated": None}, r"must return terminated as True or False; gave None"),
        ({"terminated": "no"}, r"terminated as True or False; gave 'no'"),
        ({"truncated": np.array([True, False])}, r"truncated as True or False; gave a ndarray"),
        ({"truncated": 2}, r"truncated as True or False; gave 2"),
        ({"truncated": math.nan}, r"truncated as True or False; gave nan"),
        ({"obs": "text"}, r"must give observation 'obs' as declared"),
        ({"obs": {"a": 1}}, r"must give observation 'obs' as declared"),
        ({"obs": [0.0]}, r"must give observation 'obs' as declared.*gave shape \(1,\)"),
        ({"obs": (np.zeros(2), {})}, r"gave no observation 'obs'"),
        ({"obs": torch.zeros(2, requires_grad=True)}, r"gave no observation 'obs'"),
    ],
)
def test_a_part_of_a_step_that_is_wrong_is_named_with_what_was_given(given, says):
    with pytest.raises(EnvironmentFault, match=says) as raised:
        play(lambda: Gives(**given))
    assert "raised" not in str(raised.value)


@pytest.mark.parametrize("flag", [0, 1, True, np.bool_(True), np.array([1]), np.array(True), 1.0])
def test_a_flag_of_one_truth_value_is_taken(flag):
    env = make_vector_env(lambda: Gives(terminated=flag), 1)
    env.restart([0], allocate_obs(env.spaces.observation, (1,)))
    row = allocate_row(env.spaces.observation, 1)
    env.send(np.zeros(1, np.int64))
    env.recv(row)
    assert row.terminated == bool(flag)


@pytest.mark.parametrize("info", [None, 7, [("won", True)]])
def test_an_info_that_is_no_dict_has_no_success(info):
    says = "has no 'won'|info as a dict|'won'"
    env = make_vector_env(lambda: Gives(info=info), 1, success="info:won")
    env.restart([0], allocate_obs(env.spaces.observation, (1,)))
    env.send(np.zeros(1, np.int64))
    with pytest.raises((ConfigError, EnvironmentFault), match=says):
        env.recv(allocate_row(env.spaces.observation, 1))


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            None,
            r"must have NAME, a space of gymnasium.*set self.NAME in __init__",
        ),
        ("missing", r"it has none \(.*no attribute.*set self.NAME in __init__"),
        (
            "gym",
            r"must be a space of gymnasium.spaces, got gym.spaces.box.Box .*the package gym",
        ),
        (3, r"NAME must be a space of gymnasium.spaces, got builtins.int 3; take it from"),
    ],
)
def test_spaces_that_are_missing_or_another_library_s_are_told(name, given, says):
    class Space:
        def __repr__(self):
            return "Box(0, 1)"

    Space.__module__, Space.__qualname__ = "gym.spaces.box", "Box"

    def missing(self):
        raise AttributeError(f"'Own' object has no attribute {name!r}")

    value = {"missing": property(missing), "gym": Space()}.get(given, given)
    own = type("Own", (Gives,), {name: value})
    with pytest.raises(ConfigError, match=says.replace("NAME", name)):
        make_vector_env(own, 1)
    wrapped = type("Wrapped", (gymnasium.Wrapper,), {})
    with pytest.raises(ConfigError, match=says.replace("NAME", name)):
        make_vector_env(lambda: wrapped(own()), 1)
