"""Learners and batches for the tests of ACER: small, fixed, and most without environments."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym
from ppo_helpers import DISCRETE, OBSERVATION, TOTAL, make_rollout
from torch import Tensor

from quintet.algorithms.acer.config import ACERConfig, Knobs
from quintet.algorithms.acer.estimates import Rows
from quintet.algorithms.acer.learner import ACERLearner
from quintet.algorithms.parts.setup import Setup
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import knobs_of
from quintet.algorithms.parts.unrolls import Unrolls
from quintet.models.config import ModelConfig, resolve_model
from quintet.types import Rollout, Spaces

STEPS, STREAMS = 12, 6
LINEAR = ModelConfig(policy_hidden=(), value_hidden=())
MULTI = Spaces(OBSERVATION, gym.MultiDiscrete([2, 3]))
BITS = Spaces(OBSERVATION, gym.MultiBinary(2))
ONE = Spaces(OBSERVATION, gym.Box(-2.0, 2.0, (1,), np.float32))
"""One dimension, of which the root is the number itself."""


def config(**options: Any) -> ACERConfig:
    """Of short unrolls and a replay that begins at once."""
    sizes = {"unroll_steps": STEPS}
    if options.get("replay_ratio") != 0:
        sizes |= {"replay_capacity_steps_per_stream": 160, "replay_start_steps_per_stream": 0}
    return ACERConfig(**(sizes | options))


def make_learner(
    options: ACERConfig,
    spaces: Spaces = DISCRETE,
    model: ModelConfig = LINEAR,
    total: int = TOTAL,
) -> ACERLearner:
    setup = Setup(STREAMS, total, (1, 2), torch.device("cpu"))
    return ACERLearner(options, resolve_model(model, spaces), spaces, setup)


def make_batch(learner: ACERLearner, spaces: Spaces = DISCRETE, seed: int = 1) -> Rollout:
    """A replayed batch of noise, acted by other weights, from states as far from zero as any."""
    batch = make_rollout(spaces, learner.config.unroll_steps, STREAMS, seed)
    g = torch.Generator().manual_seed(seed)
    state = {
        name: torch.randn((2, STREAMS, *spec.shape), generator=g)
        for name, spec in learner.network.state_specs.items()
    }
    record = {"params_mu": 2.0 * batch.record["params_mu"]}
    return replace(batch, record=record, state=state, return_carry=None, replayed=True)


def apart(learner: ACERLearner, seed: int = 4, size: float = 0.7) -> ACERLearner:
    """The learner with weights far from 0, and an average that is as far from them."""
    g = torch.Generator().manual_seed(seed)
    learner.trained.theta.add_(size * torch.randn(learner.trained.theta.shape, generator=g))
    if learner.trained.average is not None:
        spread = size * torch.randn(learner.trained.theta.shape, generator=g)
        learner.trained.average.copy_(learner.trained.theta + spread)
    return learner


def numbers(options: ACERConfig, dtype: torch.dtype = torch.float32) -> Knobs:
    return Knobs(*(torch.tensor(x, dtype=dtype) for x in knobs_of(Knobs, options)))


def loss_of(
    learner: ACERLearner, given: Rollout | Unrolls
) -> tuple[Tensor, dict[str, Tensor], Statistics]:
    """The loss of the weights that the learner has, its gradient by name, and what is told."""
    unrolls = given if isinstance(given, Unrolls) else learner._unrolls(given)
    loss, told = learner.trained.evaluate(
        learner.trained.parameters, unrolls, numbers(learner.config)
    )
    names, parameters = zip(*learner.trained.parameters.items(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return loss.detach(), dict(zip(names, gradients, strict=True)), told


def double_sum(rows: Rows, q: Tensor, v: Tensor, trace: Tensor) -> Tensor:
    """``q(x_i, a_i) + sum_k (product of discounts and traces) * (r_k + d_k * v(x_{k+1}) - q_k)``,
    from row i to the end of its episode or of the unroll; v has a row more.
    """
    steps, streams = q.shape
    table = torch.zeros(steps, streams, dtype=torch.float64)
    for i, b in itertools.product(range(steps), range(streams)):
        total, weight = q[i, b].item(), 1.0
        for k in range(i, steps):
            after = rows.discount_t[k, b].item() * v[k + 1, b].item()
            total += weight * (rows.reward[k, b].item() + after - q[k, b].item())
            if rows.not_cut_t[k, b] == 0 or k == steps - 1:
                break
            weight *= rows.discount_t[k, b].item() * trace[k + 1, b].item()
        table[i, b] = total
    return table
