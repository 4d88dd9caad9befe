"""What states are worth where episodes end: a truncation is no end, a termination is."""

import pytest
import torch
from ppo_helpers import train

from quintet.algorithms.ppo.config import PPOConfig
from quintet.models.config import ModelConfig

GAMMA, N = 0.9, 10
ENDLESS = 1.0 / (1.0 - GAMMA)
FINITE = (1.0 - GAMMA**N) / (1.0 - GAMMA)
CONFIG = PPOConfig(
    gamma=GAMMA,
    gae_lambda=1.0,
    # Whole episodes, each with its row of resetting: no unroll ends within one.
    unroll_steps=2 * (N + 1),
    minibatch_steps=None,
    num_epochs=10,
    learning_rate=2e-2,
    lr_schedule="constant",
    max_grad_norm=None,
    reward_normalizer="none",
    normalize_observations=False,
)


def first_value(env: str, config: PPOConfig, iterations: int) -> float:
    model = ModelConfig(policy_hidden=(8,), value_hidden=(16,))
    learner, metrics, batch = train(config, env, iterations, {"n": N}, model, streams=2)
    assert metrics[-1]["data/valid_frac"] == pytest.approx(N / (N + 1))
    assert batch.is_first[0].all()
    with torch.no_grad():
        value = learner.network.value({"obs": batch.obs["obs"][0]})
    return value.mean().item()


def test_a_truncated_task_without_end_is_worth_the_endless_sum():
    assert first_value("toys_helpers:EndlessPay", CONFIG, 50) == pytest.approx(ENDLESS, rel=1e-3)


@pytest.mark.slow
def test_a_terminating_task_is_worth_the_finite_sum():
    # A small network over ten states comes to within 1.5%.
    assert first_value("quintet.envs.toy:FinitePay", CONFIG, 50) == pytest.approx(FINITE, rel=0.05)


@pytest.mark.slow
def test_truncation_as_termination_learns_the_finite_sum():
    """All states look the same there, so the value is the mean over an episode's states."""
    wrong = CONFIG.model_copy(update={"truncation_as_termination": True})
    mean = sum((1.0 - GAMMA ** (N - k)) / (1.0 - GAMMA) for k in range(N)) / N
    assert mean < FINITE < 0.7 * ENDLESS
    assert first_value("toys_helpers:EndlessPay", wrong, 60) == pytest.approx(mean, rel=1e-3)


@pytest.mark.slow
def test_one_step_bootstraps_reach_the_endless_sum_too():
    """With lambda 0 everything comes by way of the value behind a step, at cuts as elsewhere."""
    config = CONFIG.model_copy(update={"gae_lambda": 0.0, "num_epochs": 5})
    assert first_value("toys_helpers:EndlessPay", config, 90) == pytest.approx(ENDLESS, rel=1e-3)
