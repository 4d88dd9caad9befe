"""What V-trace's targets converge to, with a discount and traces, from another policy's data.

The whole path is real: environments, sampler, batches, the learner's update.  Actors keep the first
weights for ever (mu, which goes left and right alike); the learner's policy (pi, which mostly goes
right) is set once and held, so that the value function, which is a table, has a known limit: the
solution of Bellman's equation for the policy that the targets stand for.
"""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from impala_helpers import make_learner
from numpy.typing import NDArray
from torch import Tensor

from quintet.algorithms.impala import learner as impala
from quintet.algorithms.impala.config import ImpalaConfig
from quintet.algorithms.impala.learner import ImpalaLearner, make_actor
from quintet.envs.public import make_vector_env
from quintet.models.config import ModelConfig, resolve_model
from quintet.observe.timing import PhaseTimer
from quintet.ops.vtrace import vtrace
from quintet.runtime.batch import select
from quintet.runtime.sampler import SerialSampling

CELLS, GAMMA, MU, PI = 5, 0.9, 0.5, 0.85
"""Cells of the corridor, discount, and both policies' probability of going right."""

STREAMS, UNROLL, UPDATES = 16, 20, 150
LINEAR = ModelConfig(policy_hidden=(), value_hidden=())
"""On one-hot cells: a table."""


class Corridor(gymnasium.Env):
    """0 goes left, 1 goes right; only the step out of the right end pays, 1."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (CELLS,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(CELLS))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.cell = max(self.cell + (1 if action else -1), 0)
        out = self.cell == CELLS
        return self._seen(), float(out), out, False, {}

    def _seen(self) -> NDArray[np.float32]:
        return np.eye(CELLS + 1, CELLS, dtype=np.float32)[self.cell]


def value_of(right: float) -> NDArray[np.float64]:
    """Bellman's equation of a policy that goes right with this probability, solved."""
    moves = np.zeros((CELLS, CELLS))
    for cell in range(CELLS):
        moves[cell, max(cell - 1, 0)] += 1 - right
        if cell + 1 < CELLS:
            moves[cell, cell + 1] += right
    pays = np.eye(CELLS)[-1] * right
    return np.linalg.solve(np.eye(CELLS) - GAMMA * moves, pays)


def clipped(rho_bar: float) -> float:
    """Of the policy that V-trace's targets stand for: proportional to min(rho_bar * mu, pi)."""
    right, left = min(rho_bar * MU, PI), min(rho_bar * (1 - MU), 1 - PI)
    return right / (right + left)


def learned(updates: int = UPDATES, **options: Any) -> tuple[NDArray[np.float64], float]:
    """The value head's weights, one for each cell, and its bias; all begin at 0."""
    config = ImpalaConfig(
        unroll_steps=UNROLL, batch_unrolls=STREAMS, gamma=GAMMA, reduction="mean",
        entropy_coef=0.0, optimizer="adam", learning_rate=0.05, max_grad_norm=None, **options,
    )  # fmt: skip
    env = make_vector_env(Corridor, STREAMS, backend="gymnasium")
    learner = make_learner(config, env.spaces, LINEAR, total=updates)
    sampling = SerialSampling(
        [env],
        lambda: make_actor(config, resolve_model(LINEAR, env.spaces), env.spaces),
        learner.plan,
        3,
        PhaseTimer(),
    )
    with torch.no_grad():
        learner.network.value_head.weight.zero_()
    _set_policy(learner, MU)
    sampling.publish(learner.publication())
    sampling.restart(0)
    for done in range(updates):
        _set_policy(learner, PI)
        batch = select(sampling.collect(10**9).rollout, torch.arange(STREAMS))
        learner.update(batch, done)
    env.close()
    head = learner.network.value_head
    return head.weight[0].detach().double().numpy(), head.bias.item()


@torch.no_grad()
def _set_policy(learner: ImpalaLearner, right: float) -> None:
    head = learner.network.policy_head.linear
    head.weight.zero_()
    head.bias.copy_(torch.tensor([1 - right, right]).log())


def uncorrected(v_tm1: Tensor, v_t: Tensor, r_t: Tensor, *given: Any, **caps: Any) -> Any:
    """V-trace that is told that the new policy is the one that acted."""
    *others, rho = given
    return vtrace(v_tm1, v_t, r_t, *others, rho.new_ones(rho.shape), **caps)


def far(table: NDArray[np.float64], right: float) -> float:
    """The largest error as values of the policy that goes right with this probability."""
    return float(np.abs(table - value_of(right)).max())


@pytest.mark.parametrize(
    ("options", "right"),
    [
        ({}, clipped(1.0)),
        # Traces hasten, they do not move the limit.
        pytest.param({"c_bar": 0.0}, clipped(1.0), marks=pytest.mark.slow),
        pytest.param({"rho_bar": None}, PI, marks=pytest.mark.slow),
    ],
    ids=["vtrace", "traces cut", "no cap"],
)
def test_values_become_those_of_the_policy_that_the_caps_define(
    options: dict[str, Any], right: float
) -> None:
    """Equations 2 and 3 of the paper; the two limits are 0.07 apart, that of the data 0.36."""
    weight, bias = learned(**options)
    assert far(weight + bias, right) < 0.025


@pytest.mark.slow
def test_without_correction_they_become_those_of_the_policy_that_acted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(impala, "vtrace", uncorrected)
    weight, bias = learned()
    assert far(weight + bias, MU) < 0.025
    assert far(weight + bias, clipped(1.0)) > 0.3


def test_traces_carry_a_reward_over_a_whole_unroll_in_one_update() -> None:
    """From values of 0, one step's error is 0 everywhere but where the reward is paid."""
    traced, _ = learned(updates=1)
    cut, _ = learned(updates=1, c_bar=0.0)
    assert (traced > 0.01).all()
    assert cut[-1] > 0.01
    assert (cut[:-1] == 0.0).all()
