"""The suite's tables: scores over bars, losses first, and quintet beside its peer."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
pytest.importorskip("scipy")


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The scripts as modules, with records of their own."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import records
    import rows
    import suite_tables

    monkeypatch.setattr(records, "RESULTS", tmp_path)
    return SimpleNamespace(records=records, rows=rows, tables=suite_tables)


def record(suite: SimpleNamespace, row: Any, steps: int, *scores: float, wall_s: float = 9) -> None:
    """Writes a record whose runs improve evenly until they have these scores."""
    runs = [
        {
            "seed": 11 + seed, "return_mean": score, "train_s": wall_s,
            "curve": [
                {"env_steps": steps * x, "wall_s": wall_s * x, "episode/return_mean": score * x}
                for x in (0.25, 0.5, 0.75, 1.0)
            ],
            "evaluations": [[steps * x, score * x] for x in (0.25, 0.5, 0.75, 1.0)],
        }
        for seed, score in enumerate(scores)
    ]  # fmt: skip
    config = {"total_env_steps": steps, "env.backend": "gymnasium"}
    content = {"env": row.env, "random": {"return_mean": 20.0}, "config": config, "runs": runs}
    suite.records.path_of(row).write_text(json.dumps(content))


def task(suite: SimpleNamespace, env: str, number: int, **values: Any) -> Any:
    row = suite.rows.Row
    cells = (row("ppo", env), row("ppo", env, label="long"), row("sb3-ppo", env))
    return suite.rows.Task(env, env, cells, number, **values)


def test_tasks_furthest_below_their_bar_come_first(
    suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    anchor = suite.rows.Anchor
    anchors = (anchor("a2c", 130.0, "zoo", 1, 100), anchor("sac", 500.0, "zoo", 1, 1000))
    won = task(suite, "Won", 1, bar=120.0, env_steps=100, anchors=anchors)
    lost = task(suite, "Lost", 2, bar=120.0, env_steps=100, note="it has no memory")
    beside = task(suite, "Beside", 3, env_steps=100)  # its bar is the peer's score
    unknown = task(suite, "Unknown", 4, bar=1.0, env_steps=100)
    monkeypatch.setattr(suite.tables, "TASKS", (won, lost, beside, unknown))
    record(suite, won.rows[0], 100, 110.0, 130.0, 150.0)
    record(suite, won.rows[1], 1000, 900.0)  # over the budget
    record(suite, lost.rows[0], 100, 60.0, 80.0)
    record(suite, beside.rows[0], 100, 40.0, 50.0)
    record(suite, beside.rows[2], 100, 50.0)
    lines = suite.tables.bars_table().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:5]]
    assert [row[0] for row in cells] == ["Lost", "Beside", "Won"]
    assert [row[7] for row in cells] == ["0.50", "0.83", "1.10"]
    assert cells[2][3:6] == ["3", "**130**", "110, 150"]
    assert cells[2][8] == "A2C 130 (zoo)"  # the best within the budget
    text = "\n".join(lines[5:])
    assert "over 3 tasks" in text
    assert "- Lost: it has no memory" in text
    assert "No record yet: Unknown." in text
    assert "83% at 0.5, 50% at 0.8, 50% at 0.9, 39% at 1, 22% at 1.1" in text


def test_quintet_beside_its_peer_at_equal_steps_and_seconds(
    suite: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
):
    tasks = [task(suite, env, 1, bar=1.0, env_steps=100) for env in ("A", "B", "C")]
    monkeypatch.setattr(suite.tables, "TASKS", tasks)
    assert suite.tables.peer_table() == "Not recorded yet."
    for each in tasks[:2]:
        record(suite, each.rows[0], 100, 90.0, 100.0, 110.0, 120.0, wall_s=10)
        record(suite, each.rows[2], 100, 130.0, 140.0, 150.0, 160.0, wall_s=40)
    record(suite, tasks[2].rows[0], 100, 90.0)
    record(suite, tasks[2].rows[2], 50, 90.0)  # another budget
    lines = [line.split("|") for line in suite.tables.peer_table().splitlines()[2:]]
    assert [line[1].strip() for line in lines] == ["A", "B", "**all 2 tasks**"]
    for line in lines:
        assert "SB3, 0.00" in line[4]
        assert "quintet, 1.00" in line[5]
