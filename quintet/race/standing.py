"""The order of a race's entries by their scores, and sentences about it."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from quintet.race.journal import Runner
from quintet.race.page import interval
from quintet.race.plan import Plan


def ranked(runners: Sequence[Runner]) -> list[Runner]:
    """The best first, by the mean return of the newest evaluation, then by that of training; where
    an entry has no evaluated episode, all by that of training, since sampled actions have other
    returns than greedy ones.  Those of which no episode has ended are the last.  Of equal entries
    those come first whose learner has fewer entries before them, then those that come first in the
    portfolio.
    """
    fresh = all(each.looks[-1].returns for each in runners)

    def place(runner: Runner) -> tuple[float, float]:
        look = runner.looks[-1]
        training = look.mean if look.training is None else look.training
        mean = look.mean if fresh else training
        return inf if mean is None else -mean, inf if training is None else -training

    by_score = sorted(runners, key=place)
    before = {
        each.name: sum(x.algo == each.algo for x in by_score[:k]) for k, each in enumerate(by_score)
    }
    return sorted(by_score, key=lambda x: (*place(x), before[x.name]))


def standing(order: Sequence[Runner], stay: int) -> str:
    """The entries that stay and fall out, with means and intervals."""
    told = [f"{each.name} {interval(each.looks[-1])}" for each in order]
    out = f"; out: {', '.join(told[stay:])}" if told[stay:] else ""
    said = f"{', '.join(told[:stay])} stay{'s' if stay == 1 or len(told) == 1 else ''}{out}"
    edge = [each.looks[-1].mean for each in order[max(0, stay - 1) : stay + 1]]
    return f"{said}; equal scores decide nothing" if len(edge) == 2 and edge[0] == edge[1] else said


def options_in_words(options: Mapping[str, Any]) -> str:
    """Options of an entry for a sentence, with a comma before each."""
    return "".join(f", {name}={x}" for name, x in options.items())


def course_in_words(plan: Plan) -> str:
    """A plan in words."""
    told = [
        f"round {number} has {count} for {leg_s:.0f} s each"
        for number, (count, leg_s) in enumerate(zip(plan.counts, plan.leg_s, strict=True), 1)
    ]
    told[-1] = f"{plan.counts[-1]} for the last {plan.leg_s[-1]:.0f} s"
    return ", ".join(told)
