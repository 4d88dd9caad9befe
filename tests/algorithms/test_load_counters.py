"""A learner takes the model and the optimizer of another and remains itself: its counters and its
generators stay."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import impala_helpers
import ppo_helpers
import pytest
import torch
from ppo_helpers import CONTINUOUS

from quintet.algorithms.impala.config import ImpalaConfig
from quintet.algorithms.ppo.config import PPOConfig

COUNTS = ("updates", "version")
OWN = ("shuffle",)


def ppo(updates: int) -> Any:
    config = PPOConfig(minibatch_steps=16, num_epochs=2, reward_normalizer="step_std")
    learner = ppo_helpers.make_learner(config, CONTINUOUS)
    for seed in range(updates):
        learner.update(ppo_helpers.make_rollout(CONTINUOUS, seed=seed), 500 * seed)
    return learner


def impala(updates: int) -> Any:
    learner = impala_helpers.make_learner(ImpalaConfig(optimizer="adam"), CONTINUOUS)
    for seed in range(updates):
        learner.update(impala_helpers.make_batch(learner, CONTINUOUS, seed=seed), 500 * seed)
    return learner


@pytest.mark.parametrize("make", [ppo, impala])
def test_model_and_optimizer_come_without_the_counters(make: Callable[[int], Any]):
    donor, own = make(3), make(1)
    given, before = deepcopy(donor.save()), deepcopy(own.save())
    counts = [before.scalars.get(name) for name in COUNTS]
    assert all(count != given.scalars.get(name) for name, count in zip(COUNTS, counts, strict=True))
    own.load(given, counters=False)
    after = own.save()
    assert [after.scalars[name] for name in COUNTS] == counts
    assert [own.updates, own.version] == counts
    assert own.publication().version == before.scalars["version"]
    for name, x in after.tensors.items():
        source = before if name in OWN else given
        assert torch.equal(x, source.tensors[name]), name
    assert any(name.startswith("optimizer/") for name in after.tensors)
    own.load(given)
    assert [own.updates, own.version] == [given.scalars[name] for name in COUNTS]
