"""The study: what is drawn, what is kept of it, and when trials are pruned."""

import json
from pathlib import Path
from typing import Any

import pytest

from quintet.errors import ConfigError
from quintet.search import sweep_journal as journal
from quintet.search.journal import Damaged
from quintet.search.space import Dimension

pytest.importorskip("optuna")
from quintet.search.pruning import Watch
from quintet.search.study import Study, judge

SPACE = [
    Dimension("learning_rate", 1e-5, 1e-1, log=True),
    Dimension("num_epochs", 1, 20, whole=True),
    Dimension("model.activation", choices=("tanh", "relu")),
]


def opened(folder: Path) -> Study:
    return Study(folder, SPACE, journal.read(folder, SPACE))


def searched(folder: Path, *, reopened: bool, order: int = 1) -> list[dict[str, Any]]:
    """14 trials in batches of two, which end in the given order."""
    folder.mkdir()
    study = Study(folder, SPACE)
    for first in range(0, 14, 2):
        for _ in range(2):
            study.begin("tpe", 5, 2, None)
            if reopened:
                study = opened(folder)
        for number in (first, first + 1)[::order]:
            score = -abs(study.trials()[number].drawn["num_epochs"] - 7.0)
            if number == 3:
                study.end(number, "fail", {"error": "a reason"})
            else:
                study.end(number, "complete", {"score": score, "curve": [[1, score]]})
    return [each.drawn for each in study.trials()]


def test_a_reopened_study_draws_the_same_in_whatever_order_trials_end(tmp_path: Path) -> None:
    whole = searched(tmp_path / "a", reopened=False)
    assert searched(tmp_path / "b", reopened=True, order=-1) == whole
    assert len({each["learning_rate"] for each in whole}) == 14


def test_a_trial_of_a_batch_knows_nothing_of_its_batch(tmp_path: Path) -> None:
    """As where a sweep of an odd number of trials is given more."""
    one_by_one = Study(tmp_path, SPACE)
    whole = searched(tmp_path / "a", reopened=False)
    for number in range(14):
        one_by_one.begin("tpe", 5, 2, None)
        score = -abs(one_by_one.trials()[number].drawn["num_epochs"] - 7.0)
        if number == 3:
            one_by_one.end(number, "fail", {"error": "a reason"})
        else:
            one_by_one.end(number, "complete", {"score": score, "curve": [[1, score]]})
    assert [each.drawn for each in one_by_one.trials()] == whole


def test_the_score_changes_what_is_drawn(tmp_path: Path) -> None:
    drawn = []
    for name, sign in (("a", 1.0), ("b", -1.0)):
        (tmp_path / name).mkdir()
        study = Study(tmp_path / name, SPACE)
        for number in range(14):
            study.begin("tpe", 5, 1, None)
            rate = study.trials()[number].drawn["learning_rate"]
            study.end(number, "complete", {"score": sign * rate})
        drawn.append([each.drawn for each in study.trials()])
    assert drawn[0][:10] == drawn[1][:10]
    assert drawn[0] != drawn[1]


def test_trials_come_back_with_their_ends(tmp_path: Path) -> None:
    study = Study(tmp_path, SPACE)
    first = {"learning_rate": 1e-3, "num_epochs": 4, "model.activation": "relu"}
    for _ in range(4):
        study.begin("random", 0, 4, first)
    study.end(0, "complete", {"score": 2.0})
    study.end(1, "fail", {"error": "it diverged"})
    study.end(2, "pruned", {"curve": [[1, 0.5]], "attrs": {"rung": 1}})
    study.spend(3.0)
    again = opened(tmp_path)
    assert again.trials()[0].drawn == first
    assert [(each.state, each.score, each.error) for each in again.trials()] == [
        ("complete", 2.0, ""),
        ("fail", None, "it diverged"),
        ("pruned", 0.5, ""),
        ("running", None, ""),
    ]
    assert again.spent_s == 3.0
    known = again.facts_for_pruning(3, 1)
    assert [each["state"] for each in known] == ["COMPLETE", "FAIL", "PRUNED"]
    assert [each["values"] for each in known] == [[2.0], None, [0.5]]
    assert [each["curve"] for each in known] == [[], [], [(1, 0.5)]]
    assert [each["attrs"].get("rung") for each in known] == [None, None, 1]
    assert again.facts_for_pruning(3, 4)[0]["state"] == "RUNNING"


def test_another_sweep_is_refused_with_what_differs(tmp_path: Path) -> None:
    for _ in range(2):
        opened(tmp_path).require_same({"algo": "ppo", "seed": 0, "search": [(1, 2)]})
    with pytest.raises(ConfigError, match=r"seed: the sweep has 0, this command has 1"):
        opened(tmp_path).require_same({"algo": "ppo", "seed": 1, "search": [(1, 2)]})


GOOD = {"learning_rate": 1e-3, "num_epochs": 4, "model.activation": "relu"}


@pytest.mark.parametrize(
    ("trial", "how"),
    [
        ({"drawn": {**GOOD, "model.activation": "tahn"}}, "trial 0 has another search space"),
        ({"drawn": {**GOOD, "learning_rate": 0.5}}, "another search space"),
        ({"drawn": {**GOOD, "learning_rate": float("nan")}}, "another search space"),
        ({"drawn": {**GOOD, "num_epochs": 4.5}}, "another search space"),
        ({"drawn": {**GOOD, "num_epochs": True}}, "another search space"),
        ({"drawn": {"num_epochs": 4}}, "another search space"),
        ({"drawn": "text"}, "trials.0.drawn: input should be a valid dictionary"),
        ({"state": "complete", "score": float("nan")}, "trials.0.score"),
        ({"state": "complete"}, "score must be there"),
        ({"state": "asleep"}, "trials.0.state"),
        ({"curve": [[1, 2, 3]]}, "trials.0.curve.0"),
        ({"number": 3}, "trials must be numbered from 0"),
    ],
)
def test_what_a_journal_says_is_checked(tmp_path: Path, trial: dict[str, Any], how: str) -> None:
    study = opened(tmp_path)
    study.add(GOOD)
    path = tmp_path / journal.FILE
    held = json.loads(path.read_text())
    held["trials"] = [{**held["trials"][0], **trial}]
    path.write_text(json.dumps(held))
    with pytest.raises(Damaged, match=r"is a damaged journal of a sweep") as said:
        opened(tmp_path)
    assert how in str(said.value)


def test_optuna_reads_the_trials_that_have_ended(tmp_path: Path) -> None:
    import optuna

    searched(tmp_path / "a", reopened=False)
    study = opened(tmp_path / "a")
    study.begin("random", 0, 1, None)
    for _ in range(2):
        study.write_for_optuna()
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "a" / "journal.log"))
    found = optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend))
    assert [each.params for each in found.trials] == [x.drawn for x in study.trials()][:-1]


def others(count: int, score: float) -> list[dict[str, Any]]:
    curve = [[step, score] for step in range(1, 11)]
    return [
        {"state": "COMPLETE", "values": [score], "curve": curve, "attrs": {}} for _ in range(count)
    ]


def test_the_median_ends_a_bad_trial_and_not_a_good_one() -> None:
    for score, pruned in ((0.0, True), (9.0, False)):
        ends, _ = judge("median", others(5, 4.0))
        assert not any(ends(step, score) for step in (1, 2))  # it may be a slow starter
        assert [ends(step, score) for step in (3, 4, 5)] == [pruned] * 3
    ends, _ = judge("none", others(5, 4.0))
    assert not ends(5, 0.0)


def test_hyperband_ends_trials_by_what_earlier_ones_left(tmp_path: Path) -> None:
    """Twelve trials of falling scores: those that rank last at a rung end there."""
    study = Study(tmp_path, SPACE)
    lengths = []
    for number in range(12):
        study.begin("random", 0, 1, None)
        ends, attrs = judge("hyperband", study.facts_for_pruning(number, 1))
        curve = []
        for step in range(1, 11):
            curve.append([step, float(-number)])
            if ends(step, float(-number)) and step < 10:
                break
        lengths.append(len(curve))
        answer = {"score": float(-number), "curve": curve, "attrs": attrs()}
        study.end(number, "complete" if len(curve) == 10 else "pruned", answer)
    assert lengths[0] == 10
    assert min(lengths) < 10


@pytest.mark.parametrize("count", [3, 60])
def test_the_option_that_decides_the_score_is_the_most_important(
    count: int, tmp_path: Path
) -> None:
    study = Study(tmp_path, SPACE)
    for number in range(count):
        study.begin("random", 5, 1, None)
        study.end(number, "complete", {"score": -study.trials()[number].drawn["num_epochs"]})
    found, unknown = study.importances()
    if count == 3:
        assert found == {}
        assert unknown == "importances need 4 complete trials, got 3"
    else:
        assert {*found} == {one.key for one in SPACE}
        assert found["num_epochs"] > 0.6
        assert sum(found.values()) == pytest.approx(1.0)


def test_a_trial_that_starts_again_ends_where_it_ended(tmp_path: Path) -> None:
    lines = [
        f'{{"env_steps": {100 * step}, "wall_s": {step}, "eval/return_mean": 0.0}}\n'
        for step in range(1, 9)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    watch = Watch("eval/return_mean", 1000, "median", others(5, 4.0))
    assert watch.reread(tmp_path)
    assert list(watch.curve) == [1, 2, 3]
    good = Watch("eval/return_mean", 1000, "median", others(5, -4.0))
    assert not good.reread(tmp_path)
    assert list(good.curve) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not good.hear({"env_steps": 850.0, "episode/return_mean": 1.0})
    assert good.score == 0.0
