"""Returns and advantages of the policy that acted: GAE, lambda-return, n-step return.

Rows are steps: ``a_tm1`` yields ``r_t``, ``discount_t`` and ``v_t``.  ``discount_t`` is 0 at a
termination.  ``not_cut_t`` is 0 at a termination or truncation; there, and in the last row, the
estimate bootstraps from ``v_t``, the value of the true next observation.  All results are detached.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from quintet.ops.scan import Steps, continues, next_row, require_same_shape, scan_back


class GaeResult(NamedTuple):
    """Result: advantage_tm1, and target_tm1, its sum with the value; both in reward units."""

    advantage_tm1: Steps
    target_tm1: Steps


@torch.no_grad()
def gae(
    r_t: Steps,
    discount_t: Steps,
    not_cut_t: Steps,
    v_tm1: Steps,
    v_t: Steps,
    *,
    lambda_: float | Tensor,
) -> GaeResult:
    """Generalised advantage estimate.

    ``delta[i] = r_t[i] + discount_t[i] * v_t[i] - v_tm1[i]``
    ``adv[i] = delta[i] + lambda_ * discount_t[i] * not_cut_t[i] * adv[i+1]``, ``adv[T] = 0``
    ``target = adv + v_tm1``

    Args:
        lambda_: in [0, 1]; 0 is the one-step error, 1 the discounted sum to the cut or the end.

    Returns: advantage and value target (the lambda-return), detached, in reward units.

    Raises:
        ValueError: the tensors are not all of one shape [T, B].

    Source: Schulman et al., arXiv 1506.02438, equation 16.  The sum stops at the end of the unroll
        and at truncations, and bootstraps there from the value of the true next state.
    """
    require_same_shape(r_t, discount_t, not_cut_t, v_tm1, v_t)
    delta = r_t + discount_t * v_t - v_tm1
    advantage = scan_back(delta, lambda_ * discount_t, continues(not_cut_t))
    return GaeResult(advantage_tm1=advantage, target_tm1=advantage + v_tm1)


@torch.no_grad()
def lambda_return(
    r_t: Steps, discount_t: Steps, not_cut_t: Steps, v_t: Steps, *, lambda_: float
) -> Steps:
    """Lambda-return: all n-step returns averaged with weights ``(1 - lambda_) * lambda_^(n-1)``.

    ``G[i] = r_t[i] + discount_t[i] * ((1 - lambda_) * v_t[i] + lambda_ * G[i+1])``, and at a cut
    and in the last row ``G[i] = r_t[i] + discount_t[i] * v_t[i]``.

    Args:
        lambda_: in [0, 1].

    Returns: target_tm1, detached, in reward units.

    Raises:
        ValueError: the tensors are not all of one shape [T, B].

    Source: Sutton and Barto, Reinforcement Learning (2nd edition), equation 12.18, with per-step
        discounts; the return bootstraps from ``v_t`` at cuts and at the end of the unroll.
    """
    require_same_shape(r_t, discount_t, not_cut_t, v_t)
    goes_on = continues(not_cut_t)
    closed = r_t + discount_t * torch.where(goes_on, (1.0 - lambda_) * v_t, v_t)
    return scan_back(closed, lambda_ * discount_t, goes_on)


@torch.no_grad()
def n_step(r_t: Steps, discount_t: Steps, not_cut_t: Steps, v_t: Steps, *, n: int | None) -> Steps:
    """n-step bootstrapped discounted return.

    ``G_1[i] = r_t[i] + discount_t[i] * v_t[i]``
    ``G_n[i] = r_t[i] + discount_t[i] * (G_(n-1)[i+1] if not_cut_t[i] and i < T-1 else v_t[i])``

    Args:
        n: number of rewards before bootstrapping, at least 1; None: all up to a cut or the end of
            the unroll.  A cut or the end stops the sum earlier, with ``v_t`` of that row.

    Returns: target_tm1, detached, in reward units.

    Raises:
        ValueError: n is below 1, or the tensors are not all of one shape [T, B].

    Source: Sutton and Barto, Reinforcement Learning (2nd edition), equation 7.1, with per-step
    discounts and cuts.
    """
    if n is not None and n < 1:
        raise ValueError(f"n must be at least 1, or None for the whole unroll, got {n}")
    require_same_shape(r_t, discount_t, not_cut_t, v_t)
    if n is None or n >= r_t.shape[0]:
        return lambda_return(r_t, discount_t, not_cut_t, v_t, lambda_=1.0)
    goes_on = continues(not_cut_t)
    target = r_t + discount_t * v_t
    for _ in range(n - 1):
        target = r_t + discount_t * torch.where(goes_on, next_row(target), v_t)
    return target
