"""Saving and going on with the same bytes; warm starts; publications."""

import json
from copy import deepcopy
from typing import Any

import pytest
import torch
from impala_helpers import everything, make_batch, make_learner
from ppo_helpers import CONTINUOUS, SMALL

from quintet.algorithms.impala.config import ImpalaConfig
from quintet.algorithms.impala.learner import ImpalaLearner, make_actor
from quintet.models.config import resolve_model
from quintet.types import LearnerState

CONFIGS = {
    "rmsprop": ImpalaConfig(),
    "momentum": ImpalaConfig(
        rmsprop_momentum=0.5, rmsprop_epsilon_inside_sqrt=True, normalize_observations=True
    ),
    "adam": ImpalaConfig(optimizer="adam", entropy_schedule="linear"),
}


def go_on(learner: ImpalaLearner, first: int, last: int) -> None:
    for update in range(first, last):
        learner.update(make_batch(learner, CONTINUOUS, seed=update), 500 * update)


def saved(learner: ImpalaLearner) -> LearnerState:
    """A copy, for the learner's own goes on changing; scalars as JSON gives them back."""
    state = learner.save()
    return LearnerState(deepcopy(dict(state.tensors)), json.loads(json.dumps(state.scalars)))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_loaded_learner_goes_on_with_the_same_bytes(config: ImpalaConfig):
    learner = make_learner(config, CONTINUOUS)
    go_on(learner, 0, 2)
    state = saved(learner)
    go_on(learner, 2, 4)
    other = make_learner(config, CONTINUOUS)
    go_on(other, 7, 10)  # whatever it did before must leave no trace
    other.load(state)
    assert everything(other) != everything(learner)
    go_on(other, 2, 4)
    assert everything(other) == everything(learner)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_part_of_the_state_matters(config: ImpalaConfig):
    learner = make_learner(config, CONTINUOUS)
    go_on(learner, 0, 2)
    state = saved(learner)
    go_on(learner, 2, 4)
    for name in (*state.tensors, *state.scalars):
        damaged = deepcopy(state)
        stored: dict[str, Any] = damaged.tensors if name in damaged.tensors else damaged.scalars
        stored[name] += 1 if name in damaged.scalars else 0.1
        other = make_learner(config, CONTINUOUS)
        other.load(damaged)
        go_on(other, 2, 4)
        assert everything(other) != everything(learner), name


def test_a_publication_is_what_the_actor_needs():
    config = CONFIGS["momentum"]
    learner = make_learner(config, CONTINUOUS)
    go_on(learner, 0, 2)
    publication = learner.publication()
    assert publication.version == learner.version == learner.updates == 2
    actor = make_actor(config, resolve_model(SMALL, CONTINUOUS), CONTINUOUS)
    actor.load(publication)
    obs = {"obs": 3.0 * torch.randn(5, 3)}
    noise = actor.draw_noise(1, 5, torch.Generator().manual_seed(0))[0]
    out = actor.act(obs, {}, torch.zeros(5, dtype=torch.bool), noise)
    with torch.no_grad():
        params, _, _ = learner.network(learner.normalizer(obs))
    assert list(actor.record_specs) == list(out.record) == ["logp_mu"]
    logp = learner.family.log_prob(params, out.action)
    assert torch.equal(out.record["logp_mu"], logp)
    greedy = actor.act(obs, {}, torch.zeros(5, dtype=torch.bool), None)
    assert torch.equal(greedy.action, params[:, :2])
    # It copied: what the learner does next does not reach it.
    go_on(learner, 2, 3)
    again = actor.act(obs, {}, torch.zeros(5, dtype=torch.bool), None)
    assert torch.equal(again.action, greedy.action)


def test_a_warm_start_takes_weights_and_statistics_and_nothing_else():
    config = CONFIGS["momentum"]
    donor, learner = (make_learner(config, CONTINUOUS) for _ in range(2))
    go_on(donor, 0, 3)
    learner.warm_start(donor.publication())
    assert torch.equal(learner.trained.theta, donor.trained.theta)
    for name in donor.normalizer.names:
        one, other = (x.normalizer.leaf_moments(name) for x in (learner, donor))
        assert torch.equal(one.mean, other.mean)
    assert learner.updates == learner.version == 0
    assert (learner.trained.memory["mean_sq"] == 1.0).all()
    assert not learner.trained.memory["velocity"].any()
