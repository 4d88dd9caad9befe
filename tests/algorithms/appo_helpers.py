"""A small learner of APPO, and batches for it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from gymnasium import spaces as gym
from ppo_helpers import (
    DISCRETE,
    OBSERVATION,
    SMALL,
    TOTAL,
    make_rollout,
)
from torch import Tensor, nn

from quintet.algorithms.appo.chunks import Chunks, Minibatch
from quintet.algorithms.appo.config import APPOConfig, Knobs
from quintet.algorithms.appo.learner import APPOLearner, make_actor
from quintet.algorithms.parts.setup import Setup
from quintet.models.config import ModelConfig, resolve_model
from quintet.runtime.delivery import with_cuts
from quintet.types import Rollout, Spaces

STEPS, STREAMS = 8, 4
SIZES: dict[str, Any] = {"unroll_steps": STEPS, "minibatch_steps": STEPS * STREAMS}
TWO_CHOICES = Spaces(OBSERVATION, gym.MultiDiscrete([3, 2]))


def make_learner(
    spaces: Spaces = DISCRETE, model: ModelConfig = SMALL, total: int = TOTAL, **options: Any
) -> APPOLearner:
    config = APPOConfig(**{**SIZES, **options})
    setup = Setup(STREAMS, total, (1, 2), torch.device("cpu"))
    return APPOLearner(config, resolve_model(model, spaces), spaces, setup)


def make_batch(learner: APPOLearner, spaces: Spaces = DISCRETE, seed: int = 1) -> Rollout:
    """What the learner's actor would record, as far from the learner's policy as any; a budget that
    ends in one of the columns.
    """
    batch = make_rollout(spaces, STEPS, STREAMS, seed)
    specs = make_actor(learner.config, resolve_model(SMALL, spaces), spaces).record_specs
    batch.valid[-2:, 0] = False
    batch.reward[~batch.valid] = 1e3
    return with_cuts(replace(batch, record={name: batch.record[name] for name in specs}))


class Linear(nn.Module):
    """Logits and value as a linear function of the observation."""

    def __init__(self, sizes: tuple[int, int]):
        super().__init__()
        weight = torch.randn(sizes[0], sizes[1] + 1, generator=torch.Generator().manual_seed(3))
        self.weight = nn.Parameter(weight)

    def forward(self, obs: dict[str, Tensor], *_: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        out = obs["obs"] @ self.weight
        return out[..., :-1], out[..., -1], {}

    def value(self, obs: dict[str, Tensor], *_: Any) -> Tensor:
        return self(obs)[1]


def minibatches_of(learner: APPOLearner, chunks: Chunks, knobs: Knobs) -> Iterator[Minibatch]:
    """One pass over chunks on the CPU."""
    return learner._minibatches(chunks, chunks.valid, knobs)
