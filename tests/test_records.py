"""Records of the learning tables: when they are stale, and that a killed session goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_run_helpers import TOY, save_options

import quintet

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
pytest.importorskip("envpool")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """The scripts as modules, with a folder of records of its own."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import one_seed
    import records
    import rows
    import suite
    import tables

    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    return SimpleNamespace(
        suite=suite, one_seed=one_seed, records=records, rows=rows, tables=tables
    )


def part(seed: int, config: dict[str, Any], score: float = 1.0) -> dict[str, Any]:
    return {
        "seed": seed, "return_mean": score, "return_std": 0.0, "entropy": 0.5, "train_s": 2.0,
        "commit": "abc", "jobs": 1, "cores": 2, "config": config, "curve": [], "evaluations": [],
    }  # fmt: skip


def recorded(bench: SimpleNamespace, row: Any, seeds: tuple[int, ...], **changed: Any) -> Any:
    """Writes a record of these seeds, with today's configuration but for `changed`."""
    config = {**bench.records.today(row, 2), **changed}
    config = {k: v for k, v in config.items() if not k.startswith(("eval.", "report.", "seed"))}
    before = {"random": {"return_mean": 0.25, "return_std": 0.0}}
    bench.records.path_of(row).write_text(json.dumps(before))
    record = bench.suite.joined(row, {seed: part(seed, config) for seed in seeds})
    bench.records.path_of(row).write_text(json.dumps(record))
    return record


def test_a_record_of_today_is_fresh_and_one_option_makes_it_stale(bench: SimpleNamespace):
    row = bench.rows.Row("ppo", "CartPole-v1")
    recorded(bench, row, (11, 12, 13))
    assert bench.records.standing(row) == ((), (), ())
    recorded(bench, row, (11, 12, 13), **{"env.streams_per_group": 4, "gamma": 0.5})
    differences, others, missing = bench.records.standing(row)
    assert differences == (("gamma", 0.5, 0.99), ("env.streams_per_group", 4, 32))
    assert (others, missing) == ((), (11, 12, 13))


def test_what_the_machine_decides_counts_only_where_the_row_sets_it(bench: SimpleNamespace):
    of_another = {
        "runtime.threads": 7, "runtime.actor_threads": 7, "runtime.precision": "bf16",
        "runtime.actor_precision": "bf16", "runtime.compile": "on",
        "runtime.device": "cuda", "runtime.worker_timeout_s": 9.0,
    }  # fmt: skip
    row = bench.rows.Row("ppo", "CartPole-v1")
    recorded(bench, row, (11, 12, 13), **of_another)
    assert bench.records.standing(row).differences == ()
    fixed = row._replace(label="fp32", options=("runtime.precision=fp32",))
    recorded(bench, fixed, (11, 12, 13), **of_another)
    assert bench.records.standing(fixed).differences == (("runtime.precision", "bf16", "fp32"),)


def test_the_group_size_is_compared_at_the_recorded_number_of_workers(bench: SimpleNamespace):
    """32 streams are two groups on two cores, and four on four."""
    row = bench.rows.Row("impala", "CartPole-v1")
    for workers, size in ((2, 16), (4, 8)):
        given = {"runtime.num_workers": workers, "env.streams_per_group": size}
        recorded(bench, row, (11, 12, 13), **given)
        assert bench.records.standing(row).differences == ()
    recorded(bench, row, (11, 12, 13), **(given | {"env.streams_per_group": 16}))
    assert bench.records.standing(row).differences == (("env.streams_per_group", 16, 8),)


def test_an_option_that_there_was_not_had_its_default(bench: SimpleNamespace):
    row = bench.rows.Row("ppo", "Pong-v5")
    record = recorded(bench, row, (11, 12, 13), gone=3)
    del record["config"]["init_from_keys"]  # today at its default, ()
    del record["config"]["num_epochs"]  # today the preset's 4, not the default
    bench.records.path_of(row).write_text(json.dumps(record))
    default = bench.records.standing(row).differences
    assert [each.option for each in default] == ["gone", "num_epochs"]


def test_seeds_that_are_missing_or_others_are_to_be_run(bench: SimpleNamespace):
    row = bench.rows.Row("ppo", "CartPole-v1")
    assert bench.records.standing(row).missing == (11, 12, 13)
    recorded(bench, row, (11,))
    assert bench.records.standing(row) == ((), (), (12, 13))
    assert set(bench.suite.fresh_parts(row)) == {11}
    recorded(bench, row, (1, 2, 3))
    assert bench.records.standing(row) == ((), (1, 2, 3), (11, 12, 13))
    assert bench.suite.fresh_parts(row) == {}
    recorded(bench, row, (11,), gamma=0.5)
    assert bench.records.standing(row).missing == (11, 12, 13)
    assert bench.suite.fresh_parts(row) == {}  # no row of two configurations


def test_tables_mark_what_does_not_count(bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch):
    new = bench.rows.Row
    rows = (
        new("ppo", "CartPole-v1"),
        new("ppo", "Acrobot-v1", seen=(1, 2)),
        new("ppo", "LunarLander-v3"),
        new("ppo", "MountainCar-v0", seeds=(14, 15, 16), seen=(11, 12, 13)),
        new("ppo", "Breakout-v5", seeds=(11, 12, 13, 14)),
    )
    monkeypatch.setattr(bench.tables, "ROWS", rows)
    recorded(bench, rows[0], (11, 12, 13))
    recorded(bench, rows[1], (1, 2, 3))
    recorded(bench, rows[2], (11, 12, 13), gamma=0.5)
    recorded(bench, rows[3], (14, 15, 16))
    recorded(bench, rows[4], (11, 12, 13, 14))
    lines = bench.tables.learning_table("ppo").splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines[2:7]]
    assert [row[3] for row in cells] == [
        "11, 12, 13", "1, 2, 3 ¹ ²", "11, 12, 13 ³", "14, 15, 16 ⁴", "11, 12, 13, 14"
    ]  # fmt: skip
    assert cells[0][4:7] == ["1.0, 1.0, 1.0", "**1.0**", "0.2"]
    notes = lines[8:]
    assert [note[0] for note in notes] == ["¹", "²", "³", "⁴"]
    assert "`gamma` is 0.995, recorded 0.5: LunarLander-v3." in notes[2]
    recorded(bench, rows[1], (11, 12, 13))
    recorded(bench, rows[2], (11, 12, 13))
    assert [line[0] for line in bench.tables.learning_table("ppo").splitlines()[8:]] == ["⁴"]


def test_stale_cells_come_shortest_first_and_those_that_fit_run(
    bench: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    new = bench.rows.Row
    rows = [new("ppo", env) for env in ("CartPole-v1", "Acrobot-v1", "LunarLander-v3")]
    estimated = new("acer", "CartPole-v1", minutes=0.2, seeds=(11,))
    monkeypatch.setattr(bench.suite, "ROWS", (*rows, estimated, new("ppo", "MountainCar-v0")))
    for row, seconds in zip(rows, (30.0, 10.0, 20.0), strict=True):
        record = recorded(bench, row, (11, 12, 13) if seconds == 20 else (1, 12, 13))
        for run in record["runs"]:
            run["train_s"] = seconds
        bench.records.path_of(row).write_text(json.dumps(record))
    cells = bench.suite.stale_cells()
    costs = [("Acrobot-v1", 10.0)] * 3 + [("CartPole-v1", 12.0)] + [("CartPole-v1", 30.0)] * 3
    assert [(row.env, cost) for row, _, cost in cells] == costs + [("MountainCar-v0", None)] * 3
    assert {row.algo for row, *_ in bench.suite.stale_cells("acer-*")} == {"acer"}
    ran: list[tuple[str, int]] = []
    monkeypatch.setattr(
        bench.suite, "run_seed", lambda task, _: ran.append((task.row.env, task.seed)) or True
    )
    session = bench.suite.Session(tmp_path, ends=time.monotonic() + 15.0)
    assert not bench.suite.run_cells(cells, session)
    assert ran == [("Acrobot-v1", 11), ("Acrobot-v1", 12), ("Acrobot-v1", 13), ("CartPole-v1", 11)]


def test_a_seed_that_fails_stands_in_the_record_until_it_is_run(
    bench: SimpleNamespace, tmp_path: Path
):
    row = bench.rows.Row("ppo", "No-Such-Env", label="x", options=("gamma=0.9",), seeds=(11,))
    assert not bench.suite.run_row(row, row.seeds, bench.suite.Session(tmp_path))
    record = json.loads(bench.records.path_of(row).read_text())
    assert record["runs"] == []
    (failed,) = record["failed"]
    assert (failed["seed"], failed["status"]) == (11, 1)
    assert "No-Such-Env" in failed["said"]
    assert bench.records.standing(row._replace(env="CartPole-v1")).missing == (11,)


def test_random_actions_score_as_in_an_evaluation(bench: SimpleNamespace, tmp_path: Path):
    own = {"env.success": "reward>0.5", "env.num_streams": 4, "eval.episodes": 0}
    trained = quintet.train("ppo", TOY, 2_048, run_dir=tmp_path / "run", config=own)
    scores = quintet.evaluate(trained.policy, random=True)
    config = {f"env.{name}": value for name, value in trained.policy.env}
    assert bench.suite.random_score(config) == {
        "return_mean": round(scores.mean, 3), "return_std": round(scores.std, 3),
        "success_rate": scores.success_rate,
    }  # fmt: skip


def test_the_suite_names_bars_anchors_and_cells(bench: SimpleNamespace, tmp_path: Path):
    tasks = bench.rows.TASKS
    assert {task.number for task in tasks if task.number} == {*range(1, 31)}
    names = [row.name for row in bench.rows.ROWS]
    assert len(names) == len({*names})
    for task in tasks:
        assert all(row.env == task.env for row in task.rows)
        assert task.bar is None or task.env_steps is not None
    wrong = tmp_path / "suite.toml"
    task = '[sources]\n[[task]]\nenv = "CartPole-v1"\ncells = []\n'
    wrong.write_text(task + 'anchors = [{learner = "ppo", score = 1, seeds = 1, source = "me"}]\n')
    with pytest.raises(ValueError, match="me"):
        bench.rows.read_suite(wrong)
    wrong.write_text(task + "bars = 3\n")
    with pytest.raises(TypeError, match="bars"):
        bench.rows.read_suite(wrong)


SMALL = (
    "total_env_steps=10000", "env.num_streams=4", "unroll_steps=64", "num_epochs=1",
    "model.policy_hidden=[8]", "runtime.compile=off", "eval.episodes=0", "report.interval_s=0",
)  # fmt: skip
DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
import records, suite
from one_seed import Task
records.RESULTS = Path({results!r})
row = Task.of({task!r}).row
sys.exit(not suite.run_row(row, row.seeds, suite.Session(Path({folder!r}))))
"""


@pytest.mark.slow
def test_a_killed_session_goes_on_where_it_was(bench: SimpleNamespace, tmp_path: Path):
    env = "quintet.envs.toy:Contextual"
    row = bench.rows.Row("ppo", env, label="small", options=SMALL, seeds=(11, 12))
    folder = tmp_path / "work"
    first, second = (bench.one_seed.Task(row, seed, folder, 1) for seed in row.seeds)
    recorded(bench, row, (1, 2))
    old = bench.records.path_of(row).read_text()
    script = DRIVER.format(
        benchmarks=str(BENCHMARKS), results=str(tmp_path / "results"), task=first.text(),
        folder=str(folder),
    )  # fmt: skip
    session = subprocess.Popen([sys.executable, "-c", script])
    metrics = second.run_dir / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(session.pid, signal.SIGKILL)
    session.wait()
    assert first.part.exists()
    assert bench.records.path_of(row).read_text() == old  # half a row is none
    kept = json.loads(first.part.read_text())

    assert bench.suite.run_row(row, row.seeds, bench.suite.Session(folder))
    record = json.loads(bench.records.path_of(row).read_text())
    assert [run["seed"] for run in record["runs"]] == [11, 12]
    assert record["runs"][0] == {k: v for k, v in kept.items() if k != "config"}
    assert "resumed" not in record["runs"][0]
    assert record["runs"][1]["resumed"] == 1
    assert record["runs"][1]["curve"][-1]["env_steps"] == 10_000
    steps = [row["env_steps"] for row in record["runs"][1]["curve"]]
    assert steps == sorted(steps)
    assert record["random"]["return_mean"] == 0.25  # taken over, as it was there
    assert 0 < record["runs"][0]["entropy"] <= 1.1
    assert bench.records.standing(row) == ((), (), ())
    assert sorted(path.suffix for path in folder.iterdir() if path.is_file()) == [".log", ".log"]


def test_what_another_configuration_left_is_not_gone_on_with(
    bench: SimpleNamespace, tmp_path: Path
):
    row = bench.rows.Row("ppo", "CartPole-v1")
    task = bench.one_seed.Task(row, 11, tmp_path, 1)
    config = task.run_dir / "checkpoints"

    def prepared(commits: list[str] | None, **changed: Any) -> list[str]:
        values = {**bench.records.today(row, None), **changed}
        save_options(task.run_dir, values)
        task.begun.unlink(missing_ok=True)
        if commits is not None:
            task.begun.write_text(json.dumps(commits))
        return bench.one_seed.prepare(task)

    assert prepared(["a"])[:-1] == ["a"]
    assert config.exists()
    assert len(prepared(["a"], gamma=0.5)) == 1
    assert not config.exists()
    assert len(prepared(None)) == 1  # nobody knows whose it is
    assert not config.exists()
    task.part.write_text(json.dumps(part(11, {**bench.records.today(row, None), "gamma": 0.5})))
    assert bench.suite.kept(task) is None
    task.part.write_text(json.dumps(part(11, bench.records.today(row, None))))
    assert bench.suite.kept(task) is not None


def test_a_new_option_does_not_make_all_records_stale(bench: SimpleNamespace) -> None:
    """One that changes nothing of what is learned does not count, see `records.OF_THE_SESSION`."""
    stored = BENCHMARKS / "results"
    rows = [row for row in bench.rows.ROWS if row.algo == "ppo" and not row.is_peers]
    rows = [row for row in rows if (stored / f"{row.name}.json").exists()][:4]
    configs = [json.loads((stored / f"{row.name}.json").read_text())["config"] for row in rows]
    found = [bench.records.differences(*each) for each in zip(rows, configs, strict=True)]
    assert rows
    assert not all(found), found
