"""Estimates of ACER from the critic's values: targets, and the policy's direction.

`summed` is for Discrete actions, where the values of all actions are known; `sampled` estimates
expectations from samples, for all other spaces.  Both follow Wang et al., arXiv 1611.01224:
sections 3.2 and 5.2.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from quintet.algorithms.acer.config import Knobs
from quintet.ops import policy_losses, policy_statistics, value_losses
from quintet.ops.distributions import Family
from quintet.ops.retrace import retrace


class Rows(NamedTuple):
    """The rows that both forms read, ``[T, B, ...]``.

    pi: parameters of the policy, rows 0 to T, with their gradient; mu: of the policy that acted.
    action: a harmless action in invalid rows; log_rho: log of the action's ratio, 0 in these rows.
    learn_std: see `policy_statistics`.
    """

    family: Family
    pi: Tensor
    mu: Tensor
    action: Tensor
    log_rho: Tensor
    reward: Tensor
    discount_t: Tensor
    not_cut_t: Tensor
    learn_std: bool


class Estimates(NamedTuple):
    """Values of actions, and the direction of the policy's gradient, by row ``[T, B]``.

    f: the policy's statistics, with their gradient; g: the direction in which the policy's terms
        move f, ``[T, B, S]``.
    truncated, correction: the policy's two terms, whose negative gradient at f is g.
    q, target, advantage: of the action taken.
    errors: half the squared errors of the critic, by name, with their gradient.
    """

    f: Tensor
    g: Tensor
    truncated: Tensor
    correction: Tensor
    q: Tensor
    target: Tensor
    advantage: Tensor
    errors: dict[str, Tensor]


def summed(rows: Rows, values: Tensor, knobs: Knobs) -> Estimates:
    """Estimates where the values of all actions are known, ``[T + 1, B, A]``."""
    family, clip, rho = rows.family, knobs.importance_clip, rows.log_rho.exp()
    f = policy_statistics.statistics(family, rows.pi, learn_std=False)
    v = (f * values).sum(-1).detach()
    taken = rows.action.unsqueeze(-1)
    q = values[:-1].gather(-1, taken).squeeze(-1)
    known = (q.detach(), v[1:], rows.reward, rows.discount_t, rows.not_cut_t)
    target = retrace(*known, rho, c_bar=knobs.c_bar, lambda_=knobs.retrace_lambda)

    f, pi = f[:-1], rows.pi[:-1].detach()
    log_pi = pi.log_softmax(-1)
    advantage = target - v[:-1]
    weight = _at_most(rho, clip) * advantage
    slope = policy_statistics.score(family, pi, rows.action, learn_std=False)
    rho_all = (log_pi - rows.mu.log_softmax(-1)).exp()
    correction = policy_losses.correction_weight(rho_all, clip)
    correction = correction * (values[:-1].detach() - v[:-1].unsqueeze(-1))
    correction = torch.where(f > 0, correction, 0.0)  # the ratio of what is masked means nothing
    return Estimates(
        f=f,
        g=weight.unsqueeze(-1) * slope + correction,
        truncated=-log_pi.gather(-1, taken).squeeze(-1) * weight,
        correction=-(log_pi * f.detach() * correction).sum(-1),
        q=q,
        target=target,
        advantage=advantage,
        errors={"q": value_losses.squared(q, target)},
    )


def sampled(
    rows: Rows, drawn: Tensor, v: Tensor, advantages: Tensor, knobs: Knobs, dimensions: int
) -> Estimates:
    """Estimates by a stochastic dueling network, where actions are too many for a sum over all
    (section 5 of the paper).

    drawn: an action sampled from the policy, ``[T, B, ...]``.
    v: ``[T + 1, B]``.
    advantages: of the action taken, of `drawn`, and of the n actions in the mean,
        ``[T, B, 2 + n]``.
    dimensions: d; traces use rho ** (1/d), which vanish less fast in many dimensions.
    """
    family, clip, rho = rows.family, knobs.importance_clip, rows.log_rho.exp()
    pi = rows.pi[:-1].detach()
    baseline = v[:-1] - advantages[..., 2:].mean(-1)
    q = baseline + advantages[..., 0]
    q_drawn = (baseline + advantages[..., 1]).detach()
    value, v_t = v[:-1].detach(), v[1:].detach()
    known = (q.detach(), v_t, rows.reward, rows.discount_t, rows.not_cut_t)
    root = rho ** (1.0 / dimensions)
    target = retrace(*known, root, c_bar=knobs.c_bar, lambda_=knobs.retrace_lambda)
    # Q_opc - V: traces of 1, without truncated importance ratios.
    advantage = retrace(*known, torch.ones_like(rho), c_bar=None, lambda_=1.0) - value

    weight = _at_most(rho, clip) * advantage
    logp_drawn = family.log_prob(pi, drawn)
    rho_drawn = (logp_drawn - family.log_prob(rows.mu, drawn)).exp()
    correction = policy_losses.correction_weight(rho_drawn, clip) * (q_drawn - value)
    slope, slope_drawn = (
        policy_statistics.score(family, pi, action, learn_std=rows.learn_std)
        for action in (rows.action, drawn)
    )
    v_target = value + rho.clamp(max=1.0) * (target - q.detach())
    return Estimates(
        f=policy_statistics.statistics(family, rows.pi[:-1], learn_std=rows.learn_std),
        g=weight.unsqueeze(-1) * slope + correction.unsqueeze(-1) * slope_drawn,
        truncated=-family.log_prob(pi, rows.action) * weight,
        correction=-logp_drawn * correction,
        q=q,
        target=target,
        advantage=advantage,
        errors={
            "q": value_losses.squared(q, target),
            "value": value_losses.squared(v[:-1], v_target),
        },
    )


def _at_most(rho: Tensor, clip: float | Tensor) -> Tensor:
    return torch.minimum(rho, torch.as_tensor(clip, dtype=rho.dtype, device=rho.device))
