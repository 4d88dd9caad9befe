"""ViZDoom's own package, by the presets for it."""

import gymnasium
import numpy as np
import pytest

from quintet.envs.make import make_group_env
from quintet.envs.vector import allocate_obs, allocate_row
from quintet.options.layers import Layer
from quintet.options.saved import load_config

MODULE = "vizdoom.gymnasium_wrapper"


@pytest.mark.parametrize("name", ["VizdoomBasic", "VizdoomHealthGathering", "VizdoomDefendCenter"])
def test_presets_are_of_environments_that_exist(name: str) -> None:
    pytest.importorskip(MODULE)
    loaded = load_config("appo", [], Layer("call", {"env.id": f"{MODULE}:{name}-v1"}))
    assert loaded.sources["env.kwargs"] == f"preset {MODULE}:{name}-v1"
    env = make_group_env(loaded.env, 1)
    try:
        assert env.spaces.observation["screen"].shape == (120, 160, 3)
        assert isinstance(env.spaces.action, gymnasium.spaces.Discrete)
        env.restart([1], allocate_obs(env.spaces.observation, (1,)))
        row = allocate_row(env.spaces.observation, 1)
        env.send(np.zeros(1, np.int64))
        env.recv(row)
        assert row.obs["screen"].any()
    finally:
        env.close()
