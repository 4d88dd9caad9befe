"""A run of a sweep that can't resume with the same bytes begins again."""

from pathlib import Path
from typing import Any

import pytest
from small_run_helpers import SMALL, TOY

from quintet.checkpoints import checkpoint, run_record
from quintet.options.layers import Layer
from quintet.options.saved import load_config
from quintet.search import pruning


def write(folder: Path, *metas: dict[str, Any]) -> Path:
    for number, meta in enumerate(metas):
        checkpoint.write(folder, f"{number:09d}", {}, meta)
    return folder


ROWS = {"replay": {"rows": [0, 9]}}


@pytest.mark.parametrize(
    ("metas", "exactly"),
    [
        ([], True),
        ([{"exact": True, "replay": None}, {"exact": False, "replay": None}], True),
        ([{"exact": False, "replay": None}], False),
        ([{"exact": True, **ROWS}], True),
        ([{"exact": True, **ROWS}, {"exact": False, **ROWS}], False),
        (
            [{"exact": True, "policies": [ROWS] * 2}, {"exact": False, "policies": [ROWS] * 2}],
            False,
        ),
    ],
)
def test_replay_may_have_lost_the_rows_of_an_older_checkpoint(
    metas: list[dict[str, Any]], exactly: bool, tmp_path: Path
) -> None:
    assert pruning.resumes_exactly(write(tmp_path / "checkpoints", *metas)) == exactly


def test_a_damaged_only_checkpoint_makes_a_run_begin_again(tmp_path: Path) -> None:
    folder = write(tmp_path / "checkpoints", {"exact": True, "replay": None})
    for path in (folder / f"{0:09d}").iterdir():
        path.write_bytes(b"?")
    assert not pruning.resumes_exactly(folder)


@pytest.mark.parametrize("theirs", [1e6, -1e6])
def test_a_trial_ends_where_others_were_better(theirs: float, tmp_path: Path) -> None:
    given = {**SMALL, "env.id": TOY, "run_dir": str(tmp_path), "total_env_steps": 1280}
    given |= {"report.interval_s": 0.0}
    loaded = load_config("ppo", [], Layer("test", given))
    curve = [[step, theirs] for step in range(1, 11)]
    other = {"state": "COMPLETE", "values": [theirs], "curve": curve, "attrs": {}}
    watch = {"metric": "episode/return_mean", "total": 1280, "pruner": "median"}
    payload = {"watch": {**watch, "others": [other] * 5}}
    answer = pruning.train_trial(loaded, payload)
    pruned = theirs > 0
    assert answer["status"] == ("pruned" if pruned else "finished")
    steps = [step for step, _ in answer["curve"]]
    assert steps == [*range(1, 4 if pruned else 10)]  # no episode ends after the last report
    assert (run_record.read(tmp_path).state == "stopped") == pruned
    if pruned:  # its process may have been killed before its answer was stored
        written = (tmp_path / "metrics.jsonl").read_bytes()
        assert pruning.train_trial(loaded, payload) == answer
        assert (tmp_path / "metrics.jsonl").read_bytes() == written


@pytest.mark.parametrize(
    ("asked", "exact", "overwrite"),
    [("exact", True, False), ("exact", False, True), ("latest", False, False)],
)
def test_only_what_should_resume_exactly_begins_again(
    asked: str, exact: bool, overwrite: bool, tmp_path: Path
) -> None:
    given = {**SMALL, "env.id": TOY, "run_dir": str(tmp_path), "resume": asked}
    config = {"algo": "ppo", **SMALL, "env.id": TOY}
    write(tmp_path / "checkpoints", {"exact": exact, "replay": None, "config": config})
    found = pruning.resuming_or_anew(load_config("ppo", [], Layer("test", given)))
    assert found.overwrite == overwrite
    assert found.config.resume == ("latest" if overwrite else asked)
