"""The metrics of APPO, by the names of quintet.observe.metrics."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quintet.algorithms.appo.chunks import Minibatch
from quintet.algorithms.appo.config import APPOConfig, Knobs
from quintet.algorithms.parts import diagnostics, judgements, policy_probe
from quintet.algorithms.parts import off_policy_statistics as off_policy
from quintet.algorithms.parts.normalizers import Normalizers
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import Trained
from quintet.ops.distributions import Family, leaf_families
from quintet.ops.gaussian import DiagGaussian
from quintet.protocols import Part
from quintet.types import Obs, Spaces

LOSSES = ("loss/policy", "loss/value", "loss/entropy", "loss/uniform_kl", "loss/kl")
"""The weighted terms, in the order of the sum."""

MOST_UNIFORM_KL = 30.0
"""Largest symmetric KL of a row to the uniform policy, in nats; no gradient flows above it."""

ACTOR_LOSSES = "loss/policy", "loss/entropy", "loss/uniform_kl"
"""Terms whose sum ends the passes when it hardly changes."""

METRICS = (
    *diagnostics.METRICS,
    *off_policy.METRICS,
    *policy_probe.VALUE_CHANGES,
    "loss/kl",
    "loss/total_abs",
    "policy/clip_frac",
    "policy/ratio_first_max_error",
    "optim/epochs",
)
"""All metrics but the learner's own."""


def judged(config: APPOConfig, spaces: Spaces) -> tuple[Part, ...]:
    """Parts of the learner, each with the evidence for its state in reports."""
    policy = (
        judgements.distance("policy/approx_kl", "KL to the policy that acted", judgements.FAR),
        judgements.clipped(judgements.MANY_CLIPPED),
        *judgements.gradient(config.max_grad_norm),
    )
    rewards = config.reward_normalizer != "none"
    return judgements.parts(policy, config, spaces, rewards=rewards)


class Forward(NamedTuple):
    """The network's outputs on C rows of K chunks.

    params: parameters of the distribution, masked, ``[C, K, P]``.
    v_tm1, v_t: values of the rows and, for V-trace, of the next rows, ``[C, K]``.
    logp_pi, log_rho: the action's log-probability, and its log-ratio to the policy that acted.
    obs: the network's input, normalised ``[C * K, ...]``, with V-trace also of the rows after the
        chunks.
    """

    params: Tensor
    v_tm1: Tensor
    v_t: Tensor
    logp_pi: Tensor
    log_rho: Tensor
    obs: Obs


class Outputs(NamedTuple):
    """Values of the loss, by row ``[C, K]``.

    losses: the weighted terms of the loss and their sum by metric's name, scalars.
    target, advantage: in reward units; normalized: the advantage in the policy's term.
    uniform_kl: symmetric KL to the uniform policy; None: it is not in the loss.
    """

    losses: dict[str, Tensor]
    forward: Forward
    target: Tensor
    advantage: Tensor
    normalized: Tensor
    entropy: Tensor
    uniform_kl: Tensor | None

    @property
    def checked(self) -> dict[str, Tensor]:
        """Tensors that must be finite, in the order in which they are computed."""
        forward = self.forward
        named = {"logp_pi": forward.logp_pi, "value": forward.v_tm1, "target": self.target}
        return named | self.losses


@torch.no_grad()
def statistics(
    outputs: Outputs,
    minibatch: Minibatch,
    knobs: Knobs,
    config: APPOConfig,
    family: Family,
    normalizers: Normalizers,
) -> Statistics:
    """Statistics of a minibatch; with several learners, one learner's share."""
    forward, chunks, count = outputs.forward, minibatch.chunks, minibatch.count
    valid, record, log_rho = chunks.valid, chunks.record, forward.log_rho
    rho = log_rho.exp()

    def mean(x: Tensor) -> Tensor:
        return torch.where(valid, x.double(), 0.0).sum() / count

    def greatest_of(x: Tensor) -> Tensor:
        return torch.where(valid, x, -math.inf).max()

    values = forward.v_tm1, outputs.target, outputs.advantage
    common = off_policy.statistics(
        outputs.losses,
        off_policy.Terms(outputs.entropy, log_rho, rho, *values, chunks.reward),
        valid,
        (count, minibatch.rows),
        (knobs.rho_bar, knobs.c_bar),
    )
    means, least, greatest = dict(common.means), dict(common.least), dict(common.greatest)
    share = normalizers.observations.clip_share(forward.obs, valid, count)
    means["normalizer/observation_clip_frac"] = share
    if not config.use_vtrace:
        del means["policy/rho_clip_frac"], means["policy/c_clip_frac"]
    del means["reward/mean"]  # the normalised reward's
    bound = torch.log1p(torch.as_tensor(knobs.clip_epsilon))
    means["policy/clip_frac"] = mean(log_rho.abs() > bound)
    ratio_error = (rho - 1.0).abs()
    means["policy/ratio_mean_abs_error"] = mean(ratio_error)
    of_first = torch.as_tensor(knobs.first) > 0  # the step is the first of its iteration
    first = torch.where(of_first, greatest_of(ratio_error), math.nan)
    greatest["policy/ratio_first_max_error"] = first
    least["advantage/normalized_min"] = -greatest_of(-outputs.normalized)
    greatest["advantage/normalized_max"] = greatest_of(outputs.normalized)
    if not any(isinstance(leaf, DiagGaussian) for leaf in leaf_families(family)):
        allowed = torch.where(forward.params > policy_probe.MASKED, forward.params.abs(), 0.0)
        greatest["policy/logit_abs_max"] = greatest_of(allowed.amax(-1))
    if "value" in record:
        change = (forward.v_tm1 - record["value"]).abs()
        means["value/change_mean"], greatest["value/change_max"] = mean(change), greatest_of(change)
    if config.kl_coef > 0:
        means["policy/kl"] = mean(family.kl(record["params_mu"], forward.params))
    if outputs.uniform_kl is not None:
        means["policy/uniform_kl_capped_frac"] = mean(outputs.uniform_kl > MOST_UNIFORM_KL)
    return Statistics(means, least, greatest)


def finished(trained: Trained[Any, Any]) -> dict[str, float]:
    """The metrics of an interval from the statistics of its updates."""
    values = off_policy.with_spreads(trained.interval.read())
    terms = [values[name] for name in LOSSES if name in values]
    if terms:
        values["loss/total_abs"] = sum(map(abs, terms))
    values["optim/second_moment_max"] = trained.memory["exp_avg_sq"].max().item()
    return values
