"""At the first minibatch of an iteration the ratio is 1: actor and learner see the same policy.

The first batch is apart where observations are normalised: it is acted before there are statistics.
"""

from typing import Any

import numpy as np
import pytest
import torch
from conformance_helpers import Noise, Task
from gymnasium import spaces
from ppo_helpers import SMALL, make_learner, train

from quintet.algorithms.ppo.config import PPOConfig
from quintet.envs.public import make_vector_env
from quintet.models.config import ModelConfig
from quintet.types import Spaces

CASES: dict[str, tuple[Any, ModelConfig]] = {
    "squash": ("Pendulum-v1", ModelConfig(policy_hidden=(8,), action_bounds="squash")),
    "mean_tanh": (
        "HalfCheetah-v5",
        ModelConfig(policy_hidden=(8,), action_bounds="mean_tanh", action_std="softplus"),
    ),
    "half_cheetah": (
        "HalfCheetah-v5",
        ModelConfig(policy_hidden=(8,), action_std="state_dependent", shared_torso=True),
    ),
    "picture": (
        lambda: Noise(Task(spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.Discrete(3))),
        ModelConfig(policy_hidden=(16,), shared_torso=True),
    ),
}
CONFIG = PPOConfig(
    unroll_steps=16, minibatch_steps=32, num_epochs=2, learning_rate=3e-3, kl_coef_init=1.0
)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("env", "model"), CASES.values(), ids=CASES)
def test_first_ratio_is_1(env: Any, model: ModelConfig, groups: int, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves its log in the working folder
    learner, metrics, batch = train(CONFIG, env, 3, model=model, groups=groups)
    same = metrics[1:] if learner.normalizers.observations.names else metrics
    assert all(x["policy/ratio_first_max_error"] > 1e-5 for x in metrics if x not in same)
    for iteration in same:
        assert iteration["policy/ratio_first_max_error"] <= 1e-5
        # Later ones must differ, or nothing was learned.
        assert iteration["policy/ratio_max_error"] > 1e-4
    # The normalisers moved between the iterations, or the test would show nothing.
    assert learner.normalizers.rewards.moments.count > 0
    for name in learner.normalizers.observations.names:
        moments = learner.normalizers.observations.leaf_moments(name)
        assert moments.count > batch.valid.sum()
        assert not torch.allclose(moments.variance, torch.ones(()).double())
    assert batch.version.unique().tolist() == [2]


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_records_are_what_the_learner_computes(env: str):
    """Value and distribution too, and only until the learner has moved."""
    learner, _, batch = train(CONFIG, env, 1)
    before = make_learner(CONFIG, learner_spaces(env), SMALL)
    for network, close in ((before, True), (learner, False)):
        obs = {name: x[:-1].flatten(0, 1) for name, x in batch.obs.items()}
        with torch.no_grad():
            params, value, _ = network.network(before.normalizers.observations(obs))
        errors = [
            (value - batch.record["value"].flatten()).abs().max(),
            (params - batch.record["params_mu"].flatten(0, 1)).abs().max(),
        ]
        assert [bool(error <= 1e-5) for error in errors] == [close, close], errors


def learner_spaces(env: str) -> Spaces:
    made = make_vector_env(env, 1, backend="gymnasium")
    made.close()
    return made.spaces
