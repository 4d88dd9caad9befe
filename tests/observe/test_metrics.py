"""Reports hold declared, finite values; episodes and phases add up."""

import json
import math
import time
from typing import final

import pytest

from quintet.errors import QuintetError
from quintet.observe import metrics, timing
from quintet.observe.metrics import EpisodeStats
from quintet.observe.timing import PHASES, PhaseTimer


def test_every_metric_has_unit_and_meaning() -> None:
    for name, metric in {**metrics.METRICS, **metrics.PREFIXES}.items():
        assert name == name.strip().lower()
        assert metric.unit
        assert metric.meaning
        assert "\n" not in metric.meaning


def test_undeclared_name_raises_with_the_nearest() -> None:
    metrics.check({"env_steps": 1, "loss/policy": 0.1, "worker/0/acting_frac": 1.0})
    with pytest.raises(QuintetError, match=r"loss/polcy.*nearest.*loss/policy"):
        metrics.check({"env_steps": 1, "loss/polcy": 0.1})
    with pytest.raises(QuintetError, match="workers/x"):
        metrics.check({"workers/x": 0.1})
    assert metrics.describe("worker/x") is not None
    assert metrics.describe("worker") is None


def test_clean_removes_what_is_not_finite_and_nothing_else() -> None:
    report = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.0, "e": 3}
    assert metrics.clean(report) == {"d": 0.0, "e": 3}
    assert len(report) == 5


def test_episode_stats_are_per_report_and_recent_ones_run_on() -> None:
    stats = EpisodeStats()
    assert stats.report() == {}
    assert stats.recent_return is None
    stats.add(1.0, 10)
    stats.add(4.0, 20)
    assert stats.report() == {
        "episode/return_mean": 2.5,
        "episode/return_std": 1.5,
        "episode/return_min": 1.0,
        "episode/return_max": 4.0,
        "episode/length_mean": 15.0,
        "episode/count": 2,
    }
    assert stats.report() == {}
    assert stats.recent_success is None
    stats.add(7.0, 5, success=True)
    stats.add(10.0, 5, success=False)
    report = stats.report()
    metrics.check(report)
    assert report["episode/success_rate"] == 0.5
    assert report["episode/return_mean"] == 8.5
    assert stats.recent_return == pytest.approx((1 + 4 + 7 + 10) / 4)
    assert stats.recent_success == 0.5
    stats.add(3.0, 5, success=True)
    saved = json.loads(json.dumps(stats.save(), allow_nan=False))
    resumed = EpisodeStats()
    resumed.load(saved)
    resumed.add(6.0, 5)
    assert resumed.report() == {
        "episode/return_mean": 4.5,
        "episode/return_std": 1.5,
        "episode/return_min": 3.0,
        "episode/return_max": 6.0,
        "episode/length_mean": 5.0,
        "episode/count": 2,
        "episode/success_rate": 1.0,
    }
    assert resumed.save() is None
    resumed.load(None)
    assert resumed.report() == {}
    for far in (1e9, 1e9 + 6.0):
        resumed.add(far, 1)
    assert resumed.report()["episode/return_std"] == pytest.approx(3.0)
    for _ in range(100):
        stats.add(2.0, 1, success=True)
    assert (stats.recent_return, stats.recent_success) == (2.0, 1.0), "the last 100"


@final
class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "perf_counter", clock)
    return clock


def test_phases_are_declared_and_shares_sum_to_one(clock: Clock) -> None:
    timer = PhaseTimer()
    assert timer.report() == {}
    for number, phase in enumerate(PHASES, start=1):
        timer.switch(phase)
        clock.now += number / 7
    report = timer.report()
    metrics.check(report)
    assert len(report) == len(PHASES)
    assert sum(report.values()) == pytest.approx(1.0)


def test_time_goes_to_the_phase_it_was_spent_in(clock: Clock) -> None:
    timer = PhaseTimer()
    assert timer.switch("acting") == "other"
    clock.now += 1.0
    before = timer.switch("checkpoint")
    assert before == "acting"
    clock.now += 6.0
    timer.switch(before)
    clock.now += 3.0
    assert timer.report() == pytest.approx({"time/acting_frac": 0.4, "time/checkpoint_frac": 0.6})
    # the next report knows nothing of it
    clock.now += 2.0
    assert timer.report() == {"time/acting_frac": 1.0}
    assert timer.seconds()["checkpoint"] == pytest.approx(6.0)
    assert timer.seconds()["acting"] == pytest.approx(6.0)


def test_a_switch_is_cheap() -> None:
    timer = PhaseTimer()

    def seconds_per_switch() -> float:
        start = time.perf_counter()
        for _ in range(1000):
            timer.switch("acting")
        return (time.perf_counter() - start) / 1000

    assert min(seconds_per_switch() for _ in range(10)) < 5e-6
