"""The metrics of IMPALA, by the names of quintet.observe.metrics."""

from collections.abc import Mapping

from quintet.algorithms.parts import diagnostics, off_policy_statistics

LOSSES = ("loss/policy", "loss/value", "loss/entropy")
"""The weighted terms without auxiliary ones, in the order of the sum."""

AUX = "loss/aux/"

METRICS = (
    *LOSSES,
    AUX,
    "loss/total",
    "loss/total_abs",
    *off_policy_statistics.METRICS,
    *diagnostics.METRICS,
    *diagnostics.REWARD_METRICS,
)
"""All metrics; `/` at the end stands for every name that begins so."""


def finished(told: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an interval from the statistics of its updates."""
    found = off_policy_statistics.with_spreads(told)
    terms = [x for name, x in found.items() if name in LOSSES or name.startswith(AUX)]
    return found | ({"loss/total_abs": sum(map(abs, terms))} if terms else {})
