"""Small cases of DDPG, and actors of theirs."""

from dataclasses import replace
from typing import Any

import torch
from conformance import Case

from quintet.algorithms.ddpg.actor import PARAM_SCALE, WARMING_UP
from quintet.types import Publication, Rollout

NETWORK = {"activation": "relu", "layer_norm": True, "policy_hidden": (8, 6)}
PLAIN: dict[str, Any] = {"exploration": "none", "normalize_observations": False}


def case(**options: Any) -> Case:
    return Case("ddpg", options=options, network=NETWORK)


def replayed(of: Case) -> list[Rollout]:
    return [batch for each in of.batches(3) for batch in each if batch.replayed]


def with_endings(batch: Rollout) -> Rollout:
    """Rows that go on, that terminate and that are truncated."""
    columns = torch.arange(batch.valid.shape[1]).expand_as(batch.valid)
    terminated, truncated = columns % 4 == 1, columns % 4 == 2
    ends = {"terminated": terminated, "truncated": truncated, "trace_cut": None}
    return replace(batch, valid=torch.ones_like(terminated), **ends)


def published(of: Case, scale: float = 0.5, warming_up: bool = False) -> Publication:
    tensors = dict(of.learner().publication().tensors)
    return Publication(
        1, {**tensors, PARAM_SCALE: torch.tensor(scale), WARMING_UP: torch.tensor(warming_up)}
    )


def acting(of: Case, streams: int, **given: Any) -> Any:
    actor = of.actor()
    actor.load(published(of, **given))
    return actor, actor.initial_state(streams)
