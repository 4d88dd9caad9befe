"""Environments of other interfaces: the message names what is missing and the way out."""

import re

import gymnasium
import numpy as np
import pytest
from envs_helpers import record
from gymnasium import spaces

from quintet.envs.make import make_vector_env
from quintet.errors import ConfigError, EnvironmentFault

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
ZEROS = np.zeros(2, np.float32)


class Base:
    observation_space, action_space = BOX, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return ZEROS, {}

    def step(self, action):
        return ZEROS, 0.0, False, False, {}


class OldReset(Base, gymnasium.Env):
    def reset(self, *, seed=None, options=None):
        return ZEROS  # of length 2, so that it could be unpacked


class OldStep(Base, gymnasium.Env):
    def step(self, action):
        return ZEROS, 0.0, False, {}


class NoSeed(Base, gymnasium.Env):
    def reset(self):
        return ZEROS


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
        (OldReset, "stream 0, reset, seed 5: the environment returned a ndarray from reset"),
        (OldStep, r"step 1 of its episode, .* returned 4 values from step, as in the old API .*"),
        (lambda: gymnasium.wrappers.TimeLimit(OldStep(), 9), "returned 4 values from step"),
        (NoSeed, r"a reset without a seed, .* def reset\(self, \*, seed=None, options=None\)"),
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
            of_package("gym.core"),
            r"derive it from gymnasium.Env.*shimmy.GymV26CompatibilityV0\(env=...\) of it$",
        ),
        (
            of_package("gym.core", reset=lambda self: ZEROS),
            r"pip install shimmy gym, and return shimmy.GymV21CompatibilityV0\(env=...\) of it; "
            r"this wrapper calls the environment's seed\(seed\)",
        ),
        (of_package("mine"), "Theirs.*; derive it"),
        (
            of_package("pettingzoo.utils.env"),
            "several agents need env.backend pettingzoo and a maker",
        ),
        (
            of_package("mine", possible_agents=["a", "b"]),
            "several agents need env.backend pettingzoo",
        ),
        (of_package("stable_baselines3.common.vec_env"), "give what makes its single environ"),
    ],
)
def test_an_environment_of_another_library_is_told_with_the_way_out(env, says):
    with pytest.raises(ConfigError, match=says):
        make_vector_env(env)
    with pytest.raises(ConfigError, match=says):
        make_vector_env(lambda: env)


def test_a_registered_environment_that_gymnasium_refuses_is_told_with_the_way_out():
    gymnasium.register("NoGymnasium-v0", entry_point=Base)
    try:
        with pytest.raises(ConfigError, match=re.escape("derive it from gymnasium.Env, with")):
            make_vector_env("NoGymnasium-v0")
    finally:
        del gymnasium.registry["NoGymnasium-v0"]
