"""The metrics of PPO, by the names of quintet.observe.metrics."""

import math
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from quintet.algorithms.parts import diagnostics, judgements, policy_probe
from quintet.algorithms.parts.minibatches import Minibatch, Rows
from quintet.algorithms.parts.normalizers import Normalizers
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import Trained
from quintet.algorithms.ppo.config import Knobs, PPOConfig
from quintet.ops import policy_losses
from quintet.ops.distributions import Family, TupleFamily, leaf_families
from quintet.ops.gaussian import DiagGaussian
from quintet.protocols import Evidence, Part, Range
from quintet.system.transfer import Use
from quintet.types import Obs, Rollout, Spaces

LOSSES = tuple(f"loss/{x}" for x in ("policy", "value", "entropy", "l2", "kl", "kl_cutoff"))
"""The weighted terms, in the order of the sum; one with a coefficient of 0 is 0."""

TOTAL = "loss/total"

MIN_KL = 1e-5
"""Smallest KL, in nats, of an iteration with at least a twentieth of the first learning rate."""

METRICS = (
    *diagnostics.METRICS,
    *policy_probe.VALUE_CHANGES,
    "loss/l2",
    "loss/kl",
    "loss/total_abs",
    "policy/clip_frac",
    "policy/ratio_first_max_error",
    "optim/epochs",
)
"""All metrics but the learner's own."""


def judged(config: PPOConfig, spaces: Spaces) -> tuple[Part, ...]:
    """Parts of the learner, each with the evidence for its state in reports."""
    slow = Evidence(
        "policy/kl",
        "KL",
        Range(low=MIN_KL),
        below="it has hardly moved",
        given=("optim/learning_rate", Range(low=0.05 * config.learning_rate)),
    )
    policy = (
        judgements.distance("policy/kl", "KL")._replace(needed=True),
        slow,
        judgements.clipped(),
        *judgements.gradient(config.max_grad_norm),
    )
    rewards = config.reward_normalizer != "none"
    return judgements.parts(policy, config, spaces, rewards=rewards)


class Estimates(NamedTuple):
    """Estimates from a batch ``[T, B]``, in units of the normalised reward.

    reward: normalised.
    advantage: before normalising.
    value: the baseline of the advantage.
    """

    reward: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor


class Outputs(NamedTuple):
    """Values of the loss of N rows, ``[N]`` except for the first two.

    losses: the weighted terms and their sum, scalars.
    cutoff_kl: the mean KL of the cutoff's term, a scalar; None: there is no such term.
    params: parameters of the distribution, masked, ``[N, P]``.
    log_rho: logp_pi - logp_mu; 0 in rows of weight 0 of a recurrent minibatch.
    policy, error: terms of policy and value function; `error` is half the squared error.
    """

    losses: tuple[Tensor, ...]
    cutoff_kl: Tensor | None
    params: Tensor
    value: Tensor
    logp_pi: Tensor
    logp_mu: Tensor
    log_rho: Tensor
    rho: Tensor
    policy: Tensor
    error: Tensor
    entropy: Tensor
    kl: Tensor

    @property
    def checked(self) -> dict[str, Tensor]:
        """Tensors that must be finite, in the order in which they are computed."""
        named = {"logp_pi": self.logp_pi, "rho": self.rho, "value": self.value}
        return named | dict(zip((*LOSSES, TOTAL), self.losses, strict=True))


@torch.no_grad()
def statistics(outputs: Outputs, minibatch: Minibatch, knobs: Knobs) -> Statistics:
    """Statistics of a minibatch; with several learners, one learner's share."""
    weight = minibatch.weight
    error = (outputs.rho - 1.0).abs() * (weight > 0)
    means = dict(zip((*LOSSES, TOTAL), outputs.losses, strict=True)) | {
        "policy/entropy": torch.dot(weight, outputs.entropy),
        "policy/kl": torch.dot(weight, outputs.kl),
        "policy/approx_kl": torch.dot(weight, policy_losses.approx_kl(outputs.log_rho)),
        "policy/clip_frac": torch.dot(weight, (error > knobs.clip_epsilon).float()),
        "policy/ratio_mean": torch.dot(weight, outputs.rho),
        "value/prediction_mean": torch.dot(weight, outputs.value),
    }
    if outputs.cutoff_kl is not None:
        above = outputs.cutoff_kl > knobs.kl_cutoff_factor * knobs.kl_target
        means["policy/kl_cutoff_frac"] = above.float()
    return Statistics(means, greatest={"policy/ratio_max_error": error.max()})


def _batch_statistics(batch: Rollout, use: Use, estimates: Estimates) -> Statistics:
    """Means over the rows to `use`."""
    r_t, advantage, target, value = map(use.take, estimates)
    spread = target.var(correction=0)
    explained = 1.0 - (target - value).var(correction=0) / spread
    squares = target.square().mean()
    missed = (target - value).square().mean() / squares
    return Statistics(
        {
            "reward/mean": use.take(batch.reward).mean(),
            "reward/normalized_mean": r_t.mean(),
            "value/target_mean": target.mean(),
            "advantage/mean": advantage.mean(),
            "advantage/std": advantage.std(correction=0),
            "data/valid_frac": batch.valid.float().mean(),
            "value/explained_variance": torch.where(spread > 1e-12, explained, math.nan),
            "value/error_frac": torch.where(squares > 1e-12, missed, math.nan),
        }
    )


@final
class Reports:
    """Collects the statistics of iterations and of their steps."""

    def __init__(self, trained: Trained[Any, Any], normalizers: Normalizers):
        self.trained, self.normalizers = trained, normalizers
        self.distributions: dict[str, Tensor] = {}

    def iteration(
        self, batch: Rollout, use: Use, obs: Obs, estimates: Estimates, last_epoch: int
    ) -> None:
        """Adds an iteration and folds its steps.

        use: rows that are learned from.
        obs: normalised.
        last_epoch: step at which the last epoch began.
        """
        trained, interval = self.trained, self.trained.interval
        interval.add(_batch_statistics(batch, use, estimates))
        rewards = self.normalizers.rewards
        share = self.normalizers.observations.clip_share(obs, use.mask, use.mask.sum())
        clipped = {"normalizer/observation_clip_frac": share}
        if rewards.clip is not None:
            outside = (use.take(estimates.reward).abs() >= rewards.clip).float().mean()
            clipped["normalizer/reward_clip_frac"] = outside * (rewards.moments.count > 0)
        last = trained.recent(last_epoch)
        of_last = {f"{name}_last_epoch": last[name] for name in (*LOSSES, TOTAL)}
        first = trained.recent(0, 1)["policy/ratio_max_error"]
        greatest = {"policy/ratio_first_max_error": first}
        interval.add(Statistics(clipped | of_last, greatest=greatest))
        trained.end_update()

    def read(self) -> dict[str, float]:
        """The metrics of all iterations since the last call."""
        self.trained.fold()
        values = self.trained.interval.read()
        if LOSSES[0] in values:
            values["loss/total_abs"] = sum(abs(values[name]) for name in LOSSES)
        values |= self.normalizers.metrics()
        trained = self.trained
        for name, parameter, gradient in diagnostics.layers(trained.parameters, trained.gradient):
            values[f"grad_norm/{name}"] = gradient.norm().item()
            values[f"param_norm/{name}"] = parameter.norm().item()
        return values

    def histograms(self) -> dict[str, Tensor]:
        """Distributions of the last iteration, of each parameter and of its gradient."""
        values, trained = dict(self.distributions), self.trained
        for name, parameter, gradient in diagnostics.layers(trained.parameters, trained.gradient):
            values[f"parameter/{name}"] = parameter
            values[f"gradient/{name}"] = gradient
        return {f"histogram/{name}": x.detach().flatten().cpu() for name, x in values.items()}


# The values of an iteration, by row, for histograms


def batch_values(
    batch: Rollout, use: Tensor, estimates: Estimates, family: Family
) -> dict[str, Tensor]:
    """Values of the data: observations and actions by leaf, rewards, advantages, value targets."""
    action = batch.action[use]
    actions = family.unpack(action) if isinstance(family, TupleFamily) else (action,)
    names = ["action"] if len(actions) == 1 else [f"action/{k}" for k in range(len(actions))]
    return {
        **{f"observation/{name}": x[:-1][use] for name, x in batch.obs.items()},
        **dict(zip(names, actions, strict=True)),
        "reward": batch.reward[use],
        "reward_normalized": estimates.reward[use],
        "advantage": estimates.advantage[use],
        "value_target": estimates.target[use],
    }


def loss_values(
    outputs: Outputs, rows: Rows, use: Tensor, family: Family, clip_epsilon: float | None
) -> dict[str, Tensor]:
    """Values of the loss in the rows to `use` ``[N]``: log-probabilities, ratios, objectives and
    more.

    clip_epsilon: None leaves out the clipped values.
    """
    rho, advantage = outputs.rho, rows.advantage
    values = {
        "advantage_normalized": advantage,
        "value_prediction": outputs.value,
        "value_error": rows.target - outputs.value,
        "logp_mu": outputs.logp_mu,
        "logp_pi": outputs.logp_pi,
        "ratio": rho,
        "objective": rho * advantage,
        "entropy": outputs.entropy,
        "kl": outputs.kl,
        "loss_policy": outputs.policy,
        "loss_value": outputs.error,
    }
    if clip_epsilon is not None:
        clipped = rho.clamp(1.0 - clip_epsilon, 1.0 + clip_epsilon)
        values["ratio_clipped"] = clipped
        values["objective_clipped"] = clipped * advantage
        values["objective_minimum"] = torch.minimum(rho * advantage, clipped * advantage)
    leaves = leaf_families(family)
    split = torch.split(outputs.params, [leaf.param_size for leaf in leaves], -1)
    for number, (leaf, params) in enumerate(zip(leaves, split, strict=True)):
        if isinstance(leaf, DiagGaussian):
            place = "" if len(leaves) == 1 else f"/{number}"
            values[f"action_mean{place}"] = leaf.mode(params)
            values[f"action_std{place}"] = params[:, leaf.size :].exp()
    return {name: x[use] for name, x in values.items()}
