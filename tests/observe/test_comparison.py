"""Statistics of `quintet compare`, against rliable, brute force and chance."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintet.observe import comparison
from quintet.observe.comparison import MOST_SEEDS, Part, compare, improvement, pooled_scale
from quintet.observe.intervals import iqm, resampled

stats = pytest.importorskip("scipy.stats")

REFERENCE = json.loads((Path(__file__).parent.parent / "golden" / "rliable.json").read_text())
NOISE = 0.07
"""Widths by which ends of 2,000 resamples differ from those of 20,000: four standard errors."""


def of_case(case: dict[str, Any]) -> list[Part]:
    sides = {
        name: {f"task {k}": np.array(x) for k, x in enumerate(zip(*own["scores"], strict=True))}
        for name, own in zip("ab", case["sides"], strict=True)
    }
    return compare(sides, dict.fromkeys(sides["a"], (0.0, 1.0)))


def near(found: Any, value: float, ends: list[float], step: float = 0.0) -> bool:
    """Whether an estimate is the reference's; step: between two values that it can have."""
    low, high = ends
    most = NOISE * (high - low) + step + 1e-9
    exact = math.isclose(found.value, value, rel_tol=1e-9, abs_tol=1e-12)
    return exact and abs(found.low - low) <= most and abs(found.high - high) <= most


def check(case: dict[str, Any]) -> None:
    part = of_case(case)[-1]
    runs = [len(own["scores"]) for own in case["sides"]]
    tasks = len(case["sides"][0]["scores"][0])
    assert part.task == ""
    for side, own, count in zip(part.sides, case["sides"], runs, strict=True):
        assert side.runs == count * tasks
        assert side.mean == pytest.approx(own["mean"])
        scores = np.array(own["scores"])
        coarse = 0.25 / (scores.size / 2) if (scores % 0.25 == 0).all() else 0.0
        assert near(side.iqm, own["iqm"], own["iqm_interval"], coarse)
        profile = zip(own["profile"], zip(*own["profile_interval"], strict=True), strict=True)
        for place, (value, ends) in zip((10, 20, 30, 40), profile, strict=True):
            assert near(side.profile[place], value, ends, 1 / count / tasks)
    (duel,) = part.duels
    step = 1 / math.prod(runs) / tasks
    assert near(duel.improvement, case["improvement"], case["improvement_interval"], step)


@pytest.mark.parametrize("name", REFERENCE)
def test_numbers_are_those_of_rliable(name: str) -> None:
    check(REFERENCE[name])


def of_all_runs(statistic: Callable[..., Any], *strata: np.ndarray) -> Any:
    """`resampled` with a fault: it draws runs of all tasks."""
    cuts = np.cumsum([len(x) for x in strata])[:-1]
    return resampled(lambda x: statistic(*np.split(x, cuts, axis=-1)), np.concatenate(strata))


FAULTS = {
    "the mean for the interquartile mean": ("iqm", lambda *x: np.concatenate(x, -1).mean(-1)),
    "draws from all tasks": ("resampled", of_all_runs),
    "swapped sides": ("improvement", lambda *x: improvement(*x[len(x) // 2 :], *x[: len(x) // 2])),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_reference_catches_faults(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, *FAULTS[fault])
    with pytest.raises(AssertionError):
        check(REFERENCE["five runs of tasks far apart"])


def test_tasks_have_equal_weights() -> None:
    rng = np.random.default_rng(0)
    tasks = [rng.normal(size=6) for _ in range(3)]
    assert iqm(*tasks) == pytest.approx(stats.trim_mean(np.concatenate(tasks), 0.25))
    assert iqm(np.zeros(12), np.ones(4)) == pytest.approx(0.5), "not pulled to the longer task"
    assert iqm(np.ones(4), np.zeros(12)) == pytest.approx(0.5)
    part = compare(
        {"a": {"x": np.zeros(9), "y": np.ones(3)}, "b": {"x": np.zeros(3), "y": np.ones(9)}},
        {"x": (0.0, 1.0), "y": (0.0, 1.0)},
    )[-1]
    assert [side.mean for side in part.sides] == [0.5, 0.5]
    assert [side.profile[20].value for side in part.sides] == [0.5, 0.5]
    assert part.duels[0].improvement.value == 0.5


def test_improvement_counts_pairs() -> None:
    a, b = np.array([1.0, 2.0, 2.0]), np.array([0.0, 2.0, 3.0, 2.0])
    pairs = [(x > y) + (x == y) / 2 for x, y in itertools.product(a, b)]
    assert improvement(a, b) == pytest.approx(np.mean(pairs))
    u = stats.mannwhitneyu(a, b).statistic
    assert improvement(a, b) == pytest.approx(u / 12)


def duel(a: Any, b: Any) -> Any:
    return compare({"a": {"t": np.array(a)}, "b": {"t": np.array(b)}}, {"t": (0.0, 1.0)})[0].duels[
        0
    ]


def test_the_chance_is_that_of_all_shuffles() -> None:
    a, b = [1.0, 4.0, 5.0, 7.0], [0.0, 2.0, 3.0]
    exact = stats.mannwhitneyu(a, b, method="exact").pvalue
    assert duel(a, b).chance == pytest.approx(exact, abs=0.02)


def test_a_side_is_better_only_if_chance_is_excluded() -> None:
    few = duel([1.0, 2.0, 3.0], [-1.0, -2.0, -3.0])
    assert few.improvement.low == 1.0, "its interval alone would decide"
    assert few.better is None
    assert few.seeds == 6
    assert duel(np.arange(5.0), np.arange(5.0) + 9).better == "b"
    assert duel(np.arange(5.0) + 9, np.arange(5.0)).better == "a"
    one = duel([1.0], [2.0, 3.0, 4.0, 5.0])
    assert (one.better, one.seeds, one.improvement.low) == (None, None, None)
    same = duel([1.0, 2.0], [1.0, 2.0])
    assert (same.better, same.seeds, same.improvement.value) == (None, None, 0.5)


def test_sides_that_do_not_differ_are_rarely_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three runs and of five; the interval alone would find a better side in 19% and 9%."""
    monkeypatch.setattr(comparison, "_SHUFFLES", 500)
    rng = np.random.default_rng(0)
    for count in (3, 5):
        found = [duel(*rng.normal(size=(2, count))).better for _ in range(60)]
        assert sum(x is not None for x in found) <= 60 * 0.1


def test_seeds_decide_as_often_as_said() -> None:
    """With the number of runs that is named, a shift of one standard deviation is found in 80%."""
    rng = np.random.default_rng(0)
    value = stats.norm.cdf(1 / math.sqrt(2))
    seeds = comparison._seeds([np.zeros(3)], [np.zeros(3)], value)
    assert seeds is not None
    found = [
        stats.mannwhitneyu(rng.normal(1, 1, seeds), rng.normal(0, 1, seeds)).pvalue <= 0.05
        for _ in range(500)
    ]
    assert 0.74 <= np.mean(found) <= 0.9
    assert comparison._seeds([np.zeros(3)], [np.zeros(3)], 0.51) is None, f"more than {MOST_SEEDS}"


def test_scales() -> None:
    assert pooled_scale([np.array([1.0, 3.0]), np.array([0.0])]) == (0.0, 3.0)
    assert pooled_scale([np.array([2.0]), np.array([2.0])]) == (2.0, 3.0)
    scores = {"a": {"x": np.array([10.0, 20.0]), "y": np.array([1.0, 2.0])}}
    scores["b"] = {"x": np.array([0.0, 0.0]), "y": np.array([0.0, 4.0])}
    part = compare(scores, {"x": (0.0, 20.0), "y": (0.0, 4.0)})[-1]
    assert [side.mean for side in part.sides] == [(0.75 + 0.375) / 2, 0.25]
