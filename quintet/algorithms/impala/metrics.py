"""The metrics of IMPALA, by the names of quintet.observe.metrics."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from quintet.algorithms.impala.config import ImpalaConfig, Knobs
from quintet.algorithms.parts import diagnostics, judgements, policy_probe
from quintet.algorithms.parts import off_policy_statistics as off_policy
from quintet.algorithms.parts.normalizers import Normalizers
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.unrolls import Unrolls
from quintet.protocols import Part
from quintet.types import Obs, Spaces

LOSSES = ("loss/policy", "loss/value", "loss/entropy")
"""The weighted terms without the auxiliary losses, in the order of the sum."""

AUX = "loss/aux/"

METRICS = (*diagnostics.METRICS, *off_policy.METRICS, *policy_probe.VALUE_CHANGES, "loss/total_abs")
"""All metrics but the learner's own."""


def judged(config: ImpalaConfig, spaces: Spaces) -> tuple[Part, ...]:
    """Parts of the learner, each with the evidence for its state in reports."""
    policy = (
        judgements.distance("policy/approx_kl", "KL to the policy that acted", judgements.FAR),
        *judgements.gradient(config.max_grad_norm),
    )
    rewards = config.reward_normalizer != "none"
    return judgements.parts(policy, config, spaces, rewards=rewards)


class Outputs(NamedTuple):
    """Values of the loss of unrolls ``[T, B]``.

    losses: the weighted terms and their sum by metric's name, scalars.
    obs: normalised.
    """

    losses: dict[str, Tensor]
    terms: off_policy.Terms
    logp_pi: Tensor
    obs: Obs

    @property
    def checked(self) -> dict[str, Tensor]:
        """Tensors that must be finite, in the order in which they are computed."""
        terms = self.terms
        named = {"logp_pi": self.logp_pi, "value": terms.v_tm1, "target": terms.target_tm1}
        return named | self.losses


@torch.no_grad()
def statistics(
    outputs: Outputs, unrolls: Unrolls, knobs: Knobs, normalizers: Normalizers
) -> Statistics:
    """Statistics of a batch; with several learners, one learner's share."""
    valid, count = unrolls.valid, unrolls.count
    whole, bars = (count, len(valid) * unrolls.columns), (knobs.rho_bar, knobs.c_bar)
    common = off_policy.statistics(outputs.losses, outputs.terms, valid, whole, bars)
    share = normalizers.observations.clip_share(outputs.obs, valid, count)
    means = {**common.means, "normalizer/observation_clip_frac": share}
    if normalizers.rewards.kind != "none":
        del means["reward/mean"]  # the normalised reward's
    return common._replace(means=means)


def finished(values: Mapping[str, float]) -> dict[str, float]:
    """The metrics of an interval from the statistics of its updates."""
    values = off_policy.with_spreads(values)
    terms = [x for name, x in values.items() if name in LOSSES or name.startswith(AUX)]
    return values | ({"loss/total_abs": sum(map(abs, terms))} if terms else {})
