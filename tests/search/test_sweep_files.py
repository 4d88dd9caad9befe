"""What the terminal and the files say of a sweep."""

import csv
from pathlib import Path

import pytest

pytest.importorskip("optuna")
from quintet.search.space import Dimension
from quintet.search.sweep import Found
from quintet.search.sweep_files import _interval, lines, write
from quintet.search.sweep_journal import Trial


def trial(number: int, score: float) -> Trial:
    return Trial(number=number, state="complete", score=score, drawn={"gamma": 0.9})


def test_the_interval_is_that_of_the_mean_and_one_seed_has_none() -> None:
    """That of the interquartile mean would end at 15."""
    assert _interval([]) == "-"
    assert _interval([7.0]) == "7, 1 seed"
    assert _interval([1.0, 1.0, 1.0]) == "1, 3 equal seeds"
    assert _interval([3.0, 1.0]) == "2 [1, 3], 2 seeds"
    assert _interval([0.0] * 9 + [90.0]) == "9 [0, 27], 10 seeds"


def test_fresh_seeds_are_written_one_by_one(tmp_path: Path) -> None:
    trials = [trial(each, 1.0) for each in range(3)]
    found = Found(tmp_path, [Dimension("gamma", 0.5, 0.99)], "eval/return_mean", trials, {})
    found.fresh = {0: [3.0, 1.0], 1: [7.0]}
    write(found)
    with (tmp_path / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [f"fresh_seeds{x}" for x in ("", "_mean", "_low", "_high", "_scores")]
    assert [[row[name] for name in names] for row in rows] == [
        ["2", "2.0", "1.0", "3.0", "3.0 1.0"], ["1", "7.0", "", "", "7.0"], [""] * 5,
    ]  # fmt: skip


@pytest.mark.parametrize(("count", "doubtful"), [(49, True), (50, False)])
def test_importances_are_told_drawn_and_doubted(count: int, doubtful: bool, tmp_path: Path) -> None:
    trials = [trial(each, float(each)) for each in range(count)]
    trials.append(Trial(number=count, state="fail", drawn={"gamma": 0.8}, error="it diverged"))
    space = [Dimension("gamma", 0.5, 0.99)]
    found = Found(tmp_path, space, "eval/return_mean", trials, {})
    found.importances = {"gamma": 1.0}
    *_, last = lines(found)
    said = "importance for the score: gamma 1.00"
    assert last == said + " (doubtful with fewer than 50 trials)" * doubtful
    assert write(found) == ["trials.csv", "best.yaml", "importance.png"]
    assert (tmp_path / "importance.png").stat().st_size > 1_000
