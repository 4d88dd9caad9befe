"""The metrics of APPO, by the names of quintet.observe.metrics."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quintet.algorithms.appo.config import APPOConfig
from quintet.algorithms.parts import diagnostics, judgements, looks, off_policy_statistics
from quintet.algorithms.parts.off_policy_statistics import with_spreads
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import Trained
from quintet.protocols import Part
from quintet.types import Spaces

LOSSES = ("loss/policy", "loss/value", "loss/entropy", "loss/uniform_kl", "loss/kl")
"""The weighted terms."""

ACTOR_LOSSES = "loss/policy", "loss/entropy", "loss/uniform_kl"
"""Terms whose sum ends the passes once it hardly changes."""

METRICS = (
    "loss/policy",
    "loss/value",
    "loss/entropy",
    "loss/kl",
    "loss/total",
    "loss/total_abs",
    *off_policy_statistics.METRICS,
    *diagnostics.METRICS,
    *looks.DISTRIBUTION,
    *looks.CHANGES,
    *looks.VALUE_CHANGES,
    "policy/clip_frac",
    "policy/ratio_first_max_error",
    *diagnostics.REWARD_METRICS,
    "optim/epochs",
)
"""All metrics but the learner's own."""


def judged(config: APPOConfig, spaces: Spaces) -> tuple[Part, ...]:
    """Parts of the learner, each with the evidence by which reports judge it."""
    policy = (
        judgements.distance("policy/approx_kl", "KL to the policy that acted", judgements.FAR),
        judgements.clipped(judgements.MANY_CLIPPED),
        *judgements.gradient(config.max_grad_norm),
    )
    rewards = config.reward_normalizer != "none"
    return (
        Part(judgements.POLICY, policy),
        judgements.VALUES,
        *judgements.normalizers(config, spaces, rewards),
    )


class Rows(NamedTuple):
    """What is told of beside `off_policy_statistics`, by row ``[C, K]``; none carries a gradient.

    first: a scalar, whether the step is the first of its iteration.
    rho: ratio to the policy that acted, as the loss has it.
    normalized: advantage as in the policy's term.
    clipped: whether the ratio is outside the interval of the clip.
    logit: the largest absolute one of discrete actions; None: there are none.
    value_change: absolute difference to the value of the network that acted, and kl: from its
        policy; None: these are not recorded.
    capped: whether the KL to the uniform policy is above its cap; None: it is not in the loss.
    """

    first: Tensor
    rho: Tensor
    normalized: Tensor
    clipped: Tensor
    logit: Tensor | None
    value_change: Tensor | None
    kl: Tensor | None
    capped: Tensor | None


def statistics(
    told: Statistics, rows: Rows, valid: Tensor, count: Tensor, *, vtrace: bool
) -> Statistics:
    """`told` of `off_policy_statistics` with those of this learner.

    count: valid rows of the whole minibatch.
    vtrace: whether ratios are clipped in errors and traces.
    """

    def mean(x: Tensor) -> Tensor:
        return torch.where(valid, x.double(), 0.0).sum() / count

    def greatest_of(x: Tensor) -> Tensor:
        return torch.where(valid, x, -math.inf).max()

    means, least, greatest = dict(told.means), dict(told.least), dict(told.greatest)
    if not vtrace:
        del means["policy/rho_clip_frac"], means["policy/c_clip_frac"]
    del means["reward/mean"]  # the normalised reward's
    means["policy/clip_frac"] = mean(rows.clipped)
    ratio_error = (rows.rho - 1.0).abs()
    means["policy/ratio_mean_abs_error"] = mean(ratio_error)
    first = torch.where(rows.first, greatest_of(ratio_error), math.nan)
    greatest["policy/ratio_first_max_error"] = first
    least["advantage/normalized_min"] = -greatest_of(-rows.normalized)
    greatest["advantage/normalized_max"] = greatest_of(rows.normalized)
    if rows.logit is not None:
        greatest["policy/logit_abs_max"] = greatest_of(rows.logit)
    if rows.value_change is not None:
        means["value/change_mean"] = mean(rows.value_change)
        greatest["value/change_max"] = greatest_of(rows.value_change)
    if rows.kl is not None:
        means["policy/kl"] = mean(rows.kl)
    if rows.capped is not None:
        means["policy/uniform_kl_capped_frac"] = mean(rows.capped)
    return Statistics(means, least, greatest)


def largest_logit(params: Tensor) -> Tensor:
    """By row, of the logits that are not masked."""
    return torch.where(params > looks.MASKED, params.abs(), 0.0).amax(-1)


def finished(trained: Trained[Any, Any]) -> dict[str, float]:
    """The metrics of an interval from the statistics of its updates."""
    found = with_spreads(trained.interval.read())
    terms = [found[name] for name in LOSSES if name in found]
    if terms:
        found["loss/total_abs"] = sum(map(abs, terms))
    found["optim/second_moment_max"] = trained.memory["exp_avg_sq"].max().item()
    return found
