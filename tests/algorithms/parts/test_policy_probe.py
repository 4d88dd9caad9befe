"""What is told of a policy's distribution, and of how far it is from the one that acted."""

import math
from dataclasses import replace
from typing import Any

import acer_helpers
import appo_helpers
import impala_helpers
import numpy as np
import ppo_helpers
import pytest
import torch

from quintet.algorithms.impala.config import ImpalaConfig
from quintet.algorithms.parts.policy_probe import (
    PolicyAndValue,
    change_statistics,
    distribution_statistics,
)
from quintet.ops.discrete import Bernoulli, Categorical
from quintet.ops.distributions import TupleFamily
from quintet.ops.gaussian import DiagGaussian
from quintet.types import Rollout

GAUSSIAN = DiagGaussian(2, (-1.0, -1.0), (1.0, 1.0))
TANH = DiagGaussian(2, (-1.0, -1.0), (1.0, 1.0), "mean")


def numbers(family: Any, params: torch.Tensor) -> dict[str, float]:
    found = distribution_statistics(family, params)
    parts = {**found.means, **found.least, **found.greatest}
    return {name: x.item() for name, x in parts.items()}


def test_gaussians_with_a_spread_that_depends_on_the_state() -> None:
    params = torch.tensor([[0.5, -2.0, 0.0, math.log(3.0)], [1.0, 0.0, math.log(0.5), 0.0]])
    told = numbers(GAUSSIAN, params)
    assert told["policy/mean_mean"] == pytest.approx(-0.125)
    assert (told["policy/mean_min"], told["policy/mean_max"]) == (-2.0, 1.0)
    assert told["policy/std_mean"] == pytest.approx((1 + 3 + 0.5 + 1) / 4)
    assert told["policy/std_min"] == pytest.approx(0.5)
    assert told["policy/std_max"] == pytest.approx(3.0)
    entropy = [0.5 * 2 * (1 + math.log(2 * math.pi)) + x for x in (math.log(3.0), math.log(0.5))]
    assert told["policy/entropy_min"] == pytest.approx(min(entropy))
    assert told["policy/entropy_max"] == pytest.approx(max(entropy))
    assert "policy/mode_probability_mean" not in told
    assert numbers(TANH, params)["policy/mean_min"] == pytest.approx(math.tanh(-2.0))


@pytest.mark.parametrize(
    ("squash", "high", "share"),
    [("none", 1.0, 3 / 4), ("mean", 1.0, 1 / 4), ("action", 1.0, 1 / 4), ("none", math.inf, 1.0)],
)
def test_the_share_of_likeliest_actions_at_a_bound(squash: Any, high: float, share: float) -> None:
    family = DiagGaussian(2, (-1.0, -1.0), (1.0, high), squash)
    params = torch.tensor([[-3.0, 0.5, 0.0, 0.0], [1.0, 2.0, 0.0, 0.0]])
    assert numbers(family, params)["policy/mode_saturation_frac"] == pytest.approx(share)


def test_actions_without_bounds_have_no_share_at_one() -> None:
    free = DiagGaussian(1, (-math.inf,), (1.0,))
    assert "policy/mode_saturation_frac" not in numbers(free, torch.zeros(3, 2))


def test_choices_with_masks_and_bits() -> None:
    p = np.array([[0.7, 0.3, 0.0], [0.2, 0.5, 0.3]])
    logits = torch.tensor(np.log(np.maximum(p, 1e-300)), dtype=torch.float32).clamp_min(-1e9)
    logits[0, 2] = -1e9
    told = numbers(Categorical(3), logits)
    assert told["policy/mode_probability_mean"] == pytest.approx(0.6)
    assert told["policy/mode_probability_min"] == pytest.approx(0.5)
    assert told["policy/mode_probability_max"] == pytest.approx(0.7)
    then, action = PolicyAndValue(logits, None), torch.tensor([0, 1])
    changes = change_statistics(Categorical(3), action, then, then)
    assert changes.greatest["policy/logp_abs_max"].item() == pytest.approx(-math.log(0.2))
    assert changes.means["policy/kl"].item() == 0.0
    bits = torch.tensor([[math.log(4.0), -math.log(9.0)]])
    assert numbers(Bernoulli(2), bits)["policy/mode_probability_mean"] == pytest.approx(0.85)
    both = TupleFamily((Categorical(3), GAUSSIAN, Bernoulli(2)))
    params = torch.cat((logits[:1], torch.tensor([[0.5, -2.0, 0.0, 1.0]]), bits), -1)
    told = numbers(both, params)
    assert told["policy/mode_probability_mean"] == pytest.approx((0.7 + 0.8 + 0.9) / 3)
    assert told["policy/mean_min"] == -2.0
    assert told["policy/entropy_min"] == pytest.approx(both.entropy(params).item())


def test_distances_of_gaussians() -> None:
    then = PolicyAndValue(torch.tensor([[0.0, 0.0, 0.0, 0.0]]), torch.tensor([1.0]))
    now = PolicyAndValue(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), torch.tensor([-2.0]))
    action = torch.tensor([[2.0, 0.0]])
    told = change_statistics(GAUSSIAN, action, then, now)
    assert told.means["policy/kl"].item() == pytest.approx(0.5)
    assert told.means["value/change_mean"].item() == told.greatest["value/change_max"].item() == 3.0
    density = -0.5 * 4.0 - math.log(2 * math.pi)
    assert told.greatest["policy/logp_abs_max"].item() == pytest.approx(-density)


def of_now(batch: Rollout, learner: Any) -> Rollout:
    return replace(batch, version=torch.full_like(batch.version, learner.version))


@pytest.mark.parametrize("helpers", [impala_helpers, appo_helpers], ids=["impala", "appo"])
def test_weights_that_acted_tell_what_their_actor_would_have_recorded(
    helpers: Any,
) -> None:
    spaces = ppo_helpers.DISCRETE
    if helpers is impala_helpers:
        learner = helpers.make_learner(ImpalaConfig(), spaces)
    else:  # without the clip no value is recorded
        learner = helpers.make_learner(spaces, value_clip=None)
    learner.update(of_now(helpers.make_batch(learner, spaces, seed=0), learner), 0)
    assert "policy/kl" not in learner.metrics()
    batch = of_now(helpers.make_batch(learner, spaces, seed=1), learner)

    def outputs() -> PolicyAndValue:
        obs = {name: x[:-1].flatten(0, 1) for name, x in batch.obs.items()}
        state = {name: x[0] for name, x in batch.state.items()}
        with torch.no_grad():
            inputs = learner.normalizers.observations(obs), state, batch.is_first[:-1].flatten()
            params, value, _ = learner.network(*inputs)
        use = batch.valid.flatten()
        return PolicyAndValue(params[use], value[use])

    acted = outputs()
    learner.update(batch, 0)
    now, told = outputs(), learner.metrics()
    kl = learner.family.kl(acted.params, now.params).mean().item()
    assert kl > 0
    assert told["policy/kl"] == pytest.approx(kl, rel=1e-4)
    change = (now.value - acted.value).abs()
    assert told["value/change_mean"] == pytest.approx(change.mean().item(), rel=1e-5)
    assert told["value/change_max"] == pytest.approx(change.max().item(), rel=1e-5)
    assert told["policy/entropy_max"] >= told["policy/entropy"] - 0.1


def test_one_look_between_two_reports_and_the_same_after_a_resume() -> None:
    spaces = ppo_helpers.DISCRETE
    first, second = (appo_helpers.make_learner(spaces) for _ in range(2))

    def go_on(learner: Any, seed: int) -> None:
        learner.update(of_now(appo_helpers.make_batch(learner, spaces, seed=seed), learner), 0)

    go_on(first, 0)
    first.metrics()
    go_on(first, 1)
    assert not first.probe.due
    state = first.save()
    second.load(state)
    first.trained.interval.read()  # what is of before
    for learner in (first, second):
        go_on(learner, 2)
        go_on(learner, 3)
    assert not first.probe.due
    assert not second.probe.due
    told = first.metrics()
    assert {"policy/kl", "policy/mode_probability_mean"} <= told.keys()
    again = {k: x for k, x in second.metrics().items() if k in ("policy/kl", "value/change_max")}
    assert again == {k: told[k] for k in again}
    assert again


def test_replayed_batches_are_not_looked_at() -> None:
    spaces = ppo_helpers.DISCRETE
    learner = acer_helpers.make_learner(acer_helpers.config(), spaces)
    learner.update(acer_helpers.make_batch(learner, spaces), 0)
    assert learner.probe.due
    assert "policy/mode_probability_mean" not in learner.metrics()
