"""Every learner's policy in every kind of space: asked by hand, it plays as an evaluation does."""

from typing import Any

import numpy as np
import pytest
import torch
from conformance_helpers import Case, Noise
from gymnasium import spaces
from test_conformance_spaces import IN_TURN

import quintet
from quintet.algorithms import registry
from quintet.envs.config import EnvConfig
from quintet.policies.policy import describe
from quintet.types import Publication

pytestmark = pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")


class Paid(Noise):
    """Pays the sum of the numbers in the action, each with a weight of its own."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        flat = spaces.flatten(self.action_space, action)
        return obs, float(np.dot(flat, 1.0 + np.arange(flat.size))), terminated, truncated, info


def policy_of(case: Case) -> quintet.Policy:
    """Of new weights that are stirred, as those of some heads are all 0 at first."""
    generator = torch.Generator().manual_seed(1)
    published = case.learner().publication().tensors
    tensors = {
        name: x + 0.3 * torch.randn(x.shape, generator=generator)
        if name.startswith("network/") and x.is_floating_point()
        else x.clone()
        for name, x in published.items()
    }
    about = describe(case.algo, case.config, case.model, EnvConfig(id="noise"), case.spaces)
    return quintet.Policy(about, Publication(1, tensors))


def by_hand(policy: quintet.Policy, env: Noise, seed: int, deterministic: bool = True) -> float:
    """The return of one episode."""
    total, over, state = 0.0, False, None
    obs, _ = env.reset(seed=seed)
    while not over:
        action, state = policy.act(obs, state, deterministic)
        policy.predict(obs, state, deterministic=True)  # as many arguments, the same forms
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(np.float32(reward))
        over = terminated or truncated
    return total


@pytest.mark.parametrize("kind", IN_TURN)
@pytest.mark.parametrize("algo", registry.LEARNERS.names())
def test_a_loop_over_act_plays_as_evaluate(algo: str, kind: str) -> None:
    task, core, network = IN_TURN[kind]
    algorithm = registry.find(algo)
    if not algorithm.acts_in(task.action):
        pytest.skip(f"{algo} has no such actions")
    if "model.core" in algorithm.needs:
        core, network = "none", {}
    case = Case(algo, task, core=core, network=network)
    policy = policy_of(case)
    for seed in range(3):
        scores = quintet.evaluate(policy, lambda: Paid(task), episodes=1, seed=seed)
        assert scores.returns.tolist() == [by_hand(policy, Paid(task), seed)]
    by_hand(policy, Paid(task), 3, deterministic=False)  # no action outside of the space
