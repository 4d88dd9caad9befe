"""Shares of the time: of every process, weighed by the time that they are of, and forgotten."""

import pytest

from quintet.observe.timing import Cores, Load, TimeShares, mean


def test_first_report_counts_until_there_is_another() -> None:
    shares = TimeShares()
    assert shares.recent().learner == {}
    shares.add({"env_steps": 1.0})
    assert shares.starting
    shares.add({"wall_s": 50.0, "time/learning_frac": 1.0})
    assert shares.starting
    assert shares.recent().learner == {"learning": 1.0}
    shares.add({"wall_s": 51.0, "time/acting_frac": 1.0})
    assert not shares.starting
    assert shares.recent().learner == {"acting": 1.0}


def test_shares_are_weighed_by_time_and_forgotten() -> None:
    shares = TimeShares()
    for wall_s, phase in ((0, "other"), (1, "learning"), (4, "acting")):
        shares.add({"wall_s": float(wall_s), f"time/{phase}_frac": 1.0})
    assert shares.recent().learner == pytest.approx({"learning": 0.25, "acting": 0.75})
    shares.add({"wall_s": 40.0, "time/stepping_frac": 0.5, "time/acting_frac": 0.5})
    assert shares.recent().learner == pytest.approx({"stepping": 0.5, "acting": 0.5})


def test_cores_are_weighed_by_time_over_the_same_reports() -> None:
    shares = TimeShares()
    assert shares.recent().cores == Cores()
    for wall_s, others in ((0, 2.0), (1, 1.0), (4, 0.0)):
        report = {"wall_s": float(wall_s), "time/learning_frac": 1.0, "machine/cores_used": 0.5}
        shares.add(report | {"machine/cores_used_by_others": others})
    assert shares.recent().cores[:2] == pytest.approx((0.5, 0.25))
    assert shares.recent().cores.waited_for is None, "the system does not tell"
    shares.add({"wall_s": 8.0, "time/learning_frac": 1.0, "machine/cores_waited_for": 0.5})
    assert shares.recent().cores.waited_for == pytest.approx(0.25)


def test_processes_that_step_environments_are_those_of_the_last_report() -> None:
    shares = TimeShares()
    for wall_s, count in ((1.0, 8.0), (2.0, None), (3.0, 2.0)):
        given = {} if count is None else {"data/env_processes": count}
        shares.add({"wall_s": wall_s, "time/learning_frac": 1.0, **given})
        assert shares.recent().env_processes == int(count or 0)


def test_every_process_has_shares_of_its_own() -> None:
    shares = TimeShares()
    learner = {"time/learning_frac": 1.0}
    start = {"worker/0/other_frac": 1.0, "worker/10/other_frac": 1.0, "server/other_frac": 1.0}
    shares.add({"wall_s": 1.0, **learner, **start})
    assert list(shares.recent().beside) == ["worker/0", "worker/10", "server"]
    later = {
        "worker/0/stepping_frac": 0.5,
        "worker/0/acting_frac": 0.5,
        "worker/2/acting_frac": 1.0,
    }
    shares.add({"wall_s": 3.0, **learner, **later, "server/batch_mean": 13.0})
    shares.add(
        {"wall_s": 9.0, **learner, "worker/0/stepping_frac": 1.0, "server/waiting_frac": 1.0}
    )
    now = shares.recent()
    assert list(now.beside) == ["worker/0", "worker/2", "worker/10", "server"]
    assert now.beside["worker/0"] == pytest.approx({"stepping": 7 / 8, "acting": 1 / 8})
    assert now.beside["worker/2"] == {"acting": 1.0}
    assert now.beside["worker/10"] == {"other": 1.0}, "what it does since, it has not told yet"
    assert now.server == {"waiting": 1.0}
    assert len(now.workers) == 3
    assert now.learner == {"learning": 1.0}


def test_one_process_has_none_beside_it() -> None:
    shares = TimeShares()
    shares.add({"wall_s": 1.0, "time/learning_frac": 1.0})
    assert shares.recent() == Load({"learning": 1.0})
    assert (shares.recent().workers, shares.recent().server) == ([], {})


def test_a_mean_of_processes_sums_to_the_whole() -> None:
    assert mean([{"stepping": 0.25, "acting": 0.75}, {"waiting": 1.0}]) == {
        "stepping": 0.125,
        "acting": 0.375,
        "waiting": 0.5,
    }
