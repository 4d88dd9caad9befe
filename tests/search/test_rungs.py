"""Successive halving over time."""

import pytest

from quintet.search import rungs


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 600.0), (2, 600.0), (2, 120.0), (4, 3600.0)])
def test_a_plan_uses_the_time_and_halves(jobs: int, seconds: float) -> None:
    found = rungs.plan(7, jobs, seconds)
    *before, last = found.counts
    for count, after in zip(before, found.counts[1:], strict=True):
        assert jobs <= after < count
        assert after <= -(-count // 2) + jobs - 1  # as many more as run beside them anyway
    assert last <= jobs
    *legs, end_s = found.leg_s
    used = sum(x * rungs.batches(n, jobs) for n, x in zip(before, legs, strict=True))
    assert used + end_s == pytest.approx(seconds)
    assert used == pytest.approx(seconds * rungs.HALVING_SHARE if before else 0.0)
    assert all(x >= rungs.LEAST_S for x in legs)
    for leg_s in found.leg_s:
        assert 0.0 < rungs.training_s(leg_s) < leg_s - rungs.evaluation_s(leg_s)


def test_short_times_have_fewer_entries_and_the_shortest_no_rung() -> None:
    counts = [rungs.plan(7, 2, seconds).counts for seconds in (3600.0, 120.0, 30.0)]
    assert counts == [(7, 4, 2), (4, 2), (2,)]
    assert rungs.plan(1, 2, 600.0) == ((1,), (600.0,))
    assert rungs.plan(6, 2, 600.0).counts == (6, 4, 2)  # 3 would leave a place empty
    assert rungs.plan(6, 1, 600.0).counts == (6, 3, 2, 1)


def test_in_slow_environments_fewer_entries_have_longer_legs() -> None:
    assert rungs.plan(7, 2, 600.0, 1e-4) == rungs.plan(7, 2, 600.0)
    found = rungs.plan(7, 2, 600.0, 0.02)
    assert found.counts == (4, 2)
    assert found.leg_s[0] >= 0.02 * rungs.LEAST_STEPS


def test_the_time_of_an_evaluation_is_that_of_the_last_one() -> None:
    assert rungs.training_s(200.0) == 200.0 - 30.0 - 4.0
    assert rungs.training_s(200.0, 5.0) == 200.0 - 10.0 - 4.0
    assert rungs.training_s(200.0, 0.1) == 200.0 - 3.0 - 4.0
    assert rungs.training_s(200.0, 50.0) == rungs.training_s(200.0)
