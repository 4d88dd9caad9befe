"""The same command after the environment was edited: resume and warm start compare spaces."""

import re
import shutil
from collections import OrderedDict

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from run_helpers import SMALL

import quintet
from quintet.errors import CheckpointError, ConfigError


def other(observation: spaces.Space, action: spaces.Space) -> type[gymnasium.Env]:
    """An environment of these spaces."""

    class Other(gymnasium.Env):
        observation_space, action_space = observation, action

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.observation_space.seed(seed)
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), 1.0, self.np_random.random() < 0.2, False, {}

    return Other


HINT = spaces.Box(0, 1, (2,), np.float32)
TWO = spaces.Dict(OrderedDict(hint=HINT, other=HINT))
OTHERS = {
    "renamed": (spaces.Dict(OrderedDict(new=HINT, hint=HINT)), spaces.Discrete(3), "observation"),
    "reordered": (spaces.Dict(OrderedDict(other=HINT, hint=HINT)), spaces.Discrete(3), "obs"),
    "fewer": (spaces.Dict(hint=HINT), spaces.Discrete(3), "observation"),
    "another kind": (spaces.Box(0, 1, (4,), np.float32), spaces.Discrete(3), "observation"),
    "another action": (TWO, spaces.MultiDiscrete([3]), "action"),
    "fewer actions": (TWO, spaces.Discrete(2), "action"),
}


@pytest.fixture(scope="module")
def run_of_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "run"
    quintet.train("ppo", other(TWO, spaces.Discrete(3)), 128, seed=1, run_dir=folder, config=SMALL)
    return folder


@pytest.mark.parametrize("case", OTHERS)
def test_a_resume_and_a_warm_start_compare_spaces(run_of_two, tmp_path, case):
    observation, action, what = OTHERS[case]
    env = other(observation, action)
    named = (f"{what}.* {re.escape(str(TWO if what.startswith('obs') else 'Discrete(3)'))}"
             f".*{re.escape(str(observation if what.startswith('obs') else action))}")  # fmt: skip
    with pytest.raises(CheckpointError, match=named):
        quintet.train("ppo", env, 256, seed=1, run_dir=run_of_two, config=SMALL)
    given = SMALL | {"init_from": run_of_two}
    with pytest.raises(ConfigError, match=what):
        quintet.train("ppo", env, 256, seed=1, run_dir=tmp_path / "new", config=given)


def test_other_bounds_of_observations_are_the_same_spaces(run_of_two, tmp_path):
    shutil.copytree(run_of_two, tmp_path / "run")
    wider = spaces.Box(-9, 9, (2,), np.float32)
    env = other(spaces.Dict(OrderedDict(hint=wider, other=wider)), spaces.Discrete(3))
    result = quintet.train("ppo", env, 192, seed=1, run_dir=tmp_path / "run", config=SMALL)
    assert result.metrics["env_steps"] == 192
