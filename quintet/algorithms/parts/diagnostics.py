"""Metrics of a learner's health, by the names of quintet.observe.metrics."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from quintet.errors import NonFiniteError
from quintet.models.normalize import ObservationNormalizer, RewardNormalizer
from quintet.ops import reduce
from quintet.types import Obs

METRICS = (
    "normalizer/observation_mean_min",
    "normalizer/observation_mean_max",
    "normalizer/observation_std_min",
    "normalizer/observation_std_max",
    "normalizer/observation_clip_frac",
    "normalizer/observation_unlike_frac",
    "optim/grad_norm",
    "optim/grad_clip_frac",
    "optim/learning_rate",
)
"""The metrics that all learners of a policy and a value report."""


REWARD_METRICS = (
    "reward/normalized_mean",
    "normalizer/reward_clip_frac",
    "normalizer/reward_std",
)
"""The metrics of normalised rewards, which stand next to their mean."""


def reward_statistics(
    normalizer: RewardNormalizer, reward: Tensor, normalized: Tensor, valid: Tensor
) -> dict[str, Tensor]:
    """Means over the valid rows of a batch ``[T, B]``."""
    means = {
        "reward/mean": reduce.mean_valid(reward, valid),
        "reward/normalized_mean": reduce.mean_valid(normalized, valid),
    }
    if normalizer.clip is not None:
        outside = reduce.mean_valid((normalized.abs() >= normalizer.clip).float(), valid)
        means["normalizer/reward_clip_frac"] = outside * (normalizer.moments.count > 0)
    return means


def require_finite(tensors: Mapping[str, Tensor], update: int) -> None:
    """Raises NonFiniteError at the first tensor that holds a NaN or an infinity, by its name."""
    for name, x in tensors.items():
        wrong = x[~torch.isfinite(x)]
        if wrong.numel():
            raise NonFiniteError(
                f"finite numbers are required, {name} holds {wrong[0].item()} at update "
                f"{update}; lower --learning-rate or look at the rewards"
            )


def observation_metrics(normalizer: ObservationNormalizer) -> dict[str, float]:
    """Ranges of the running mean and standard deviation, over all elements of all leaves."""
    if not normalizer.names:
        return {}
    moments = [normalizer.leaf_moments(name) for name in normalizer.names]
    mean = torch.cat([each.mean.flatten() for each in moments])
    std = torch.cat([each.variance.sqrt().flatten() for each in moments])
    unlike = normalizer.unlike()
    return ({} if unlike is None else {"normalizer/observation_unlike_frac": unlike}) | {
        "normalizer/observation_mean_min": mean.min().item(),
        "normalizer/observation_mean_max": mean.max().item(),
        "normalizer/observation_std_min": std.min().item(),
        "normalizer/observation_std_max": std.max().item(),
    }


def observation_clip_share(
    normalizer: ObservationNormalizer, obs: Obs, use: Tensor, count: Tensor
) -> Tensor:
    """Share of the elements of normalised leaves that are at the clip, over the rows to `use`
    ``[T, B]``; 0 before there are statistics, NaN where there is no element.

    obs: leaves ``[T * B, ...]``, normalised; rows behind these are not read.
    count: of rows to use; of several ranks, in all of them, so that each gives its share.
    """
    if not normalizer.names:
        return torch.full((), torch.nan, device=use.device)
    rows, outside, elements = use.reshape(-1, 1), torch.zeros((), device=use.device), 0
    for name in normalizer.names:
        x, (low, high) = obs[name][: len(rows)].reshape(len(rows), -1), normalizer.bounds(name)
        # In place: for pictures new memory would take longer than the arithmetic.
        clipped = (x <= low).logical_or_(x >= high).logical_and_(rows)
        outside = outside + torch.count_nonzero(clipped)
        elements += x.shape[1]
    return outside / (count * elements)


def layers(
    parameters: Mapping[str, Tensor], gradient: Tensor | None
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, value and gradient of every parameter.

    gradient: of all parameters, flat; None: it was not kept, and nothing is yielded.
    """
    if gradient is not None:
        sizes = [parameter.numel() for parameter in parameters.values()]
        parts = torch.split(gradient, sizes)
        yield from zip(parameters, parameters.values(), parts, strict=True)


def layer_metrics(parameters: Mapping[str, Tensor], gradient: Tensor | None) -> dict[str, float]:
    """Norms of each parameter and of its gradient, see `layers`."""
    metrics = {}
    for name, parameter, part in layers(parameters, gradient):
        metrics[f"grad_norm/{name}"] = part.norm().item()
        metrics[f"param_norm/{name}"] = parameter.norm().item()
    return metrics
