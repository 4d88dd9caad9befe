"""``quintet compare``: sides, kinds of scores, places on curves, and what it refuses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from forged_runs_helpers import forged

from quintet.checkpoints.lock import run_lock
from quintet.commands import cli

pytest.importorskip("scipy")


def record(path: Path, scores: list[float], env: str = "CartPole-v1", **more: Any) -> Path:
    """A record of benchmarks with a run for each score; curves of training are half as high."""
    runs = [
        {
            "seed": seed,
            "return_mean": score,
            "curve": [
                {"env_steps": n, "wall_s": n / 100, "episode/return_mean": score * n / 2000}
                for n in (500.0, 1000.0)
            ],
            "evaluations": [[400, score / 5], [800, score * 0.9]],
        }
        for seed, score in enumerate(scores)
    ]
    whole = {"algo": "ppo", "env": env, "random": {"return_mean": 0.0}, "config": {}, "runs": runs}
    path.write_text(json.dumps(whole | more))
    return path


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def groups(place: Path) -> Path:
    """Two groups of six seeds; those of `high` score more in evaluations, `low` in training."""
    for seed in range(6):
        options = {"seed": seed}
        forged(place / f"high/s{seed}", options, **{"eval/return_mean": 300.0 + seed})
        forged(place / f"low/s{seed}", options, **{"eval/return_mean": 200.0 + seed})
    return place


def found(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["compare", *words, "--json"]) == 0
    whole: dict[str, Any] = json.loads(capsys.readouterr().out)
    return whole


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["compare", *words]) in (1, 2)
    told = capsys.readouterr().err
    assert re.fullmatch(r"error: .* must .*, got .*: .*\n", told), told
    return told


def test_a_table_says_who_is_better(groups: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "high", "--with", "low", "--out", "a.svg"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "high: 6 runs, scored by last evaluation"
    row = next(line for line in lines if line.startswith("CartPole-v1  low"))
    assert row.split()[1:4] == ["low", "6", "202.5"]
    assert row.split()[-4:] == ["1", "[1,", "1]", "high"]
    assert lines[-1] == "a.svg"
    assert Path("a.svg").stat().st_size > 10_000


def test_sides_by_name_and_by_place(groups: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forged(groups / "lr=0.1/s0", **{"eval/return_mean": 1.0})
    for words in (
        ["ours=high", "theirs=low"],
        ["ours=high/s0", *(f"high/s{k}" for k in range(6)), "--with", "theirs=low"],
        ["--with", "ours=high", "--with", "theirs=low"],
    ):
        told = found(capsys, *words)
        assert {side: len(own["CartPole-v1"]) for side, own in told["scores"].items()} == {
            "ours": 6,
            "theirs": 6,
        }
    assert [*found(capsys, "high", "--with", "lr=0.1")["scores"]] == ["high", "lr=0.1"]
    assert [*found(capsys, "high", "--with", "x=lr=0.1")["scores"]] == ["high", "x"]
    three = found(capsys, "high", "--with", "low", "--with", "lr=0.1")
    assert [duel["names"][1] for duel in three["parts"][0]["duels"]] == ["low", "lr=0.1"]


def test_kinds_of_scores(groups: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(2):
        forged(groups / f"plain/s{seed}", {"seed": seed, "eval": {"greedy": False}})
        sampled = {"seed": seed, "eval": {"greedy": False}}
        forged(groups / f"sampled/s{seed}", sampled, **{"eval/return_mean": 7.0})
    record(groups / "r.json", [10.0, 20.0])
    told = found(capsys, "r.json", "--with", "high", "--with", "plain", "--with", "sampled")
    assert told["said"] == [
        "r.json: 2 runs, scored by final evaluation",
        "high: 6 runs, scored by last evaluation",
        "plain: 2 runs, scored by returns of training",
        "sampled: 2 runs, scored by last evaluation, sampled actions",
        "warning: these kinds of scores differ even for one policy",
    ]
    values = {side: own["CartPole-v1"] for side, own in told["scores"].items()}
    assert (values["r.json"], values["plain"]) == ([10.0, 20.0], [200.0, 200.0])
    told = found(capsys, "high", "low", "--with", "plain", "high/../sampled")
    assert told["said"][1] == "plain: 4 runs, scored by returns of training", "which all have"


def test_places_on_curves(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(place / "a.json", [100.0, 200.0])
    record(place / "b.json", [10.0, 20.0])
    for words, scores, said in (
        (["--at-steps", "400"], [20.0, 40.0], "400 env_steps"),
        (["--at-steps", "799"], [20.0, 40.0], "799 env_steps"),
        (["--at-seconds", "8"], [90.0, 180.0], "8 wall_s"),
        (["--equal", "steps"], [90.0, 180.0], "1,000 env_steps"),
        (["--equal", "seconds"], [90.0, 180.0], "10 wall_s"),
    ):
        told = found(capsys, "a.json", "--with", "b.json", *words)
        assert told["scores"]["a.json"]["CartPole-v1"] == scores, words
        assert f"CartPole-v1: scored at {said}" in told["said"]
    whole = json.loads(record(place / "c.json", [1.0, 2.0]).read_text())
    whole["runs"][0]["evaluations"] = [[900, 5.0]]
    (place / "c.json").write_text(json.dumps(whole))
    told = found(capsys, "a.json", "--with", "c.json", "--at-steps", "700")
    assert told["said"][1] == "c.json: 2 runs, scored by returns of training", "the first score"
    assert told["scores"]["c.json"]["CartPole-v1"] == [0.25, 0.5]
    short = record(place / "c.json", [1.0])
    whole = json.loads(short.read_text())
    whole["runs"][0]["curve"].pop()
    whole["runs"][0]["evaluations"].pop()
    short.write_text(json.dumps(whole))
    told = found(capsys, "a.json", "--with", "c.json", "--equal", "steps")
    assert told["scores"]["a.json"]["CartPole-v1"] == [20.0, 40.0], "up to the shorter run's end"
    assert "compare with --equal steps" in refused(
        capsys, "a.json", "--with", "c.json", "--at-steps", "1000"
    )
    assert "give a later place" in refused(capsys, "a.json", "--with", "c.json", "--at-steps", "9")
    refused(capsys, "a.json", "--with", "c.json", "--at-steps", "9", "--equal", "steps")
    refused(capsys, "a.json", "--with", "c.json", "--at-seconds", "nan")


def test_several_tasks(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(place / "a.json", [100.0, 200.0])
    record(place / "a2.json", [1.0, 2.0], "Acrobot-v1")
    record(place / "a3.json", [1.0, 2.0], "Taxi-v3")
    record(place / "b.json", [50.0, 100.0], bar=500.0)
    record(place / "b2.json", [2.0, 3.0], "Acrobot-v1", bar=4.0)
    words = ["ours=a.json", "a2.json", "a3.json", "theirs=b.json", "b2.json"]
    told = found(capsys, *words)
    assert "left out, since not all sides have them: Taxi-v3" in told["said"]
    assert told["said"][-1] == "over tasks 0 is the return of random actions and 1 that of the bar"
    ours, theirs = told["parts"][-1]["sides"]
    assert ours["mean"] == pytest.approx((0.3 + 1.5 / 4) / 2)
    assert theirs["mean"] == pytest.approx((0.15 + 2.5 / 4) / 2)
    Path("bars.json").write_text('{"CartPole-v1": {"random": 100, "bar": 200}}')
    told = found(capsys, *words, "--bars", "bars.json")
    assert told["parts"][0]["scale"] == [100.0, 200.0]
    record(place / "b2.json", [2.0, 3.0], "Acrobot-v1")
    told = found(capsys, *words)
    assert told["said"][-1].startswith("over tasks 0 is the lowest and 1 the highest score of all")
    assert [part["scale"] for part in told["parts"][:2]] == [[50.0, 200.0], [1.0, 3.0]]
    Path("bars.json").write_text('{"CartPole-v1": {"random": 100, "bar": 100}}')
    assert "above random" in refused(capsys, *words, "--bars", "bars.json")
    Path("bars.json").write_text('{"CartPole-v1": 3}')
    refused(capsys, *words, "--bars", "bars.json")


def test_tasks_that_are_not_the_same(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(place / "a.json", [1.0, 2.0], config={"env.backend": "envpool"})
    record(place / "b.json", [1.0, 2.0], config={"env.backend": "gymnasium"})
    told = found(capsys, "a.json", "--with", "b.json")
    assert told["said"][2] == (
        'warning: CartPole-v1 is not the same in all runs, env.backend: "envpool" and "gymnasium"'
    )


def test_one_seed_says_nothing_of_others(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(place / "a.json", [100.0])
    record(place / "b.json", [1.0, 2.0, 3.0])
    assert cli.main(["compare", "a.json", "--with", "b.json", "--out", "a.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].endswith(
        "one run does not show how others vary, so add seeds to sides that have only one"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("runs", []),
        ("runs", "many"),
        ("runs", [{"seed": 1}]),
        ("runs", [{"return_mean": float("nan")}]),
        ("runs", [{"return_mean": float("inf")}]),
        ("runs", [{"return_mean": "12"}]),
        ("runs", [{"return_mean": 1, "curve": [{"env_steps": float("nan")}]}]),
        ("runs", [{"return_mean": 1, "evaluations": [[1]]}]),
        ("runs", [{"return_mean": 10**400}]),
        ("env", 3),
        ("env", "\x1b[2J" * 100),
        ("random", {"return_mean": None}),
        ("config", []),
    ],
)
def test_records_of_strangers(
    place: Path, capsys: pytest.CaptureFixture[str], name: str, value: Any
) -> None:
    record(place / "a.json", [1.0, 2.0])
    record(place / "b.json", [1.0, 2.0], **{name: value})
    told = refused(capsys, "a.json", "--with", "b.json")
    assert "b.json must be a record" in told
    assert "\x1b" not in told


def test_what_is_refused(groups: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "two sides, got 1" in refused(capsys, "high")
    assert "two sides, got 0" in refused(capsys)
    assert "got nowhere" in refused(capsys, "high", "--with", "nowhere")
    (groups / "empty").mkdir()
    assert "got empty" in refused(capsys, "high", "--with", "empty")
    assert "on one side" in refused(capsys, "high", "--with", "b=low", "high/s1")
    for name in ("not.json", "list.json"):
        (groups / name).write_text("[" if name == "not.json" else "[1]")
        assert f"{name} must be a record" in refused(capsys, "high", "--with", name)
    record(groups / "other.json", [1.0], "Acrobot-v1")
    assert "share an environment" in refused(capsys, "high", "--with", "other.json")
    bare = forged(groups / "bare/s0")
    (bare / "metrics.jsonl").write_text("")
    assert "got bare/s0 (finished, without scores)" in refused(capsys, "high", "--with", "bare")
    (bare / "config.yaml").write_text("[")
    assert "got bare/s0" in refused(capsys, "high", "--with", "bare")
    stopped = forged(groups / "stopped/s0")
    (stopped / "run.json").write_text('{"state": "stopped"}')
    assert "(interrupted)" in refused(capsys, "high", "--with", "stopped")
    assert cli.main(["compare", "high", "--with", "stopped", "--equal", "steps"]) == 0
    capsys.readouterr()
    with (groups / "stopped/s0/metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 2100, "eval/return_mean": NaN}\n')
    assert "(damaged)" in refused(capsys, "high", "--with", "stopped")
    with run_lock(groups / "low/s3"):
        assert "got low/s3 (running)" in refused(capsys, "high", "--with", "low")
    assert cli.main(["compare", "high", "--with", "low", "--out", "a.txt"]) == 1


def written(*words: str) -> str:
    assert cli.main(["report", *words, "--out", "page.html"]) == 0
    return Path("page.html").read_text()


def test_a_report_compares_groups(groups: Path) -> None:
    pytest.importorskip("jinja2")
    for seed in range(6):
        forged(groups / f"fast/s{seed}", {"seed": seed, "gamma": 0.5}, **{"eval/return_mean": 9.0})
        slow = {"seed": seed, "gamma": 0.9, "algo": "<i>ppo</i>"}
        forged(groups / f"slow/s{seed}", slow, **{"eval/return_mean": 200.0 + seed})
    page = written("fast", "slow")
    assert "Groups of runs compared" in page
    assert "0 [0, 0]</td><td>&lt;i&gt;ppo&lt;/i&gt;</td>" in page
    assert "Fractions of runs, means and comparisons" in page
    assert "<i>" not in page
    assert "Groups of runs compared" not in written("fast")
    assert "Groups of runs compared" not in written("fast/s1", "slow/s1"), "one run does not show"
    (groups / "slow/s2/run.json").write_text('{"state": "stopped"}')
    assert "5 runs, scored by last evaluation" in written("fast", "slow"), "without unfinished ones"
