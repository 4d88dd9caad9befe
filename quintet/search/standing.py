"""The order of a race's entries by their scores, and sentences about it."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from quintet.search.race_journal import Runner
from quintet.search.rungs import Plan
from quintet.search.score import score, ways
from quintet.system.files import shown

_ENOUGH_FRAC = 0.9  # share of the env_steps of others, since speeds vary


def ranked(runners: Sequence[Runner]) -> list[Runner]:
    """The best first, by the score of the newest evaluation, then by the mean return of training;
    where an entry has no evaluated episode, all by that of training, since these returns are of
    earlier policies too.  Those of which too few episodes have ended are the last.  Of equal
    entries those come first whose learner has fewer entries before them, then those that come first
    in the portfolio.
    """
    fresh = all(ways(each.looks[-1]) for each in runners)

    def place(runner: Runner) -> tuple[float, float]:
        look = runner.looks[-1]
        own = score(look).mean
        training = own if look.training is None else look.training
        mean = own if fresh else training
        return inf if mean is None else -mean, inf if training is None else -training

    by_score = sorted(runners, key=place)
    before = {
        each.name: sum(x.algo == each.algo for x in by_score[:k]) for k, each in enumerate(by_score)
    }
    return sorted(by_score, key=lambda x: (*place(x), before[x.name]))


def behind(order: Sequence[Runner], stay: int, first: str) -> int:
    """The env_steps that the default entry must reach before it may fall out: the most that one of
    the entries that stay has had; 0 if it stays, or has had nearly as many.

    order: entries, the best first; first: the name of the default.
    """
    falls = [each for each in order[stay:] if each.name == first]
    if not falls:
        return 0
    most = max(each.looks[-1].env_steps for each in order[:stay])
    return most if falls[0].looks[-1].env_steps < _ENOUGH_FRAC * most else 0


def standing(order: Sequence[Runner], stay: int, spared: str = "") -> str:
    """The entries that stay and fall out, with means and intervals.

    spared: name of the entry that stays too, since it has had fewer env_steps than the others.
    """
    scores = [f"{each.name} {score(each.looks[-1])}" for each in order]
    falls = [x for x, each in zip(scores, order, strict=True) if each.name != spared][stay:]
    out = f"; out: {', '.join(falls)}" if falls else ""
    text = f"{', '.join(scores[:stay])} stay{'s' if stay == 1 or len(scores) == 1 else ''}"
    if spared:
        had = next(each.looks[-1].env_steps for each in order if each.name == spared)
        text += f"; {spared} stays too, since it has had only {had:,} env_steps"
    edge = [score(each.looks[-1]).mean for each in order[max(0, stay - 1) : stay + 1]]
    same = len(edge) == 2 and edge[0] == edge[1]
    return f"{text}{out}{'; the order of equal scores means nothing' if same else ''}"


def all_failed(folder: Path, runners: Sequence[Runner]) -> str:
    """The reason why no entry of a race won, and the best policy so far.

    folder: that of the entries.
    """
    first = max((x for x in runners if x.failed), key=lambda each: len(each.looks))
    if not first.looks:
        return f"no candidate trained; the reason of {first.name} was: {first.out}"
    rungs = max(len(each.looks) for each in runners)
    best = ranked([each for each in runners if len(each.looks) == rungs])[0]
    return (
        f"no candidate trained to the end; the reason of {first.name} was: {first.out}\n"
        f"the best policy so far is that of {best.name}, with {score(best.looks[-1])}: "
        f"quintet eval {shown(folder / best.name)}"
    )


def options_in_words(options: Mapping[str, Any]) -> str:
    """Options of an entry for a sentence, with a comma before each."""
    return "".join(f", {name}={x}" for name, x in options.items())


def course_in_words(plan: Plan) -> str:
    """A plan in words."""
    rounds = [
        f"round {number} trains {count} for {leg_s:.0f} s each"
        for number, (count, leg_s) in enumerate(zip(plan.counts, plan.leg_s, strict=True), 1)
    ]
    rounds[-1] = f"the last {plan.leg_s[-1]:.0f} s train {plan.counts[-1]}"
    return ", ".join(rounds)
