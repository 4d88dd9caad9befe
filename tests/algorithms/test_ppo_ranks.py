"""Several learners of PPO make together the steps that one makes of whole minibatches."""

from typing import Any

import pytest
import torch
from ppo_helpers import CONTINUOUS, DISCRETE, HYBRID, SMALL, learn, make_rollout, with_states
from ppo_helpers import make_learner as alone
from rank_threads_helpers import RankThreads, states

from quintet.algorithms.parts.setup import Compute, Setup
from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, resolve_model
from quintet.protocols import Ranks
from quintet.types import Spaces

LSTM = ModelConfig(policy_hidden=(8,), core="lstm", core_size=6)
EVERY_TERM = {
    "value_clip": 0.2,
    "entropy_coef": 0.01,
    "policy_l2_coef": 0.01,
    "kl_coef_init": 0.5,
    "normalize_advantage": "minibatch",
}


def make(config: PPOConfig, spaces: Spaces, model: ModelConfig, ranks: Ranks) -> PPOLearner:
    setup = Setup(4, 10_000, (1, 2), torch.device("cpu"), Compute(), ranks)
    return PPOLearner(config, resolve_model(model, spaces), spaces, setup)


@pytest.mark.parametrize(
    ("options", "spaces", "model"),
    [
        ({}, DISCRETE, SMALL),
        (EVERY_TERM, HYBRID, SMALL),
        ({"target_kl": 0.01, "reduction": "mean_over_all"}, CONTINUOUS, SMALL),
        ({"bptt_steps": 2, "lr_schedule": "kl_adaptive"}, CONTINUOUS, LSTM),
    ],
    ids=["plain", "every term", "early stop", "lstm"],
)
def test_four_learners_give_the_parameters_of_one(
    options: dict[str, Any], spaces: Spaces, model: ModelConfig
) -> None:
    """As two do for every option in `test_every_learner.py`."""
    config = PPOConfig(minibatch_steps=16, num_epochs=3, unroll_steps=16, **options)
    one = alone(config, spaces, model)
    start = one.trained.theta.clone()
    batches = [with_states(one, make_rollout(spaces, seed=seed)) for seed in range(2)]
    wanted = [learn(one, batch, 1_000 * i) for i, batch in enumerate(batches)]
    assert one.updates >= 8
    assert (one.trained.theta - start).abs().max() > 1e-3
    (whole,) = states([one])
    threads = RankThreads(4, lambda ranks: make(config, spaces, model, ranks))
    for i, (batch, expected) in enumerate(zip(batches, wanted, strict=True)):
        found = threads.update(batch, 1_000 * i)
        assert found.keys() == expected.keys()
        # Gradients add up in another order, and dozens of steps of Adam follow.
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), i
    first, *others = states(threads.learners)
    for name, x in first.items():
        assert all(torch.equal(x, other[name]) for other in others), name
        torch.testing.assert_close(x, whole[name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_mean_that_is_squared_takes_one_learner() -> None:
    with pytest.raises(
        ConfigError, match=r"kl_cutoff_coef=1 must have runtime.num_learners=1, got"
    ):
        RankThreads(2, lambda ranks: make(PPOConfig(kl_cutoff_coef=1.0), DISCRETE, SMALL, ranks))
