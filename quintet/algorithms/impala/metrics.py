"""The metrics of IMPALA, by the names of quintet.observe.metrics."""

from collections.abc import Mapping

from quintet.algorithms.impala.config import ImpalaConfig
from quintet.algorithms.parts import diagnostics, judgements, looks, off_policy_statistics
from quintet.protocols import Part
from quintet.types import Spaces

LOSSES = ("loss/policy", "loss/value", "loss/entropy")
"""The weighted terms without auxiliary ones, in the order of the sum."""

AUX = "loss/aux/"

METRICS = (
    *LOSSES,
    "loss/total",
    "loss/total_abs",
    *off_policy_statistics.METRICS,
    *diagnostics.METRICS,
    *looks.DISTRIBUTION,
    *looks.CHANGES,
    *looks.VALUE_CHANGES,
    *diagnostics.REWARD_METRICS,
)
"""All metrics but the learner's own."""


def judged(config: ImpalaConfig, spaces: Spaces) -> tuple[Part, ...]:
    """Parts of the learner, each with the evidence by which reports judge it."""
    policy = (
        judgements.distance("policy/approx_kl", "KL to the policy that acted", judgements.FAR),
        *judgements.gradient(config.max_grad_norm),
    )
    rewards = config.reward_normalizer != "none"
    return (
        Part(judgements.POLICY, policy),
        judgements.VALUES,
        *judgements.normalizers(config, spaces, rewards),
    )


def finished(told: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an interval from the statistics of its updates."""
    found = off_policy_statistics.with_spreads(told)
    terms = [x for name, x in found.items() if name in LOSSES or name.startswith(AUX)]
    return found | ({"loss/total_abs": sum(map(abs, terms))} if terms else {})
