"""What ACER reports, by the names of quintet.observe.metrics."""

from collections.abc import Mapping

from quintet.algorithms.acer.config import ACERConfig
from quintet.algorithms.parts import diagnostics, judgements, looks, off_policy_statistics
from quintet.protocols import Evidence, Part, Range
from quintet.types import Spaces

MOST_KL = 1.0
"""Nats of KL to the average policy above which the policy is said to move too fast."""

REGION = (
    "trust_region/gradient_norm",
    "trust_region/gradient_norm_after",
    "trust_region/kl_gradient_norm",
    "trust_region/kl_change",
    "trust_region/adjustment",
    "trust_region/active_frac",
    "trust_region/kl_to_average",
)
"""What is told of the trust region, means over samples."""

METRICS = (
    "loss/policy",
    "loss/value",
    "loss/entropy",
    "loss/total",
    *off_policy_statistics.METRICS,
    *diagnostics.METRICS,
    *looks.DISTRIBUTION,
    *looks.CHANGES,
    *diagnostics.REWARD_METRICS,
)
"""All metrics but the learner's own."""


def judged(config: ACERConfig, spaces: Spaces) -> tuple[Part, ...]:
    """Parts of the learner, each with the evidence by which reports judge it.  Old weights acted in
    replayed rows, so a distance from those says nothing; the distance from the average policy does.
    """
    policy = (
        Evidence(
            "trust_region/kl_to_average",
            "KL to the average policy",
            Range(high=MOST_KL),
            Range(high=MOST_KL),
            above="it moves too fast, a lower learning rate slows it down",
        ),
        *judgements.gradient(config.max_grad_norm),
    )
    rewards = config.reward_normalizer != "none"
    return (
        Part(judgements.POLICY, policy),
        judgements.VALUES,
        *judgements.normalizers(config, spaces, rewards),
    )


def finished(told: Mapping[str, float], fresh: int, replayed: int) -> dict[str, float]:
    """The metrics of an interval from the statistics of its updates, of which so many were made
    from fresh batches and from replay.
    """
    found = off_policy_statistics.with_spreads(told)
    if fresh:
        found["replay/updates_per_batch"] = replayed / fresh
    return found
