"""Small cases of DDPG, and actors of theirs."""

from dataclasses import replace
from typing import Any

import torch
from conformance_helpers import Case

from quintet.algorithms.ddpg.actor import PARAM_SCALE
from quintet.algorithms.parts.acting import WARMING_UP
from quintet.types import Publication, Rollout

NETWORK = {"activation": "relu", "layer_norm": True, "policy_hidden": (8, 6)}
PLAIN: dict[str, Any] = {"exploration": "none", "normalize_observations": False}


def case(**options: Any) -> Case:
    return Case("ddpg", options=options, network=NETWORK)


def replayed(of: Case) -> list[Rollout]:
    return [batch for each in of.batches(3) for batch in each if batch.replayed]


def with_endings(batch: Rollout) -> Rollout:
    """Windows that go on, that terminate, that are truncated, and, of several rows, that are cut
    before their last row, in which is nothing.
    """
    columns = torch.arange(batch.valid.shape[1]).expand_as(batch.valid)
    valid, cut = torch.ones_like(batch.valid), torch.zeros_like(batch.valid)
    if len(valid) > 1:
        cut[-2], valid[-1] = columns[0] % 4 == 3, columns[0] % 4 != 3
    return replace(
        batch,
        valid=valid,
        reward=torch.where(valid, batch.reward, torch.nan),
        terminated=columns % 4 == 1,
        truncated=columns % 4 == 2,
        trace_cut=cut,
    )


def published(of: Case, scale: float = 0.5, warming_up: bool = False) -> Publication:
    tensors = dict(of.learner().publication().tensors)
    return Publication(
        1, {**tensors, PARAM_SCALE: torch.tensor(scale), WARMING_UP: torch.tensor(warming_up)}
    )


def acting(of: Case, streams: int, **given: Any) -> Any:
    actor = of.actor()
    actor.load(published(of, **given))
    return actor, actor.initial_state(streams)
