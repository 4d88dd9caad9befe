"""Numbers that tell how a learner fares, by the names of quintet.observe.metrics."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from quintet.errors import NonFiniteError
from quintet.models.heads import PolicyHead
from quintet.models.normalize import ObservationNormalizer, RewardNormalizer, block_rows
from quintet.ops import policy_losses
from quintet.ops.distributions import (
    DiagGaussian,
    Family,
    TanhGaussian,
    TupleFamily,
    leaf_families,
)
from quintet.types import Obs, Rollout

LOSSES = (
    "loss/policy",
    "loss/value",
    "loss/entropy",
    "loss/l2",
    "loss/kl",
    "loss/kl_cutoff",
    "loss/total",
    "loss/total_abs",
)
"""The weighted terms of PPO's loss, in the order of the sum, and what becomes of them."""

LOSS_METRICS = (
    *LOSSES,
    "policy/entropy",
    "policy/kl",
    "policy/kl_cutoff_frac",
    "policy/approx_kl",
    "policy/clip_frac",
    "policy/ratio_mean",
    "policy/ratio_max_error",
    "value/prediction_mean",
)
"""What `loss_stats` gives, in this order."""

STEP_METRICS = (*LOSS_METRICS, "optim/grad_norm")
"""What is kept of every optimizer step."""


class Estimates(NamedTuple):
    """What a batch says of returns ``[T, B]``, in units of the normalised reward.

    reward: normalised.
    advantage: before normalising.
    value: what the advantage was taken against.
    """

    reward: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor


class Terms(NamedTuple):
    """What PPO's loss is the mean of, by row ``[N]``, unweighted.

    params: of the distribution, masked.
    log_rho: logp_pi - logp_mu; 0 in rows of weight 0 of a recurrent minibatch.
    advantage: as the policy term has it.
    policy, error: terms of policy and value function; `error` is half the squared error.
    """

    params: Tensor
    value: Tensor
    logp_pi: Tensor
    logp_mu: Tensor
    log_rho: Tensor
    rho: Tensor
    advantage: Tensor
    policy: Tensor
    error: Tensor
    entropy: Tensor
    kl: Tensor


def batch_metrics(batch: Rollout, use: Tensor, estimates: Estimates) -> dict[str, float]:
    """Means over the rows to `use` ``[T, B]``."""
    r_t, advantage, target, value = (x[use] for x in estimates)
    spread = target.var(correction=0)
    metrics = {
        "reward/mean": batch.reward[use].mean(),
        "reward/normalized_mean": r_t.mean(),
        "value/target_mean": target.mean(),
        "advantage/mean": advantage.mean(),
        "advantage/std": advantage.std(correction=0),
        "data/valid_frac": batch.valid.float().mean(),
    }
    if spread > 1e-12:
        metrics["value/explained_variance"] = 1.0 - (target - value).var(correction=0) / spread
    return {name: x.item() for name, x in metrics.items()}


def loss_stats(
    losses: Tensor, terms: Terms, weight: Tensor, cut_off: Tensor, clip_epsilon: float | Tensor
) -> Tensor:
    """LOSS_METRICS of a minibatch whose rows have the `weight` ``[N]``, detached.

    losses: the six weighted terms; cut_off: whether the mean KL is above the cutoff.
    """
    error = (terms.rho - 1.0).abs() * (weight > 0)
    others = (
        losses.sum(),
        losses.abs().sum(),
        torch.dot(weight, terms.entropy),
        torch.dot(weight, terms.kl),
        cut_off.float(),
        torch.dot(weight, policy_losses.approx_kl(terms.log_rho)),
        torch.dot(weight, (error > clip_epsilon).float()),
        torch.dot(weight, terms.rho),
        error.max(),
        torch.dot(weight, terms.value),
    )
    return torch.cat((losses, torch.stack(others))).detach()


def require_finite(tensors: Mapping[str, Tensor], update: int) -> None:
    """Raises NonFiniteError at the first tensor that holds a NaN or an infinity, by its name."""
    for name, x in tensors.items():
        wrong = x[~torch.isfinite(x)]
        if wrong.numel():
            raise NonFiniteError(
                f"finite numbers are required, {name} holds {wrong[0].item()} at update "
                f"{update}; lower --learning-rate or look at the rewards"
            )


def non_finite(name: str, value: float, update: int) -> str:
    """What is said of a loss or norm that became NaN or infinite."""
    return (
        f"finite losses are required, {name} became {value} at update {update}; begin anew "
        "(another --run-dir) with a lower --learning-rate or --env.reward-clip abs_one, or find "
        "the tensor with --check-numerics true"
    )


def step_means(stats: Tensor, last_epoch: int, updates: int) -> dict[str, float]:
    """Means of STEP_METRICS ``[steps, metrics]`` over an iteration's optimizer steps, those of the
    losses also over the steps from `last_epoch` on.

    updates: number of the last step in the run.

    Raises:
        NonFiniteError: names the first step and metric that are not finite.
    """
    finite = torch.isfinite(stats)
    if not finite.all():
        row, column = (~finite).nonzero()[0].tolist()
        value = stats[row, column].item()
        raise NonFiniteError(
            non_finite(STEP_METRICS[column], value, updates - len(stats) + row + 1)
        )
    metrics = dict(zip(STEP_METRICS, stats.double().mean(0).tolist(), strict=True))
    first = stats[0, STEP_METRICS.index("policy/ratio_max_error")]
    metrics["policy/ratio_first_max_error"] = first.item()
    last = stats[last_epoch:, : len(LOSSES)].double().mean(0).tolist()
    return metrics | {f"{name}_last_epoch": x for name, x in zip(LOSSES, last, strict=True)}


def observation_metrics(normalizer: ObservationNormalizer) -> dict[str, float]:
    """Ranges of the running mean and standard deviation, over all elements of all leaves."""
    if not normalizer.names:
        return {}
    moments = [normalizer.leaf_moments(name) for name in normalizer.names]
    mean = torch.cat([each.mean.flatten() for each in moments])
    std = torch.cat([each.variance.sqrt().flatten() for each in moments])
    return {
        "normalizer/observation_mean_min": mean.min().item(),
        "normalizer/observation_mean_max": mean.max().item(),
        "normalizer/observation_std_min": std.min().item(),
        "normalizer/observation_std_max": std.max().item(),
    }


def observation_clip_counts(normalizer: ObservationNormalizer, obs: Obs, use: Tensor) -> Tensor:
    """Elements of normalised leaves that lie at the clip, none before there are statistics, and all
    of them, in the rows to `use` ``[T, B]``: ``[2]``, float64.

    obs: leaves ``[T * B, ...]``, normalised; rows behind these are not read.
    """
    rows = use.flatten().nonzero().squeeze(1)
    counts = torch.zeros(2, dtype=torch.float64, device=use.device)
    for name in normalizer.names:
        x, begun = obs[name], normalizer.leaf_moments(name).count > 0
        for part in torch.split(rows, block_rows(x)):
            values = x.index_select(0, part).abs_()
            counts[0] += begun * torch.ge(values, normalizer.clip, out=values).sum()
        counts[1] += len(rows) * x[:1].numel()
    return counts


def observation_clip_metrics(counts: Tensor) -> dict[str, float]:
    """Their share; absent where there is no element."""
    outside, elements = counts.tolist()
    return {"normalizer/observation_clip_frac": outside / elements} if elements else {}


def reward_clip_metrics(rewards: RewardNormalizer, r_t: Tensor, use: Tensor) -> dict[str, float]:
    """The same of normalised rewards ``[T, B]``, where they are clipped."""
    if rewards.clip is None:
        return {}
    outside = (r_t[use].abs() >= rewards.clip) & (rewards.moments.count > 0)
    return {"normalizer/reward_clip_frac": outside.float().mean().item()}


def policy_metrics(head: PolicyHead) -> dict[str, float]:
    """Mean standard deviation of a Gaussian policy whose spread does not depend on the state."""
    if not head.gaussian or head.std == "state_dependent":
        return {}
    log = head.std == "state_independent"
    width = head.std_param.exp() if log else torch.nn.functional.softplus(head.std_param)
    return {"policy/std_mean": width.mean().item()}


def layers(
    parameters: Mapping[str, Tensor], gradient: Tensor | None
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Name, value and gradient of every parameter; `gradient` is that of all, flat, if kept."""
    if gradient is not None:
        sizes = [parameter.numel() for parameter in parameters.values()]
        parts = torch.split(gradient, sizes)
        yield from zip(parameters, parameters.values(), parts, strict=True)


def layer_metrics(parameters: Mapping[str, Tensor], gradient: Tensor | None) -> dict[str, float]:
    """Norms of each parameter and of its gradient, see `layers`."""
    metrics = {}
    for name, parameter, part in layers(parameters, gradient):
        metrics[f"grad_norm/{name}"] = part.norm().item()
        metrics[f"param_norm/{name}"] = parameter.norm().item()
    return metrics


# What follows are the values of an iteration, by row, whose distribution a report shows.


def batch_values(
    batch: Rollout, use: Tensor, estimates: Estimates, family: Family
) -> dict[str, Tensor]:
    """Of the data: observations and actions by leaf, rewards, advantages, value targets."""
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
    terms: Terms, target: Tensor, use: Tensor, family: Family, clip_epsilon: float | None
) -> dict[str, Tensor]:
    """Of the loss, over the rows to `use` ``[N]``: log-probabilities, ratios, objectives, values.

    clip_epsilon: in force; without a clip, what it would change is left out.
    """
    rho, advantage = terms.rho, terms.advantage
    values = {
        "advantage_normalized": advantage,
        "value_prediction": terms.value,
        "value_error": target - terms.value,
        "logp_mu": terms.logp_mu,
        "logp_pi": terms.logp_pi,
        "ratio": rho,
        "objective": rho * advantage,
        "entropy": terms.entropy,
        "kl": terms.kl,
        "loss_policy": terms.policy,
        "loss_value": terms.error,
    }
    if clip_epsilon is not None:
        clipped = rho.clamp(1.0 - clip_epsilon, 1.0 + clip_epsilon)
        values["ratio_clipped"] = clipped
        values["objective_clipped"] = clipped * advantage
        values["objective_minimum"] = torch.minimum(rho * advantage, clipped * advantage)
    leaves = leaf_families(family)
    split = torch.split(terms.params, [leaf.param_size for leaf in leaves], -1)
    for number, (leaf, params) in enumerate(zip(leaves, split, strict=True)):
        if isinstance(leaf, DiagGaussian | TanhGaussian):
            place = "" if len(leaves) == 1 else f"/{number}"
            values[f"action_mean{place}"] = leaf.mode(params)
            values[f"action_std{place}"] = params[:, leaf.size :].exp()
    return {name: x[use] for name, x in values.items()}
