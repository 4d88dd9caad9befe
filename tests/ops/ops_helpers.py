"""Random unrolls, and the estimators as explicit double sums in plain Python numbers.

The sums are written from the papers: for every start row i, over every later row k of the same
episode, the product of all factors between them.  None of them is a recursion.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.testing import assert_close

Table = list[list[float]]


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """Equal but for rounding: 32 units in the last place, where 3 to 10 are seen for sums of some
    ten numbers.  PyTorch's own bounds allow 5e8 units in float64.
    """
    bound = 32 * torch.finfo(expected.dtype).eps
    assert_close(actual, expected, rtol=bound, atol=bound)


def gradients_agree(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> bool:
    """Of backward and of central differences in float64, whose rounding over a step of 1e-6 leaves
    errors of some 1e-9; PyTorch's own bounds allow a thousandth.
    """
    return torch.autograd.gradcheck(function, inputs, atol=5e-9, rtol=0.0)


class Unroll(NamedTuple):
    r_t: Tensor
    discount_t: Tensor
    not_cut_t: Tensor
    v_tm1: Tensor
    v_t: Tensor
    rho_tm1: Tensor
    q_a_tm1: Tensor
    valid_tm1: Tensor


def random_unroll(
    seed: int, T: int = 11, B: int = 7, *, junk: float = 50.0, cut_row: int | None = None
) -> Unroll:
    """Episodes that end by termination or truncation, each followed by an invalid row of `junk`.

    Half of the streams reset without spending a row.  ``v_t`` equals the next row's value except at
    a cut, where the next row belongs to something else.
    """
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    coin = torch.rand((T, B), generator=g, dtype=torch.float64)
    terminated, truncated = coin < 0.15, (coin >= 0.15) & (coin < 0.3)
    if cut_row is not None:
        truncated[cut_row] = ~terminated[cut_row]
    valid = torch.ones((T, B), dtype=torch.bool)
    for b in range(0, B, 2):
        for i in range(1, T):
            if (terminated | truncated)[i - 1, b] and valid[i - 1, b] and i != cut_row:
                valid[i, b] = terminated[i, b] = truncated[i, b] = False
    not_cut = ~(terminated | truncated)
    gamma = 0.8 + 0.15 * (draw(T, B) > 0).double()
    discount = gamma * ~terminated
    v_tm1 = draw(T, B)
    v_t = torch.where(not_cut, torch.cat([v_tm1[1:], draw(1, B)]), draw(T, B))
    u = Unroll(
        r_t=draw(T, B),
        discount_t=discount,
        not_cut_t=not_cut.double(),
        v_tm1=v_tm1,
        v_t=v_t,
        rho_tm1=draw(T, B).exp(),
        q_a_tm1=draw(T, B),
        valid_tm1=valid,
    )
    spoilt = {
        name: torch.where(valid, getattr(u, name), junk)
        for name in ("r_t", "v_tm1", "v_t", "rho_tm1", "q_a_tm1")
    }
    return u._replace(**spoilt)


def to(u: Unroll, dtype: torch.dtype) -> Unroll:
    return Unroll(*(x if x.dtype == torch.bool else x.to(dtype) for x in u))


def rows(u: Unroll, part: slice) -> Unroll:
    return Unroll(*(x[part] for x in u))


def columns(u: Unroll, order: Tensor) -> Unroll:
    return Unroll(*(x[:, order] for x in u))


def _last_row(u: Unroll, i: int, b: int) -> int:
    """The row that closes the estimate of row i: the first cut from i on, or the end."""
    for k in range(i, u.r_t.shape[0]):
        if u.not_cut_t[k, b] == 0:
            return k
    return u.r_t.shape[0] - 1


def _table(u: Unroll, entry) -> Tensor:
    T, B = u.r_t.shape
    table = [[float(entry(i, b)) for b in range(B)] for i in range(T)]
    return torch.tensor(table, dtype=torch.float64)


def gae_oracle(u: Unroll, lambda_: float) -> Tensor:
    """sum_k (gamma lambda)^(k-i) delta_k"""
    r, d, v, v_next = (x.tolist() for x in (u.r_t, u.discount_t, u.v_tm1, u.v_t))

    def entry(i: int, b: int) -> float:
        return math.fsum(
            math.prod(lambda_ * d[j][b] for j in range(i, k))
            * (r[k][b] + d[k][b] * v_next[k][b] - v[k][b])
            for k in range(i, _last_row(u, i, b) + 1)
        )

    return _table(u, entry)


def _return(r: Table, d: Table, v_next: Table, i: int, n: int, b: int) -> float:
    """Sum of n discounted rewards from row i on, then the value."""
    rewards = math.fsum(math.prod(d[j][b] for j in range(i, k)) * r[k][b] for k in range(i, i + n))
    return rewards + math.prod(d[j][b] for j in range(i, i + n)) * v_next[i + n - 1][b]


def n_step_oracle(u: Unroll, n: int | None) -> Tensor:
    r, d, v_next = (x.tolist() for x in (u.r_t, u.discount_t, u.v_t))

    def entry(i: int, b: int) -> float:
        longest = _last_row(u, i, b) - i + 1
        return _return(r, d, v_next, i, longest if n is None else min(n, longest), b)

    return _table(u, entry)


def lambda_return_oracle(u: Unroll, lambda_: float) -> Tensor:
    """(1 - lambda) sum_n lambda^(n-1) G_n, the rest of the weight on the longest return."""
    r, d, v_next = (x.tolist() for x in (u.r_t, u.discount_t, u.v_t))

    def entry(i: int, b: int) -> float:
        longest = _last_row(u, i, b) - i + 1
        mixed = math.fsum(
            (1 - lambda_) * lambda_ ** (n - 1) * _return(r, d, v_next, i, n, b)
            for n in range(1, longest)
        )
        return mixed + lambda_ ** (longest - 1) * _return(r, d, v_next, i, longest, b)

    return _table(u, entry)


def vtrace_oracle(
    u: Unroll,
    rho_bar: float | None,
    c_bar: float | None,
    pg_rho_bar: float | None,
    lambda_: float,
) -> tuple[Tensor, Tensor]:
    """v_s = V(x_s) + sum_t gamma^(t-s) (prod c) rho_t delta_t, and the advantage of section 4.2."""
    r, d, v, v_next, rho = (x.tolist() for x in (u.r_t, u.discount_t, u.v_tm1, u.v_t, u.rho_tm1))

    def cap(x: float, bar: float | None) -> float:
        return x if bar is None else min(x, bar)

    def target(i: int, b: int) -> float:
        return v[i][b] + math.fsum(
            math.prod(d[j][b] for j in range(i, k))
            * math.prod(lambda_ * cap(rho[j][b], c_bar) for j in range(i, k))
            * cap(rho[k][b], rho_bar)
            * (r[k][b] + d[k][b] * v_next[k][b] - v[k][b])
            for k in range(i, _last_row(u, i, b) + 1)
        )

    def advantage(i: int, b: int) -> float:
        after = v_next[i][b] if _last_row(u, i, b) == i else target(i + 1, b)
        return cap(rho[i][b], pg_rho_bar) * (r[i][b] + d[i][b] * after - v[i][b])

    return _table(u, target), _table(u, advantage)


def retrace_oracle(u: Unroll, c_bar: float | None, lambda_: float) -> Tensor:
    """Q(x_s, a_s) + sum_t gamma^(t-s) (prod of c over s+1 .. t) delta_t"""
    r, d, q, v_next, rho = (x.tolist() for x in (u.r_t, u.discount_t, u.q_a_tm1, u.v_t, u.rho_tm1))

    def trace(j: int, b: int) -> float:
        return lambda_ * (rho[j][b] if c_bar is None else min(c_bar, rho[j][b]))

    def entry(i: int, b: int) -> float:
        return q[i][b] + math.fsum(
            math.prod(d[j][b] for j in range(i, k))
            * math.prod(trace(j, b) for j in range(i + 1, k + 1))
            * (r[k][b] + d[k][b] * v_next[k][b] - q[k][b])
            for k in range(i, _last_row(u, i, b) + 1)
        )

    return _table(u, entry)
