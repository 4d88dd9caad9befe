"""Metrics of a learner's health, by the names of quintet.observe.metrics."""

from collections.abc import Iterator, Mapping
from functools import lru_cache

import torch
from torch import Tensor

from quintet.algorithms.parts import policy_probe
from quintet.errors import NonFiniteError
from quintet.models.normalize import ObservationNormalizer

METRICS = (
    *policy_probe.DISTRIBUTION,
    *policy_probe.CHANGES,
    *(f"loss/{x}" for x in ("policy", "value", "entropy", "total")),
    *(f"policy/{x}" for x in ("entropy", "approx_kl", "ratio_mean")),
    *(f"value/{x}" for x in ("prediction_mean", "target_mean", "explained_variance", "error_frac")),
    *(f"advantage/{x}" for x in ("mean", "std")),
    *(f"reward/{x}" for x in ("mean", "normalized_mean")),
    *(f"normalizer/observation_{x}_{y}" for x in ("mean", "std") for y in ("min", "max")),
    *(f"normalizer/observation_{x}" for x in ("clip_frac", "unlike_frac")),
    *(f"normalizer/reward_{x}" for x in ("clip_frac", "std")),
    *(f"optim/{x}" for x in ("grad_norm", "grad_clip_frac", "learning_rate")),
    "data/valid_frac",
)
"""The metrics that all learners of a policy and a value report."""


def not_finite(
    name: str, value: Tensor, when: str, advice: str, update: int | None = None
) -> NonFiniteError:
    """The error about a number that is NaN or infinite; see `NonFiniteError.update`."""
    error = NonFiniteError(f"{name} must be finite, got {value.item()} {when}; {advice}")
    error.update = update
    return error


def require_finite(tensors: Mapping[str, Tensor], when: str, advice: str) -> None:
    """Raises NonFiniteError at the first tensor that holds a NaN or an infinity, by its name."""
    for name, x in tensors.items():
        wrong = x.detach()[~x.isfinite()]
        if wrong.numel():
            raise not_finite(name, wrong[0], when, advice)


@lru_cache
def required_finite(own: tuple[str, ...], means: tuple[str, ...]) -> list[int]:
    """The columns of a step's statistics, named `own` and `means`, that must be finite; losses come
    before the norm, which a bad loss would spoil.
    """
    losses = [len(own) + k for k, name in enumerate(means) if name.startswith("loss/")]
    return losses + [k for k, name in enumerate(own) if name.endswith("grad_norm")]


def observation_metrics(normalizer: ObservationNormalizer) -> dict[str, float]:
    """Ranges of the running mean and standard deviation, over all elements of all leaves."""
    if not normalizer.names:
        return {}
    moments = [normalizer.leaf_moments(name) for name in normalizer.names]
    mean = torch.cat([each.mean.flatten() for each in moments])
    std = torch.cat([each.variance.sqrt().flatten() for each in moments])
    unlike = normalizer.unlike()
    found = {} if unlike is None else {"normalizer/observation_unlike_frac": unlike}
    names = [f"normalizer/observation_{x}_{y}" for x in ("mean", "std") for y in ("min", "max")]
    ranges = torch.stack([mean.min(), mean.max(), std.min(), std.max()])
    return found | dict(zip(names, ranges.tolist(), strict=True))


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
