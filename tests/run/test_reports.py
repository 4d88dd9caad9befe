"""When reports come, and what is shown between them."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import quintet
from quintet.observe.log import RunLog
from quintet.observe.pace import report_interval_s
from quintet.observe.report_files import read_metrics
from quintet.run import reports

CONFIG: dict[str, Any] = {
    "env.num_streams": 4, "unroll_steps": 8, "minibatch_steps": 32, "num_epochs": 1,
    "model.policy_hidden": [4], "eval.episodes": 0, "runtime.compile": "off",
    "report.sinks": ["jsonl"],
}  # fmt: skip


class Clock:
    """Time in which each look takes so many seconds."""

    def __init__(self, look_s: float) -> None:
        self._now = itertools.count(0.0, look_s)

    def perf_counter(self) -> float:
        return next(self._now)


def trained(folder: Path, iterations: int, **config: Any) -> list[dict[str, float]]:
    given = CONFIG | {name.replace("__", "."): x for name, x in config.items()}
    quintet.train("ppo", "CartPole-v1", 32 * iterations, 0, folder, given)
    return read_metrics(folder)


def test_the_interval_is_a_hundredth_of_the_time_within_bounds() -> None:
    assert [report_interval_s(x) for x in (0, 20, 100, 6000, 1e6)] == [1, 1, 1, 60, 240]
    written, wall_s = 0, 0.0
    counts = {}
    for end in (20.0, 3600.0, 86_400.0):
        while wall_s < end:
            wall_s, written = wall_s + report_interval_s(wall_s), written + 1
        counts[end] = written
    assert counts[20.0] == 20
    assert counts[3600.0] == pytest.approx(460, rel=0.02)
    assert counts[86_400.0] == pytest.approx(910, rel=0.02)


@pytest.mark.slow
def test_reports_come_more_rarely_and_soon_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_s = 7.0
    monkeypatch.setattr(reports, "time", Clock(look_s))

    def gaps(found: list[dict[str, float]]) -> list[tuple[float, float]]:
        """Of a report its time, and that from the one before."""
        times = [report["wall_s"] for report in found]
        return [(later, later - before) for before, later in itertools.pairwise(times)]

    first = trained(tmp_path, 300)
    assert first[-1]["wall_s"] > 4000
    regular = gaps(first)[:-1]  # the last report is that of the end
    assert max(gap for _, gap in regular) >= 50.0
    for at, gap in regular:
        due = report_interval_s(at)
        assert due - 1.0 <= gap <= due + 8 * look_s
    both = trained(tmp_path, 600)
    later = both[len(first) - 1 :]
    assert gaps(later)[0][1] < 12 * look_s < 0.5 * report_interval_s(first[-1]["wall_s"]) + 80
    for at, gap in gaps(later)[1:-1]:
        assert gap >= report_interval_s(at) - look_s


def test_between_reports_the_run_is_shown_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "time", Clock(0.1))
    shown: list[dict[str, float]] = []
    update = RunLog.update

    def watched(log: RunLog, report: Mapping[str, float], recent: Any) -> None:
        shown.append(dict(report))
        update(log, report, recent)

    monkeypatch.setattr(RunLog, "update", watched)
    written = trained(tmp_path, 60, report__interval_s=1e6)
    assert len(written) == 1
    assert len(shown) >= 5
    assert shown[-1]["env_steps"] == 32 * 60
    for report in shown[:-1]:
        assert set(report) == {"env_steps", "wall_s", "iterations", "updates"}
    times = [report["wall_s"] for report in shown[:-1]]
    assert min(later - before for before, later in itertools.pairwise(times)) >= 0.9
    shown.clear()
    trained(tmp_path / "every", 20, report__interval_s=0.0)
    assert len(shown) >= 20
    assert all("loss/total" in report for report in shown), "nothing but reports"
