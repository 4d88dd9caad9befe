"""Numbers that are not finite end the run with an error that says where."""

import pytest
import torch
from ppo_helpers import CONTINUOUS, make_learner, make_rollout

from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.errors import NonFiniteError

CONFIG = PPOConfig(minibatch_steps=16, num_epochs=2)


def go_on(learner: PPOLearner, first: int, last: int) -> None:
    for iteration in range(first, last):
        learner.update(make_rollout(CONTINUOUS, seed=iteration), 500 * iteration)


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
    batch = make_rollout(CONTINUOUS, seed=1)
    index = batch.valid.flatten().nonzero().squeeze(1)
    batch.record["logp_mu"].view(-1)[index[row]] = float("nan")
    expected = update_of(make_learner(CONFIG, CONTINUOUS), row, len(index))
    with pytest.raises(
        NonFiniteError, match=rf"^loss/policy must be finite, got nan at update {expected};"
    ):
        make_learner(CONFIG, CONTINUOUS).update(batch, 0)


def test_updates_are_counted_over_iterations():
    learner = make_learner(CONFIG, CONTINUOUS)
    go_on(learner, 0, 2)
    done = learner.updates
    batch = make_rollout(CONTINUOUS, seed=1)
    batch.reward[batch.valid] = float("nan")
    with pytest.raises(NonFiniteError, match=rf"must be finite, got nan at update {done + 1};"):
        learner.update(batch, 0)


def test_an_infinite_ratio_is_named():
    batch = make_rollout(seed=1)
    batch.record["logp_mu"][batch.valid] = -float("inf")
    with pytest.raises(
        NonFiniteError, match=r"^loss/policy must be finite, got (inf|nan) at update 1;"
    ):
        make_learner(CONFIG).update(batch, 0)


@pytest.mark.parametrize("name", ["logp_pi", "rho", "value", "loss/policy"])
def test_check_numerics_names_the_tensor(name: str):
    config = CONFIG.model_copy(update={"check_numerics": True})
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
    pattern = rf"^{name} must be finite, got nan at update {updates + 1};"
    with pytest.raises(NonFiniteError, match=pattern):
        learner.update(batch, 0)
