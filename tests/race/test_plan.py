"""Successive halving over time."""

import pytest

from quintet.race import plan as plans


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 600.0), (2, 600.0), (2, 120.0), (4, 3600.0)])
def test_a_plan_uses_the_time_and_halves(jobs: int, seconds: float) -> None:
    found = plans.plan(7, jobs, seconds)
    *rungs, last = found.counts
    for count, after in zip(rungs, found.counts[1:], strict=True):
        assert jobs <= after < count
        assert after <= -(-count // 2) + jobs - 1  # as many more as run beside them anyway
    assert last <= jobs
    *legs, end_s = found.leg_s
    used = sum(x * plans.batches(n, jobs) for n, x in zip(rungs, legs, strict=True))
    assert used + end_s == pytest.approx(seconds)
    assert used == pytest.approx(seconds * plans.HALVING_SHARE if rungs else 0.0)
    assert all(x >= plans.LEAST_S for x in legs)
    for leg_s in found.leg_s:
        assert 0.0 < plans.training_s(leg_s) < leg_s - plans.evaluation_s(leg_s)


def test_short_times_have_fewer_entries_and_the_shortest_no_rung() -> None:
    counts = [plans.plan(7, 2, seconds).counts for seconds in (3600.0, 120.0, 30.0)]
    assert counts == [(7, 4, 2), (4, 2), (2,)]
    assert plans.plan(1, 2, 600.0) == ((1,), (600.0,))
    assert plans.plan(6, 2, 600.0).counts == (6, 4, 2)  # 3 would leave a place empty
    assert plans.plan(6, 1, 600.0).counts == (6, 3, 2, 1)


def test_in_slow_environments_fewer_entries_have_longer_legs() -> None:
    assert plans.plan(7, 2, 600.0, 1e-4) == plans.plan(7, 2, 600.0)
    found = plans.plan(7, 2, 600.0, 0.02)
    assert found.counts == (4, 2)
    assert found.leg_s[0] >= 0.02 * plans.LEAST_STEPS


def test_the_time_of_an_evaluation_is_that_of_the_last_one() -> None:
    assert plans.training_s(200.0) == 200.0 - 30.0 - 4.0
    assert plans.training_s(200.0, 5.0) == 200.0 - 10.0 - 4.0
    assert plans.training_s(200.0, 0.1) == 200.0 - 3.0 - 4.0
    assert plans.training_s(200.0, 50.0) == plans.training_s(200.0)
