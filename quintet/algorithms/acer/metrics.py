"""What ACER reports, by the names of quintet.observe.metrics."""

from collections.abc import Mapping

from quintet.algorithms.parts import diagnostics, off_policy_statistics

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
    "loss/policy_truncated",
    "loss/policy_correction",
    "loss/q",
    "loss/value",
    "loss/entropy",
    "loss/total",
    *off_policy_statistics.METRICS,
    *REGION,
    "replay/age_mean",
    "replay/updates_per_batch",
    *diagnostics.METRICS,
    *diagnostics.REWARD_METRICS,
)
"""All that it may report."""


def finished(told: Mapping[str, float], fresh: int, replayed: int) -> dict[str, float]:
    """The metrics of an interval from the statistics of its updates, of which so many were made
    from fresh batches and from replay.
    """
    found = off_policy_statistics.with_spreads(told)
    if fresh:
        found["replay/updates_per_batch"] = replayed / fresh
    return found
