"""Noise for losses that sample actions, which draw nothing themselves."""

from dataclasses import replace

import torch

from quintet.ops.distributions import Family
from quintet.system.transfer import to_device
from quintet.types import Rollout


def with_noise(batch: Rollout, family: Family, samples: int, generator: torch.Generator) -> Rollout:
    """The batch with the ``noise`` of some actions of every row in its record, ``[T, B, samples,
    ...]``.

    All of several learners draw the same noise, for the whole batch, and take their columns of it.
    """
    noise = family.draw_noise((*batch.valid.shape, samples), generator)
    noise = to_device(noise, batch.valid.device)
    return replace(batch, record={**batch.record, "noise": noise})
