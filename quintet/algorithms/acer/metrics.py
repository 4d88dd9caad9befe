"""The metrics of ACER, by the names of quintet.observe.metrics."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from quintet.algorithms.acer.config import ACERConfig, Knobs
from quintet.algorithms.acer.estimates import Estimates, Rows
from quintet.algorithms.parts import diagnostics, judgements
from quintet.algorithms.parts import off_policy_statistics as off_policy
from quintet.algorithms.parts.normalizers import Normalizers
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.unrolls import Unrolls
from quintet.ops import reduce
from quintet.protocols import Evidence, Part, Range
from quintet.types import Obs, Spaces

MOST_KL = 1.0
"""KL to the average policy, in nats, above which reports say that the policy moves too fast."""

REGION = (
    "trust_region/gradient_norm",
    "trust_region/gradient_norm_after",
    "trust_region/kl_gradient_norm",
    "trust_region/kl_change",
    "trust_region/adjustment",
    "trust_region/active_frac",
    "trust_region/kl_to_average",
)
"""Metrics of the trust region, means over samples."""

METRICS = (*diagnostics.METRICS, *off_policy.METRICS)
"""All metrics but the learner's own."""


def judged(config: ACERConfig, spaces: Spaces) -> tuple[Part, ...]:
    """Parts of the learner, each with the evidence for its state in reports.  Replayed rows were
    sampled by old weights, so the distance from these says nothing; the distance from the average
    policy does.
    """
    policy = (
        Evidence(
            "trust_region/kl_to_average",
            "KL to the average policy",
            Range(high=MOST_KL),
            Range(high=MOST_KL),
            above="it moves too fast; a lower learning rate slows it down",
        ),
        *judgements.gradient(config.max_grad_norm),
    )
    rewards = config.reward_normalizer != "none"
    return judgements.parts(policy, config, spaces, rewards=rewards)


class Region(NamedTuple):
    """The trust region by row ``[T, B, ...]``.

    g, z: the direction before and after the trust region; k: the gradient of the KL to the average
        policy.
    factor: factor of k in ``z = g - factor * k``.
    average: parameters of the average policy.
    """

    g: Tensor
    z: Tensor
    k: Tensor
    factor: Tensor
    average: Tensor


class Outputs(NamedTuple):
    """Values of the loss of unrolls ``[T, B]``.

    critic: the critic's weighted terms by name, scalars.
    z: the direction of the policy's statistics, 0 in rows that are not valid.
    region: None without a trust region.
    obs: normalised.
    """

    critic: dict[str, Tensor]
    rows: Rows
    estimates: Estimates
    z: Tensor
    region: Region | None
    obs: Obs

    @property
    def checked(self) -> dict[str, Tensor]:
        """Tensors that must be finite, in the order in which they are computed."""
        named = {"q": self.estimates.q, "target": self.estimates.target, "z": self.z}
        return named | {f"loss/{name}": x for name, x in self.critic.items()}


@torch.no_grad()
def statistics(
    outputs: Outputs, unrolls: Unrolls, knobs: Knobs, normalizers: Normalizers, dimensions: int
) -> Statistics:
    """Statistics of a batch; with several learners, one learner's share.  The policy's loss is the
    value of its objective, which differs from the value of the term in the gradient.

    dimensions: see `estimates.sampled`.
    """
    valid, count, age = unrolls.valid, unrolls.count, unrolls.record["age"]
    _, rows, estimates, _, region, obs = outputs
    entropy = rows.family.entropy(rows.pi[:-1])

    def mean(x: Tensor) -> Tensor:
        return reduce.sum_valid(x, valid) / count

    policy = mean(estimates.truncated + estimates.correction)
    bonus = -knobs.entropy_coef * mean(entropy)
    critic = {f"loss/{name}": x for name, x in outputs.critic.items()}
    total = sum(critic.values(), start=policy) + bonus
    losses = {"loss/policy": policy, **critic, "loss/entropy": bonus, "loss/total": total}
    terms = off_policy.Terms(
        entropy=entropy,
        log_rho=rows.log_rho,
        rho=rows.log_rho.exp(),
        v_tm1=estimates.q,
        target_tm1=estimates.target,
        pg_advantage_tm1=estimates.advantage,
        reward=rows.reward,
    )
    # Retrace cuts rho^(1/dimensions) at c_bar, so rho at c_bar^dimensions.
    bars = knobs.importance_clip, knobs.c_bar**dimensions
    whole = count, len(valid) * unrolls.columns
    common = off_policy.statistics(losses, terms, valid, whole=whole, bars=bars)
    means = {
        **common.means,
        "loss/policy_truncated": mean(estimates.truncated),
        "loss/policy_correction": mean(estimates.correction),
        "normalizer/observation_clip_frac": normalizers.observations.clip_share(obs, valid, count),
        "replay/age_mean": mean(age),
    }
    if region is not None:
        sums = torch.where(valid, _region_rows(rows, region), 0.0).sum((1, 2)) / count
        means |= dict(zip(REGION, sums, strict=True))
    if normalizers.rewards.kind != "none":
        del means["reward/mean"]  # the normalised reward's
    else:  # age is NaN in a fresh batch; replayed rows give no mean of the current policy
        means["reward/mean"] = torch.where(age[0, 0].isnan(), means["reward/mean"], torch.nan)
    return common._replace(means=means)


def _region_rows(rows: Rows, region: Region) -> Tensor:
    """The numbers of REGION by row ``[7, T, B]``."""
    exact = torch.stack((region.g, region.z, region.k)).double()
    norms, change = exact.square().sum(-1).sqrt(), (exact[2] * exact[0]).sum(-1)
    kl = rows.family.kl(region.average, rows.pi[:-1])
    numbers = (*norms, change, region.factor, (region.factor > 0).float(), kl)
    return torch.stack([x.double() for x in numbers])


def finished(values: Mapping[str, float], fresh: int, replayed: int) -> dict[str, float]:
    """The metrics of an interval from the statistics of its updates.

    fresh, replayed: numbers of updates from fresh batches and from replay.
    """
    values = off_policy.with_spreads(values)
    if fresh:
        values["replay/updates_per_batch"] = replayed / fresh
    return values
