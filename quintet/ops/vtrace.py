"""V-trace: value targets and policy-gradient advantages from unrolls of an older policy."""

from typing import NamedTuple

import torch

from quintet.ops.adam import Scalar
from quintet.ops.scan import Steps, continues, next_row, require_same_shape, scan_back


class VTraceResult(NamedTuple):
    """Result: target_tm1 for the value and pg_advantage_tm1 for the policy, both in reward units.

    The advantage is already multiplied by the clipped ratio.
    """

    target_tm1: Steps
    pg_advantage_tm1: Steps


def _clip(rho_tm1: Steps, bar: Scalar | None) -> Steps:
    return rho_tm1 if bar is None else rho_tm1.clamp(max=bar)


@torch.no_grad()
def vtrace(
    v_tm1: Steps,
    v_t: Steps,
    r_t: Steps,
    discount_t: Steps,
    not_cut_t: Steps,
    rho_tm1: Steps,
    *,
    rho_bar: Scalar | None,
    c_bar: Scalar | None,
    pg_rho_bar: Scalar | None,
    lambda_: Scalar,
) -> VTraceResult:
    """V-trace targets and advantages.

    ``delta = min(rho_bar, rho_tm1) * (r_t + discount_t * v_t - v_tm1)``
    ``c_tm1 = lambda_ * min(c_bar, rho_tm1)``
    ``acc[i] = delta[i] + discount_t[i] * not_cut_t[i] * c_tm1[i] * acc[i+1]``, ``acc[T] = 0``
    ``target_tm1 = v_tm1 + acc``
    ``next[i] = target_tm1[i+1] if not_cut_t[i] and i < T-1 else v_t[i]``
    ``pg_advantage_tm1 = min(pg_rho_bar, rho_tm1) * (r_t + discount_t * next - v_tm1)``

    Args:
        rho_tm1: ratio pi / mu of the action taken, unclipped.
        rho_bar, c_bar, pg_rho_bar: caps of the ratio in the error, in the trace and in the
            advantage; None or infinity: no cap.
        lambda_: in [0, 1].

    Returns: target and advantage, detached, in reward units.

    Raises:
        ValueError: the tensors are not all of one shape [T, B].

    Source: Espeholt et al., arXiv 1802.01561, equation 1 and section 4.2; lambda_ is from remark 2.
    Truncations bootstrap from the true next state (the paper's code has only terminations); the
    advantage there also uses ``v_t``, since the next row belongs to another episode.
    """
    require_same_shape(v_tm1, v_t, r_t, discount_t, not_cut_t, rho_tm1)
    delta = _clip(rho_tm1, rho_bar) * (r_t + discount_t * v_t - v_tm1)
    c_tm1 = lambda_ * _clip(rho_tm1, c_bar)
    target_tm1 = v_tm1 + scan_back(delta, discount_t * c_tm1, continues(not_cut_t))
    advantage_tm1 = advantage(v_tm1, v_t, r_t, discount_t, not_cut_t, target_tm1)
    return VTraceResult(target_tm1, _clip(rho_tm1, pg_rho_bar) * advantage_tm1)


@torch.no_grad()
def advantage(
    v_tm1: Steps, v_t: Steps, r_t: Steps, discount_t: Steps, not_cut_t: Steps, target_tm1: Steps
) -> Steps:
    """V-trace's advantage before it is multiplied by a ratio.

    ``r_t + discount_t * next - v_tm1``, with ``next`` as in `vtrace`.

    Args:
        target_tm1: of `vtrace`.

    Returns: detached, in reward units.
    """
    next_target = torch.where(continues(not_cut_t), next_row(target_tm1), v_t)
    return r_t + discount_t * next_target - v_tm1
