"""The metrics of SAC, by the names of quintet.observe.metrics."""

from typing import NamedTuple

import torch
from torch import Tensor

from quintet.algorithms.parts import diagnostics, judgements
from quintet.algorithms.parts.off_policy_statistics import critic_means
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.windows import Windows
from quintet.protocols import Part
from quintet.types import Spaces
from quintet_sac.config import Knobs, SACConfig

METRICS = (
    "loss/policy",
    "policy/entropy",
    "value/explained_variance",
    "value/error_frac",
    *(name for name in diagnostics.METRICS if name.startswith("normalizer/observation_")),
)
"""All metrics except the learner's own."""

SATURATED = 0.99
"""Fraction of half the action range beyond which tanh has almost no gradient."""


def judged(config: SACConfig, spaces: Spaces) -> tuple[Part, ...]:
    """Parts of the learner, each with the evidence for its state in reports."""
    at_bounds = judgements.saturated("policy/action_saturation_frac", needed=True)
    gradient = judgements.gradient(config.max_grad_norm, "optim/actor_grad_norm")
    return judgements.parts((at_bounds, *gradient), config, spaces)


class Samples(NamedTuple):
    """This learner's share of a batch.

    windows: their record has the ``noise`` of the policy's action in row 0 and of its actions in
        rows 1 to T, ``[T, B, 2, A]``.
    learns_policy: whether the step also updates policy and temperature.
    """

    windows: Windows
    learns_policy: bool


class Outputs(NamedTuple):
    """Values of the loss.

    losses: terms by metric's name, scalars.
    q, target: the first critic's prediction and its target, in scaled reward units ``[B]``.
    log_prob, action: of the policy's actions, ``[B]`` and ``[B, A]``; None in steps that skip it.
    temperature: a scalar.
    """

    losses: dict[str, Tensor]
    q: Tensor
    target: Tensor
    log_prob: Tensor | None
    action: Tensor | None
    temperature: Tensor

    @property
    def checked(self) -> dict[str, Tensor]:
        """Tensors that must be finite, in the order in which they are computed."""
        action = {} if self.action is None else {"action": self.action}
        return {"target": self.target, "q": self.q, **action, **self.losses}


@torch.no_grad()
def statistics(outputs: Outputs, samples: Samples, knobs: Knobs) -> Statistics:  # noqa: ARG001
    """Statistics of a batch; with several learners, one learner's share."""
    q, target, whole = outputs.q, outputs.target, samples.windows.rows
    share = len(q) / whole
    means = {"policy/temperature": outputs.temperature * share}
    if outputs.log_prob is not None and outputs.action is not None:
        means["policy/entropy"] = -outputs.log_prob.sum() / whole
        bound = (outputs.action.abs() > SATURATED).float().mean()
        means["policy/action_saturation_frac"] = bound * share
    return Statistics(outputs.losses | means | critic_means(q, target, whole))
