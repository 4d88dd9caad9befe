"""What holds for every estimator: its oracle, its invariants, its limits."""

from collections.abc import Callable

import pytest
import torch
from jaxtyping import TypeCheckError
from ops_helpers import (
    Unroll,
    assert_near,
    columns,
    gae_oracle,
    lambda_return_oracle,
    n_step_oracle,
    random_unroll,
    retrace_oracle,
    rows,
    to,
    vtrace_oracle,
)
from torch import Tensor

from quintet.ops.retrace import retrace
from quintet.ops.returns import gae, lambda_return, n_step
from quintet.ops.vtrace import vtrace

Estimator = Callable[[Unroll], tuple[Tensor, ...]]


def run_gae(u: Unroll, lambda_: float) -> tuple[Tensor, ...]:
    return tuple(gae(u.r_t, u.discount_t, u.not_cut_t, u.v_tm1, u.v_t, lambda_=lambda_))


def run_lambda(u: Unroll, lambda_: float) -> tuple[Tensor, ...]:
    return (lambda_return(u.r_t, u.discount_t, u.not_cut_t, u.v_t, lambda_=lambda_),)


def run_n_step(u: Unroll, n: int | None) -> tuple[Tensor, ...]:
    return (n_step(u.r_t, u.discount_t, u.not_cut_t, u.v_t, n=n),)


def run_vtrace(u: Unroll, rho_bar, c_bar, pg_rho_bar, lambda_) -> tuple[Tensor, ...]:
    rows = u.v_tm1, u.v_t, u.r_t, u.discount_t, u.not_cut_t, u.rho_tm1
    clips = {"rho_bar": rho_bar, "c_bar": c_bar, "pg_rho_bar": pg_rho_bar}
    return tuple(vtrace(*rows, **clips, lambda_=lambda_))


def run_retrace(u: Unroll, c_bar: float | None, lambda_: float) -> tuple[Tensor, ...]:
    target = retrace(
        u.q_a_tm1, u.v_t, u.r_t, u.discount_t, u.not_cut_t, u.rho_tm1, c_bar=c_bar, lambda_=lambda_
    )
    return (target,)


ALL: dict[str, Estimator] = {
    "gae": lambda u: run_gae(u, 0.9),
    "lambda_return": lambda u: run_lambda(u, 0.9),
    "n_step_3": lambda u: run_n_step(u, 3),
    "n_step_all": lambda u: run_n_step(u, None),
    "vtrace": lambda u: run_vtrace(u, 1.2, 1.0, 1.5, 0.9),
    "retrace": lambda u: run_retrace(u, 1.0, 0.9),
}
every_estimator = pytest.mark.parametrize("estimate", ALL.values(), ids=ALL.keys())
UNROLLS = [random_unroll(seed) for seed in range(6)]


def test_the_random_unrolls_hold_every_kind_of_row():
    kinds = set()
    for u in UNROLLS:
        kinds |= set(
            zip(
                u.not_cut_t.flatten().tolist(),
                (u.discount_t > 0).flatten().tolist(),
                u.valid_tm1.flatten().tolist(),
                strict=True,
            )
        )
    # going on, truncated, terminated, and the invalid row behind a cut
    assert kinds == {(1.0, True, True), (0.0, True, True), (0.0, False, True), (1.0, True, False)}


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.95, 1.0])
def test_gae_is_the_double_sum(lambda_: float):
    for u in UNROLLS:
        advantage, target = run_gae(u, lambda_)
        expected = gae_oracle(u, lambda_)
        assert_near(advantage, expected)
        assert_near(target, expected + u.v_tm1)


@pytest.mark.parametrize("lambda_", [0.0, 0.3, 0.95, 1.0])
def test_lambda_return_is_the_average_of_n_step_returns(lambda_: float):
    for u in UNROLLS:
        expected = lambda_return_oracle(u, lambda_)
        assert_near(run_lambda(u, lambda_)[0], expected)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 11, 12, 100, None])
def test_n_step_is_the_explicit_sum(n: int | None):
    for u in UNROLLS:
        assert_near(run_n_step(u, n)[0], n_step_oracle(u, n))


@pytest.mark.parametrize(
    "clips",
    [(1.0, 1.0, 1.0), (None, None, None), (2.0, 0.5, 1.3), (1.5, 1.0, None), (0.7, 0.0, 3.0)],
)
@pytest.mark.parametrize("lambda_", [0.0, 0.6, 1.0])
def test_vtrace_is_the_sum_of_the_paper(clips, lambda_: float):
    for u in UNROLLS:
        target, advantage = run_vtrace(u, *clips, lambda_)
        expected_target, expected_advantage = vtrace_oracle(u, *clips, lambda_)
        assert_near(target, expected_target)
        assert_near(advantage, expected_advantage)


@pytest.mark.parametrize("c_bar", [1.0, 0.4, 3.0, None])
@pytest.mark.parametrize("lambda_", [0.0, 0.6, 1.0])
def test_retrace_is_the_sum_of_the_paper(c_bar: float | None, lambda_: float):
    for u in UNROLLS:
        expected = retrace_oracle(u, c_bar, lambda_)
        assert_near(run_retrace(u, c_bar, lambda_)[0], expected)


@every_estimator
@pytest.mark.parametrize("junk", [0.0, 1e30, float("inf"), float("nan")])
def test_what_stands_in_invalid_rows_has_no_influence(estimate: Estimator, junk: float):
    for seed in range(4):
        clean, spoilt = random_unroll(seed, junk=1.0), random_unroll(seed, junk=junk)
        for a, b in zip(estimate(clean), estimate(spoilt), strict=True):
            assert torch.equal(a[clean.valid_tm1], b[clean.valid_tm1])


@every_estimator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_permuting_streams_permutes_the_output(estimate: Estimator, dtype: torch.dtype):
    u = to(random_unroll(0), dtype)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    for a, b in zip(estimate(u), estimate(columns(u, order)), strict=True):
        assert a.dtype == dtype
        assert torch.equal(a[:, order], b)


@every_estimator
def test_a_batch_with_a_cut_equals_two_trajectories(estimate: Estimator):
    u = random_unroll(1, cut_row=4)
    assert not u.not_cut_t[4].any()
    halves = (estimate(rows(u, slice(0, 5))), estimate(rows(u, slice(5, None))))
    for whole, first, second in zip(estimate(u), *halves, strict=True):
        assert torch.equal(whole, torch.cat([first, second]))


@every_estimator
def test_results_are_detached_and_inputs_unchanged(estimate: Estimator):
    u = random_unroll(2)
    before = Unroll(*(x.clone() for x in u))
    live = Unroll(*(x if x.dtype == torch.bool else x.requires_grad_() for x in u))
    for x in estimate(live):
        assert x.requires_grad is False
        assert x.grad_fn is None
    assert all(torch.equal(a, b) for a, b in zip(before, live, strict=True))


@every_estimator
def test_float32_stays_near_float64(estimate: Estimator):
    u = random_unroll(3, junk=1.0)
    for a, b in zip(estimate(u), estimate(to(u, torch.float32)), strict=True):
        assert b.dtype == torch.float32
        assert_near(b, a.float())


@pytest.mark.parametrize("name", ALL)
def test_one_row_is_one_step(name: str):
    u = rows(random_unroll(4), slice(0, 1))
    u = u._replace(rho_tm1=torch.ones_like(u.r_t))
    target = u.r_t + u.discount_t * u.v_t
    advantage = target - u.v_tm1
    wanted = {"gae": (advantage, target), "vtrace": (target, advantage)}.get(name, (target,))
    for x, expected in zip(ALL[name](u), wanted, strict=True):
        assert_near(x, expected)


@every_estimator
def test_nothing_gives_nothing(estimate: Estimator):
    u = random_unroll(5)
    zero = torch.zeros_like(u.r_t)
    u = u._replace(r_t=zero, v_tm1=zero, v_t=zero, q_a_tm1=zero)
    assert all(not x.any() for x in estimate(u))


@every_estimator
def test_mismatched_shapes_are_refused(estimate: Estimator):
    u = random_unroll(0)
    # By the annotations where they are made real, by the check behind them elsewhere.
    said = r"Type-check error whilst checking the parameters of quintet\.ops|one shape"
    with pytest.raises((ValueError, TypeCheckError), match=said):
        estimate(u._replace(v_t=u.v_t.unsqueeze(-1)))
    with pytest.raises((ValueError, TypeCheckError), match=said):
        estimate(u._replace(r_t=u.r_t[:-1]))


def test_lambda_limits():
    for u in UNROLLS:
        one_step = u.r_t + u.discount_t * u.v_t
        to_the_end = n_step_oracle(u, None)
        assert_near(run_gae(u, 0.0)[0], one_step - u.v_tm1)
        assert_near(run_lambda(u, 0.0)[0], one_step)
        assert_near(run_lambda(u, 1.0)[0], to_the_end)
        # The sum of errors telescopes only where v_t is the value of the next row: the valid rows.
        valid = u.valid_tm1
        assert_near(run_gae(u, 1.0)[1][valid], to_the_end[valid])
        assert_near(run_gae(u, 0.8)[1][valid], run_lambda(u, 0.8)[0][valid])


def test_vtrace_on_policy_is_the_lambda_return():
    for u in UNROLLS:
        u = u._replace(rho_tm1=torch.ones_like(u.r_t))
        valid = u.valid_tm1
        for lambda_ in (0.0, 0.7, 1.0):
            target, advantage = run_vtrace(u, 1.0, 1.0, 1.0, lambda_)
            assert_near(target[valid], run_lambda(u, lambda_)[0][valid])
            assert_near(run_gae(u, lambda_)[0], target - u.v_tm1)
        assert_near(target[valid], n_step_oracle(u, None)[valid])
        assert_near(advantage[valid], (target - u.v_tm1)[valid])


def test_vtrace_limits():
    for u in UNROLLS:
        nothing = u._replace(rho_tm1=torch.zeros_like(u.r_t))
        target, advantage = run_vtrace(nothing, 1.0, 1.0, 1.0, 1.0)
        assert torch.equal(target, u.v_tm1)
        assert not advantage.any()
        one_step = run_vtrace(u, 1.0, 0.0, 1.0, 1.0)[0]
        error = u.r_t + u.discount_t * u.v_t - u.v_tm1
        assert_near(one_step, u.v_tm1 + u.rho_tm1.clamp(max=1.0) * error)
        unclipped = run_vtrace(u, None, None, None, 1.0)
        infinite = run_vtrace(u, float("inf"), float("inf"), float("inf"), 1.0)
        for a, b in zip(unclipped, infinite, strict=True):
            assert torch.equal(a, b)
        flat = u._replace(discount_t=torch.zeros_like(u.r_t))
        assert_near(
            run_vtrace(flat, None, 1.0, None, 1.0)[0], u.v_tm1 + u.rho_tm1 * (u.r_t - u.v_tm1)
        )


def test_retrace_limits():
    for u in UNROLLS:
        one_step = u.r_t + u.discount_t * u.v_t
        no_trace = u._replace(rho_tm1=torch.zeros_like(u.r_t))
        assert_near(run_retrace(no_trace, 1.0, 1.0)[0], one_step)
        assert_near(run_retrace(u, 1.0, 0.0)[0], one_step)
        # On-policy with q equal to v the errors telescope to the return.
        on_policy = u._replace(rho_tm1=torch.ones_like(u.r_t), q_a_tm1=u.v_tm1)
        valid = u.valid_tm1
        assert_near(run_retrace(on_policy, 1.0, 1.0)[0][valid], n_step_oracle(u, None)[valid])


def test_retrace_never_uses_the_ratio_of_the_first_row_of_an_episode():
    for u in UNROLLS:
        starts = torch.cat([torch.ones_like(u.not_cut_t[:1]), 1.0 - u.not_cut_t[:-1]]).bool()
        changed = u._replace(rho_tm1=torch.where(starts, 0.123, u.rho_tm1))
        assert torch.equal(run_retrace(u, 1.0, 1.0)[0], run_retrace(changed, 1.0, 1.0)[0])


def test_n_below_one_is_an_error():
    with pytest.raises(ValueError, match="at least 1"):
        run_n_step(random_unroll(0), 0)
