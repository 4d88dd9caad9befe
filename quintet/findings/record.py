"""A finding: what may be wrong, how likely it is why nothing is learned, and what to do."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

PAGE = "docs/not-learning.md"
"""The page that has a section on every finding, under the finding's name."""

LIKELY, POSSIBLE = 0.5, 0.2
"""Least weights of a likely and of a possible cause; below, a finding is a note."""

MOST_WEIGHT = 0.99

Degree = Literal["likely", "possible", "note"]


@final
@dataclass(frozen=True)
class Finding:
    """Something that may be why nothing, or too little, is learned; a row gives it the weight and
    the name that it lacks.

    said: one sentence.
    evidence: the numbers that show it, by their meaning.
    advice: what to do.
    option: words that a command of ``quintet train`` gets for it; "": none; None: another look at
        the subject helps.
    command: the command that does it; "": there is none, or it follows from the option.
    weight: how likely it is the cause, 0 to 1; an estimate, not a probability.
    name: of the finding, also of its section in the documentation.
    subject: the option or policy that it is about, where there may be several of one name.
    explains: names of the findings of which it is the cause.
    """

    said: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    advice: str = ""
    option: str | None = None
    command: str = ""
    weight: float = 0.0
    name: str = ""
    subject: str = ""
    explains: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.said}: {self.advice}"

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
