"""A finding: what may be wrong, how likely it is why nothing is learned, and what to do."""

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, final

PAGE = "docs/not-learning.md"
"""The page that has a section on every finding, under the finding's name."""

LIKELY, POSSIBLE = 0.5, 0.2
"""Least weights of a likely and of a possible cause; below, a finding is a note."""

MOST_WEIGHT = 0.99

WEIGHTS = {
    "encoder": 0.45,  # small boards are learned without places too
    "layout": 0.25,
    "observation_scale": 0.6,
    "reward_size": 0.6,
    "gamma": 0.8,
    "time_limit": 0.65,
    "actions": 0.4,
    "action_mask": 0.25,
}
"""Weights of doubtful choices."""

EXPLAINS = {
    "reward-size": frozenset(
        {"observation-scale", "gradient-clipped", "gradient-spikes", "values-scale",
         "health-value-function"}),
    "observation-scale": frozenset(
        {"gradient-clipped", "gradient-spikes", "dead-units", "health-value-function"}),
}  # fmt: skip
"""Findings that doubtful choices explain: numbers of another size are one cause, whatever shows
it."""

_LEAST, _HELPED, _HARMED = 4, 0.75, 0.05  # runs in TRIED, and shares of them

_SAID_ANYHOW = {"not-learning"}  # says where to look further if the cause is another

Degree = Literal["likely", "possible", "note"]


@final
@dataclass(frozen=True)
class Finding:
    """Something that may be why nothing, or too little, is learned.

    name: of the finding, also of its section in the documentation.
    weight: how likely it is the cause, 0 to 1; an estimate, not a probability.
    said: one sentence.
    evidence: the numbers that show it, by their meaning.
    advice: what to do.
    command: the command that does it; "": there is none.
    subject: the option or policy that it is about, where there may be several of one name.
    explains: names of the findings of which it is the cause.
    """

    name: str
    weight: float
    said: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    advice: str = ""
    command: str = ""
    subject: str = ""
    explains: frozenset[str] = frozenset()

    @property
    def degree(self) -> Degree:
        if self.weight >= LIKELY:
            return "likely"
        return "possible" if self.weight >= POSSIBLE else "note"

    @property
    def link(self) -> str:
        return f"{PAGE}#{self.name}"

    def as_json(self) -> dict[str, Any]:
        """The finding as JSON-able values; numbers that JSON can't hold are left out."""
        return {
            "name": self.name,
            "subject": self.subject,
            "degree": self.degree,
            "weight": round(self.weight, 3),
            "said": self.said,
            "evidence": {name: x for name, x in self.evidence.items() if math.isfinite(x)},
            "advice": self.advice,
            "command": self.command,
            "explains": sorted(self.explains),
            "link": self.link,
        }


def in_words(evidence: Mapping[str, float]) -> str:
    """The numbers of the evidence that are finite; "" without any."""
    return ", ".join(f"{name} {x:.4g}" for name, x in evidence.items() if math.isfinite(x))


def ranked(found: Iterable[Finding | None]) -> list[Finding]:
    """The findings that there are, the likeliest first, each name and subject once."""
    best: dict[tuple[str, str], Finding] = {}
    for each in found:
        if each is None:
            continue
        key = each.name, each.subject
        if key not in best or each.weight > best[key].weight:
            best[key] = each
    return sorted(best.values(), key=lambda each: -each.weight)


def by_cause(found: Sequence[Finding]) -> list[Finding]:
    """The findings, without those that another one explains: it takes their place if they are
    before it, and names them.
    """
    left, there = list(found), {each.name for each in found} - _SAID_ANYHOW
    for cause in sorted(found, key=lambda each: -len(each.explains & there)):
        explains = cause.explains - _SAID_ANYHOW
        own = [each for each in left if each.name in explains and each is not cause]
        if cause not in left or not own:
            continue
        names = sorted({each.name for each in own})
        told = (
            "" if all(each in cause.said for each in names) else f"; it explains {', '.join(names)}"
        )
        whole = replace(
            cause,
            said=cause.said + told,
            weight=max(each.weight for each in (cause, *own)),
            explains=frozenset(names),
        )
        left = ranked([whole, *(each for each in left if each not in (cause, *own))])
    return left


def weight_of(choice: str) -> float:
    """The weight of a doubtful choice."""
    return WEIGHTS.get(choice, 0.3)


def option_in(option: str) -> str:
    """The option (``--name value``) in a text of advice, shell-quoted; "" if it has none.  The text
    may come from an untrusted file, and users paste the result.
    """
    found = re.search(r"(?:^|, )(--[a-z].*)", option)
    try:
        words = shlex.split(found[1])[:2] if found else []
    except ValueError:  # an apostrophe
        words = found[1].split()[:2] if found else []
    return shlex.join(words)


def env_words(options: Mapping[str, Any]) -> str:
    """The words that make the same environment in a command of ``quintet check-env``, with a space
    before each.

    options: of the environment, by name.
    """
    words = list[str]()
    if options.get("kwargs"):
        words += ["--env.kwargs", json.dumps(options["kwargs"], default=str)]
    if options.get("backend", "auto") != "auto":
        words += ["--env.backend", str(options["backend"])]
    if (limit := options.get("max_episode_steps")) is not None:
        words += ["--env.max-episode-steps", str(limit)]
    if (masks := options.get("mask_from_info", "auto")) != "auto":
        words += ["--env.mask-from-info", str(masks).lower()]
    return "".join(f" {shlex.quote(word)}" for word in words)


@final
class Tried(NamedTuple):
    """Number of runs that were trained again, and of those that ended better and worse by more than
    a fifth of the healthy run's rise."""

    runs: int
    helped: int
    harmed: int


TRIED: Mapping[str, Tried] = {
    "budget-short": Tried(6, 6, 0),
    "few-updates": Tried(6, 6, 0),
    "gamma": Tried(1, 1, 0),
    "option-far": Tried(65, 61, 0),
    "option-other": Tried(4, 4, 0),
}
"""Records of commands by the name of their finding: how often they helped where runs with a planted
fault were trained again by them (`python benchmarks/doctor.py remedies`)."""


def helps(name: str) -> bool:
    """Whether the command of a finding of this name has helped often enough, and seldom harmed."""
    tried = TRIED.get(name)
    if tried is None or tried.runs < _LEAST:
        return False
    return tried.helped >= _HELPED * tried.runs and tried.harmed <= _HARMED * tried.runs


def proven(name: str, command: str) -> str:
    """The command, unless it trains and has not been shown to help: then ""."""
    trains = command.startswith("quintet train")
    return "" if trains and not helps(name) else command
