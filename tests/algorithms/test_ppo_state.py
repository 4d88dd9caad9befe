"""Saving and going on with the same bytes; errors at numbers that are not finite."""

import json
from copy import deepcopy

import pytest
import torch
from ppo_helpers import CONTINUOUS, SMALL, everything, make_learner, make_rollout

from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import PPOLearner, make_actor
from quintet.errors import NonFiniteError
from quintet.models.config import resolve_model
from quintet.types import LearnerState

CONFIGS = {
    "default": PPOConfig(minibatch_steps=16, num_epochs=2),
    "kl": PPOConfig(
        minibatch_steps=16, num_epochs=2, kl_beta_init=1.0, lr_schedule="kl_adaptive", kl_target=0.1
    ),
    "clip": PPOConfig(
        minibatch_steps=16, num_epochs=2, clip_schedule="linear", reward_normalizer="step_std"
    ),
}


def go_on(learner: PPOLearner, first: int, last: int) -> None:
    for iteration in range(first, last):
        learner.update(make_rollout(CONTINUOUS, seed=iteration), 500 * iteration)


def saved(learner: PPOLearner) -> LearnerState:
    """A copy, for the learner's own goes on changing; scalars as JSON gives them back."""
    state = learner.save()
    return LearnerState(deepcopy(dict(state.tensors)), json.loads(json.dumps(state.scalars)))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_loaded_learner_goes_on_with_the_same_bytes(config: PPOConfig):
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


def test_every_part_of_the_state_matters():
    config = CONFIGS["kl"]
    learner = make_learner(config, CONTINUOUS)
    go_on(learner, 0, 2)
    state = saved(learner)
    go_on(learner, 2, 4)
    parts = [*state.tensors, *(x for x in state.scalars if x != "version")]
    assert len(parts) > 15
    for name in parts:
        damaged = deepcopy(state)
        if name == "shuffle":
            damaged.tensors[name] = torch.Generator().manual_seed(5).get_state()
        elif name in damaged.tensors:
            damaged.tensors[name] += 0.1
        else:
            damaged.scalars[name] += 1
        other = make_learner(config, CONTINUOUS)
        other.load(damaged)
        go_on(other, 2, 4)
        # The mean of rewards is never subtracted: it has no effect on what is learned.
        if name != "reward_moments/mean":
            assert not torch.equal(other.trained.theta, learner.trained.theta), name


def test_a_publication_is_what_the_actor_needs():
    config = CONFIGS["default"]
    learner = make_learner(config, CONTINUOUS)
    go_on(learner, 0, 2)
    publication = learner.publication()
    assert publication.version == learner.version == 2
    actor = make_actor(config, resolve_model(SMALL, CONTINUOUS), CONTINUOUS)
    actor.load(publication)
    obs = {"obs": 3.0 * torch.randn(5, 3)}
    noise = actor.draw_noise(1, 5, torch.Generator().manual_seed(0))[0]
    out = actor.act(obs, {}, torch.zeros(5, dtype=torch.bool), noise)
    with torch.no_grad():
        params, value, _ = learner.network(learner.normalizer(obs))
    assert torch.equal(out.record["params_mu"], params)
    assert torch.equal(out.record["value"], value)
    logp = learner.family.log_prob(params, out.action)
    assert torch.equal(out.record["logp_mu"], logp)
    assert out.env_action.abs().max() <= 2.0
    greedy = actor.act(obs, {}, torch.zeros(5, dtype=torch.bool), None)
    assert torch.equal(greedy.action, params[:, :2])
    # It copied: what the learner does next does not reach it.
    before = {k: v.clone() for k, v in actor.network.state_dict().items()}
    go_on(learner, 2, 3)
    assert all(torch.equal(v, before[k]) for k, v in actor.network.state_dict().items())


def update_of(learner: PPOLearner, row: int, count: int) -> int:
    """Number of the first optimizer step that sees the row."""
    order = torch.randperm(count, generator=learner.shuffle)
    size = learner.config.minibatch_steps
    assert size is not None
    parts = -(-count // size)
    place = order.tolist().index(row)
    return next(k + 1 for k in range(parts) if place < (k + 1) * count // parts)


@pytest.mark.parametrize("row", [0, 11, 25, 39])
def test_the_first_update_that_is_not_finite_is_named(row: int):
    config = CONFIGS["default"]
    batch = make_rollout(CONTINUOUS, seed=1)
    index = batch.valid.flatten().nonzero().squeeze(1)
    batch.record["logp_mu"].view(-1)[index[row]] = float("nan")
    expected = update_of(make_learner(config, CONTINUOUS), row, len(index))
    with pytest.raises(NonFiniteError, match=rf"loss/policy became nan at update {expected};"):
        make_learner(config, CONTINUOUS).update(batch, 0)


def test_updates_are_counted_over_iterations():
    learner = make_learner(CONFIGS["default"], CONTINUOUS)
    go_on(learner, 0, 2)
    done = learner.updates
    batch = make_rollout(CONTINUOUS, seed=1)
    batch.reward[batch.valid] = float("nan")
    with pytest.raises(NonFiniteError, match=rf"became nan at update {done + 1};"):
        learner.update(batch, 0)


def test_an_infinite_ratio_is_named():
    batch = make_rollout(seed=1)
    batch.record["logp_mu"][batch.valid] = -float("inf")
    with pytest.raises(
        NonFiniteError, match=r"required, loss/policy became (inf|nan) at update 1;"
    ):
        make_learner(CONFIGS["default"]).update(batch, 0)


@pytest.mark.parametrize("name", ["logp_pi", "rho", "value", "losses"])
def test_check_numerics_names_the_tensor(name: str):
    config = CONFIGS["default"].model_copy(update={"check_numerics": True})
    learner = make_learner(config, CONTINUOUS)
    batch = make_rollout(CONTINUOUS, seed=1)
    learner.update(batch, 0)
    updates = learner.updates
    nan = float("nan")
    if name == "logp_pi":
        learner.trained.parameters["policy_head.std_param"].data.fill_(nan)
    elif name == "rho":
        batch.record["logp_mu"].fill_(nan)
    elif name == "value":
        learner.trained.parameters["value_head.bias"].data.fill_(nan)
    else:
        batch.reward[batch.valid] = nan
    pattern = rf"finite numbers are required, {name} holds nan at update {updates + 1};"
    with pytest.raises(NonFiniteError, match=pattern):
        learner.update(batch, 0)
