"""IMPALA on what a runtime collects: recurrent states, ratios of older columns, and toys with a
known optimum.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from conformance_helpers import everything
from impala_helpers import make_learner, terms_of, train
from test_ppo_recurrent import CORES, Walk, model
from toys_helpers import EndlessPay

from quintet.algorithms.impala.config import ImpalaConfig
from quintet.envs.toy import Contextual, FinitePay, Target
from quintet.models.config import ModelConfig
from quintet.types import Spaces

# All streams of Walk are in step: the second unroll begins and ends within an episode.
CONFIG = ImpalaConfig(unroll_steps=10, batch_unrolls=4, entropy_coef=0.01)


WALK = Spaces(Walk.observation_space, Walk.action_space)


def on_policy(metrics: dict[str, float], tolerance: float = 1e-5) -> bool:
    extremes = (metrics["policy/ratio_min"], metrics["policy/ratio_max"])
    return all(abs(x - 1.0) <= tolerance for x in extremes)


# Recurrent cores


@pytest.mark.parametrize(("core", "options"), CORES)
def test_the_state_of_row_0_gives_the_actor_s_probabilities(core: str, options: dict[str, Any]):
    """Through episodes that begin within the unroll; without the state they would differ."""
    learner, metrics, batches = train(CONFIG, Walk, 2, model=model(core, **options), groups=2)
    assert all(on_policy(each) for each in metrics)
    batch = batches[-1]
    assert not batch.is_first[0].all()
    assert batch.is_first[1:-1].any()
    lost = replace(batch, state={name: torch.zeros_like(x) for name, x in batch.state.items()})
    again = make_learner(CONFIG, WALK, model(core, **options))
    again.network.load_state_dict(learner.network.state_dict())
    found = []
    for each in (batch, lost):
        terms = terms_of(again, each)
        found.append(terms.log_rho.detach())
    assert (found[0] - found[1]).abs().max() > 1e-4


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_values_of_rows_0_to_T_are_those_of_one_act_after_another(core: str):
    learner, _, batches = train(CONFIG, Walk, 2, model=model(core))
    batch = batches[-1]
    state = {name: x[0] for name, x in batch.state.items()}
    values = []
    for t in range(CONFIG.unroll_steps + 1):
        obs = {name: x[t] for name, x in batch.obs.items()}
        _, v, state = learner.network(obs, state, batch.is_first[t])
        values.append(v.detach())
    v = torch.stack(values)
    terms = terms_of(learner, batch)
    torch.testing.assert_close(terms.v_tm1, v[:-1], atol=2e-7, rtol=0)
    ends = (batch.not_cut_t[-1] > 0) & batch.valid[-1]
    assert ends.any()
    bootstrap = terms.rho[-1].clamp(max=1.0) * (batch.reward[-1] + 0.99 * v[-1] - v[-2])
    found = terms.target_tm1[-1] - terms.v_tm1[-1]
    torch.testing.assert_close(found[ends], bootstrap[ends], atol=5e-7, rtol=0)


# Columns of several ages


def test_columns_of_older_weights_have_other_ratios():
    """6 streams and batches of 4: some columns wait, and are a version older by then."""
    config = CONFIG.model_copy(update={"learning_rate": 3e-3})
    learner, _, batches = train(config, Walk, 6, streams=6)
    again = make_learner(config, WALK)
    seen = set()
    for update, batch in enumerate(batches):
        terms = terms_of(again, batch)
        off = (terms.rho - 1.0).abs().amax(0)
        lag = update - batch.version[0]
        seen |= set(lag.tolist())
        assert ((off > 1e-4) == (lag > 0)).all(), (update, off, lag)
        again.update(batch, 0)
    assert seen >= {0, 1}
    assert everything(again) == everything(learner)


# Toys with a known optimum

FAST: dict[str, Any] = {
    "unroll_steps": 16,
    "batch_unrolls": 8,
    "reduction": "mean",
    "max_grad_norm": 0.5,
    "learning_rate": 1e-2,
    "rmsprop_epsilon": 1e-5,
}
WIDE = ModelConfig(policy_hidden=(32,))


def late(metrics: list[dict[str, float]], name: str) -> float:
    return sum(each[name] for each in metrics[-20:]) / 20


def test_the_optimum_of_a_toy():
    """The best mean reward is 1, a random policy's is 1/3; sampled, so with entropy left."""
    _, metrics, _ = train(ImpalaConfig(**FAST, gamma=0.0), Contextual, 150, model=WIDE, streams=8)
    assert late(metrics, "reward/mean") > 0.99


@pytest.mark.slow
def test_the_optimum_of_a_continuous_toy():
    """The best reward is 0, -(a - o/2)^2; always 0 has -1/12, the width that is left 0.006."""
    model = ModelConfig(policy_hidden=(32,), action_std_init=0.3)
    _, metrics, _ = train(ImpalaConfig(**FAST, gamma=0.0), Target, 150, model=model, streams=8)
    assert late(metrics, "reward/mean") > -0.012


@pytest.mark.parametrize(
    ("toy", "as_end", "low", "high"),
    [
        (EndlessPay, False, 9.9, 10.1),
        pytest.param(EndlessPay, True, 4.2, 5.0, marks=pytest.mark.slow),
        pytest.param(FinitePay, False, 4.1, 4.2, marks=pytest.mark.slow),
    ],
    ids=["endless", "endless taken for an end", "finite"],
)
def test_values_at_the_ends_of_episodes(toy: Any, as_end: bool, low: float, high: float):
    """A task without an end that pays 1 and is cut off after 10 steps is worth 1 / (1 - gamma), 10;
    one that ends then, (1 - gamma^n) / (1 - gamma) with n steps left, 4.14 in the mean.  Where the
    cut is taken for an end all states look the same, and those at an unroll's end are worth what
    stands for them all: 4.6.
    """
    config = ImpalaConfig(**FAST, gamma=0.9, truncation_as_termination=as_end)
    _, metrics, _ = train(config, toy, 150, model=WIDE, streams=8)
    assert low < late(metrics, "value/prediction_mean") < high
