"""Findings about a run are said once while it trains, and kept for the dashboard."""

from pathlib import Path

import pytest

import quintet
from quintet.findings.record import Finding
from quintet.observe.report_page import page
from quintet.observe.run_summary import read_summary
from quintet.run import findings


def _lines(folder: Path) -> list[str]:
    text = (folder / "log.txt").read_text()
    return [line for line in text.splitlines() if "doctor: " in line]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.5, 1e-3])
def test_a_likely_cause_is_said_once_with_a_pointer(tmp_path: Path, rate: float):
    quintet.train(
        "ppo",
        "quintet.envs.toy:FinitePay",
        4_000,
        run_dir=tmp_path / "run",
        config={
            "learning_rate": rate,
            "env.num_streams": 4,
            "unroll_steps": 50,
            "minibatch_steps": 100,
            "report.interval_s": 0.0,
            "eval.episodes": 0,
        },
    )
    of_rate = [line for line in _lines(tmp_path / "run") if "learning_rate" in line]
    assert len(of_rate) == (rate == 0.5)
    assert all("quintet doctor " in line for line in of_rate)


def test_a_resumed_run_is_judged_by_all_of_its_reports(tmp_path, monkeypatch):
    seen: list[list[float]] = []

    def examined(runs, **_):
        seen.append([report["env_steps"] for report in runs[0].reports])
        return {str(runs[0].folder): []}

    monkeypatch.setattr(findings, "examine_runs", examined)
    options = {"unroll_steps": 25, "minibatch_steps": 25, "env.num_streams": 1}
    options |= {"report.interval_s": 0.0, "eval.episodes": 0}

    def train(report=None):
        quintet.train(
            "ppo",
            "quintet.envs.toy:FinitePay",
            200,
            run_dir=tmp_path / "run",
            config=options,
            callbacks=quintet.Callbacks(report=report),
        )

    train(lambda _, report: report["env_steps"] >= 100)
    earlier = [*seen]
    assert earlier[-1][-1] >= 100
    train()
    later = seen[len(earlier) :]
    assert later
    assert all(steps[: len(earlier[-1])] == earlier[-1] for steps in later)
    assert later[-1][-1] >= 200


def test_marks_are_on_the_page(tmp_path: Path):
    pytest.importorskip("jinja2")
    (tmp_path / "run.json").write_text("{}")
    run = read_summary(tmp_path)
    numbers, command = {"gamma": 0.5, "unknown": float("nan")}, "quintet train ppo --env '<b>'"
    mark = Finding(
        "gamma is <b>short</b>", numbers, "raise it", command=command, weight=0.7, name="gamma"
    )
    content = page([run], "Runs", {str(run.folder): [mark]})
    assert (
        "likely, gamma: gamma is &lt;b&gt;short&lt;/b&gt; (gamma 0.5). To do: raise it." in content
    )
    assert "<code>quintet train ppo --env &#39;&lt;b&gt;&#39;</code>" in content
    assert "docs/not-learning.md#gamma" in content
    assert "no proof" in page([run], "Runs", {str(run.folder): []})
    assert "Findings of the doctor" not in page([run], "Runs")
