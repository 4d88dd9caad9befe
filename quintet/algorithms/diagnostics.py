"""Numbers that tell how a learner fares, by the names of quintet.observe.metrics."""

import torch
from torch import Tensor

from quintet.models.heads import PolicyHead
from quintet.models.normalize import ObservationNormalizer
from quintet.types import Rollout


def batch_metrics(
    batch: Rollout, use: Tensor, r_t: Tensor, advantage: Tensor, target: Tensor, v_tm1: Tensor
) -> dict[str, float]:
    """Means of the batch before learning from it."""
    target, error, advantage = target[use], (target - v_tm1)[use], advantage[use]
    spread = target.var(correction=0)
    metrics = {
        "reward/mean": batch.reward[use].mean(),
        "reward/normalized_mean": r_t[use].mean(),
        "value/target_mean": target.mean(),
        "advantage/mean": advantage.mean(),
        "advantage/std": advantage.std(correction=0),
        "data/valid_frac": batch.valid.float().mean(),
    }
    if spread > 1e-12:
        metrics["value/explained_variance"] = 1.0 - error.var(correction=0) / spread
    return {name: x.item() for name, x in metrics.items()}


def observation_metrics(normalizer: ObservationNormalizer) -> dict[str, float]:
    """Narrowest and widest running standard deviation, over all elements of all leaves."""
    if not normalizer.names:
        return {}
    moments = [normalizer.leaf_moments(name) for name in normalizer.names]
    std = torch.cat([each.variance.sqrt().flatten() for each in moments])
    return {
        "normalizer/observation_std_min": std.min().item(),
        "normalizer/observation_std_max": std.max().item(),
    }


def policy_metrics(head: PolicyHead) -> dict[str, float]:
    """Mean standard deviation of a Gaussian policy whose spread does not depend on the state."""
    if not head.gaussian or head.std == "state_dependent":
        return {}
    log = head.std == "state_independent"
    width = head.std_param.exp() if log else torch.nn.functional.softplus(head.std_param)
    return {"policy/std_mean": width.mean().item()}
