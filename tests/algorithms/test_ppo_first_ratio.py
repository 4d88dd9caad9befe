"""At the first minibatch of an iteration the ratio is 1: actor and learner see the same policy."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from ppo_helpers import SMALL, make_learner, train

from quintet.algorithms.ppo.config import PPOConfig
from quintet.envs.make import make_vector_env
from quintet.models.config import ModelConfig
from quintet.types import ACTION_MASK, Spaces


class Noise(gymnasium.Env):
    """Observations are draws from the space, rewards are noise; ends after 7 steps, in both ways.

    An action that the mask of the observation forbids raises.
    """

    def __init__(self, observation: spaces.Space, action: spaces.Space) -> None:
        self.observation_space, self.action_space = observation, action
        self.step_ = self.episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.observation_space.seed(seed)
        self.step_ = 0
        self.episode += 1
        return self.draw(), {}

    def step(self, action: Any):
        if isinstance(self.observation_space, spaces.Dict):
            assert self.seen[ACTION_MASK][action] == 1
        self.step_ += 1
        over, odd = self.step_ >= 7, self.episode % 2 == 1
        return self.draw(), float(self.np_random.normal()), over and odd, over and not odd, {}

    def draw(self) -> Any:
        self.seen = self.observation_space.sample()
        if isinstance(self.seen, dict):
            self.seen[ACTION_MASK][self.np_random.integers(4)] = 1
        return self.seen


VECTOR = spaces.Box(-3.0, 3.0, (3,), np.float32)
MASKED = spaces.Dict({"x": VECTOR, "k": spaces.Discrete(3), ACTION_MASK: spaces.MultiBinary(4)})
CASES: dict[str, tuple[Any, dict[str, Any], ModelConfig]] = {
    "toy": ("quintet.envs.toy:Contextual", {}, SMALL),
    "toy_box": ("quintet.envs.toy:Target", {"size": 2}, SMALL),
    "cart_pole": ("CartPole-v1", {}, SMALL),
    "clip": ("Pendulum-v1", {}, SMALL),
    "squash": ("Pendulum-v1", {}, ModelConfig(policy_hidden=(8,), action_bounds="squash")),
    "mean_tanh": (
        "HalfCheetah-v5",
        {},
        ModelConfig(policy_hidden=(8,), action_bounds="mean_tanh", action_std="softplus"),
    ),
    "half_cheetah": (
        "HalfCheetah-v5",
        {},
        ModelConfig(policy_hidden=(8,), action_std="state_dependent", shared_torso=True),
    ),
    "multi_discrete": (
        Noise,
        {"observation": VECTOR, "action": spaces.MultiDiscrete([2, 3])},
        SMALL,
    ),
    "multi_binary": (Noise, {"observation": VECTOR, "action": spaces.MultiBinary(3)}, SMALL),
    "mask": (Noise, {"observation": MASKED, "action": spaces.Discrete(4)}, SMALL),
    "picture": (
        Noise,
        {
            "observation": spaces.Box(0, 255, (36, 36, 1), np.uint8),
            "action": spaces.Discrete(3),
        },
        ModelConfig(policy_hidden=(16,), shared_torso=True),
    ),
}
CONFIG = PPOConfig(
    unroll_steps=16, minibatch_steps=32, num_epochs=2, learning_rate=3e-3, kl_beta_init=1.0
)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("env", "kwargs", "model"), CASES.values(), ids=CASES)
def test_first_ratio_is_1(
    env: Any, kwargs: dict[str, Any], model: ModelConfig, groups: int, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # MuJoCo leaves its log in the working folder
    made = (lambda: Noise(**kwargs)) if env is Noise else env
    learner, metrics, batch = train(
        CONFIG, made, 3, {} if env is Noise else kwargs, model, groups=groups
    )
    for iteration in metrics:
        assert iteration["policy/ratio_first_max_error"] <= 1e-5
        # Later ones must differ, or nothing was learned.
        assert iteration["policy/ratio_max_error"] > 1e-4
    # The normalisers moved between the iterations, or the test would show nothing.
    assert learner.reward_normalizer.moments.count > 0
    for name in learner.normalizer.names:
        moments = learner.normalizer.leaf_moments(name)
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
            params, value, _ = network.network(before.normalizer(obs))
        errors = [
            (value - batch.record["value"].flatten()).abs().max(),
            (params - batch.record["params_mu"].flatten(0, 1)).abs().max(),
        ]
        assert [bool(error <= 1e-5) for error in errors] == [close, close], errors


def learner_spaces(env: str) -> Spaces:
    made = make_vector_env(env, 1, backend="gymnasium")
    made.close()
    return made.spaces
