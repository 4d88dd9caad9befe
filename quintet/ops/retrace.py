"""Retrace: targets of the action value from unrolls of another policy."""

import torch

from quintet.ops.adam import Scalar
from quintet.ops.scan import Steps, continues, next_row, require_same_shape, scan_back


@torch.no_grad()
def retrace(
    q_a_tm1: Steps,
    v_t: Steps,
    r_t: Steps,
    discount_t: Steps,
    not_cut_t: Steps,
    rho_tm1: Steps,
    *,
    c_bar: Scalar | None,
    lambda_: Scalar,
) -> Steps:
    """Retrace targets of the action taken.

    ``w = lambda_ * min(c_bar, rho_tm1)``
    ``target[i] = r_t[i] + discount_t[i] *
    (v_t[i] + not_cut_t[i] * w[i+1] * (target[i+1] - q_a_tm1[i+1]))``, and in the last row
    ``target[i] = r_t[i] + discount_t[i] * v_t[i]``.

    Note the rows: the trace in row i uses the ratio and the q of row i+1, the ratio of row 0 is
        never used, and ``v_t[i]`` is the expectation of q under pi in the *next* state.

    Args:
        q_a_tm1: q of the action taken.
        v_t: expectation of q under pi in the true next state.
        rho_tm1: ratio pi / mu of the action taken, unclipped.
        c_bar: cap of the ratio in the trace; None: no cap.
        lambda_: in [0, 1].

    Returns: target_tm1, detached, in reward units.

    Raises:
        ValueError: the tensors are not all of one shape [T, B].

    Source: Munos et al., arXiv 1606.02647, equation 4, in the recursive form of arXiv 1611.01224,
    equation 5.  Truncations bootstrap from the true next state.
    """
    require_same_shape(q_a_tm1, v_t, r_t, discount_t, not_cut_t, rho_tm1)
    w = lambda_ * (rho_tm1 if c_bar is None else rho_tm1.clamp(max=c_bar))
    # The recursion in target - q has the form of the others, with the weight of the next row.
    error = r_t + discount_t * v_t - q_a_tm1
    return q_a_tm1 + scan_back(error, discount_t * next_row(w), continues(not_cut_t))
