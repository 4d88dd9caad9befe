"""How much the files of a replay take, by presets."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces as gym

from quintet.algorithms import registry
from quintet.algorithms.parts.setup import PLAIN
from quintet.options import resolve as resolution
from quintet.options.layers import Layer
from quintet.options.saved import load_config
from quintet.run.folder import RunFolder
from quintet.run.learners import make_learner
from quintet.run.policy_folder import PolicyFolder
from quintet.run.policy_replay import RunReplay
from quintet.runtime.policies import ONE_POLICY
from quintet.runtime.slots import RowSpecs
from quintet.types import Spaces

PONG = Spaces(gym.Box(0, 255, (4, 84, 84), np.uint8), gym.Discrete(6))


@pytest.mark.parametrize("millions", [3, 5, 50])
def test_pong_replays_in_less_than_4_gib(millions: int, tmp_path: Path) -> None:
    """By ACER's preset, room for what is between two checkpoints included, whatever the budget."""
    given = {"env.id": "Pong-v5", "total_env_steps": millions * 10**6, "run_dir": str(tmp_path)}
    loaded = load_config("acer", [], Layer("call", given))
    config = resolution.resolve(loaded, PONG).config
    plan = make_learner(config, PONG).plan
    iterations = -(-config.total_env_steps // (plan.unroll_steps * plan.columns_per_batch))
    actor = registry.find("acer").make_actor(config.learner, config.model, PONG, PLAIN)
    replay = RunReplay(
        plan, config, ONE_POLICY, config.checkpoint.interval(iterations),
        RowSpecs.of(PONG, actor), PolicyFolder(RunFolder(tmp_path, signed=False)),
    ).replay  # fmt: skip
    assert replay.capacity == 16 * 25_000
    assert 3.4 < replay.nbytes / 2**30 < 3.6
