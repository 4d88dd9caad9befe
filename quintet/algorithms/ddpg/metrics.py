"""The metrics of DDPG, by the names of quintet.observe.metrics."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from quintet.algorithms.ddpg.config import DDPGConfig, Knobs
from quintet.algorithms.ddpg.transitions import Transitions
from quintet.algorithms.parts import diagnostics, judgements
from quintet.algorithms.parts.off_policy_statistics import critic_means, with_critic_fit
from quintet.algorithms.parts.statistics import Statistics
from quintet.protocols import Evidence, Part, Range
from quintet.types import Spaces

METRICS = (
    "loss/l2",
    "value/explained_variance",
    "value/error_frac",
    *(name for name in diagnostics.METRICS if name.startswith("normalizer/observation_")),
)
"""All metrics except the learner's own."""

_LARGEST = "q/target_abs_max"


_POLICY = (
    judgements.saturated("exploration/action_saturation_frac"),
    Evidence(
        "reference/action_std",
        "std of the policy's actions over a fixed batch",
        Range(low=0.01),
        Range(low=1e-4),
        below="it acts alike whatever it observes",
        after_updates=judgements.LEAST_UPDATES,
        needed=True,
    ),
)

_VALUES = (
    Evidence(
        "q/target_bound_frac",
        "largest target over the bound of returns",
        Range(high=1.0),
        Range(high=3.0),
        above="no return is so large, the critic and its targets drive each other up",
    ),
)


def judged(config: DDPGConfig, spaces: Spaces) -> tuple[Part, ...]:
    """Parts of the learner, each with the evidence for its state in reports."""
    gradient = judgements.gradient(config.max_grad_norm, "optim/actor_grad_norm")
    return judgements.parts((*_POLICY, *gradient), config, spaces, values=_VALUES)


def symptoms(config: DDPGConfig, _spaces: Spaces) -> tuple[Part, ...]:
    """Parts that only `quintet doctor` looks at."""
    wanted = config.noise.param
    if not wanted:
        return ()
    evidence = Evidence(
        "exploration/param_noise_distance",
        "distance of actions by parameter noise",
        Range(wanted / 3, 3 * wanted),
        Range(wanted / 10, 10 * wanted),
        below="the noise hardly changes what is done",
        above="the noise drowns the policy, and adapts too slowly",
        after_updates=20 * config.adapt_interval_updates,
    )
    return (Part("exploration", (evidence,)),)


class Outputs(NamedTuple):
    """Values of the loss of B transitions.

    losses: the weighted terms by metric's name, scalars.
    q: the critic's prediction ``[B]``, in units of the targets' standard deviation.
    target: the target of the prediction, in reward units, ``[B]``.
    action: the policy's action ``[B, A]``.
    """

    losses: dict[str, Tensor]
    q: Tensor
    target: Tensor
    action: Tensor

    @property
    def checked(self) -> dict[str, Tensor]:
        """Tensors that must be finite, in the order in which they are computed."""
        return {"q": self.q, "target": self.target, "action": self.action, **self.losses}


@torch.no_grad()
def statistics(outputs: Outputs, own: Transitions, knobs: Knobs) -> Statistics:  # noqa: ARG001
    """Statistics of a batch; with several learners, one learner's share."""
    mean, std = own.spread.unbind()
    value, target, rows = outputs.q * std + mean, outputs.target, own.windows.rows
    greatest = {_LARGEST: target.abs().max()}
    return Statistics(outputs.losses | critic_means(value, target, rows), greatest=greatest)


def finished(values: Mapping[str, float], bound: float) -> dict[str, float]:
    """The metrics of an interval from the statistics of its updates.

    bound: largest possible absolute return, in the scale of the targets; infinite without discount.
    """
    values = with_critic_fit(values)
    largest = values.pop(_LARGEST, None)
    if largest is not None and 0.0 < bound < math.inf:
        values["q/target_bound_frac"] = largest / bound
    return values
