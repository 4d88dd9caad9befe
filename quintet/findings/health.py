"""The state of each part of the learner by a report: reliable, doubtful or not known yet, with the
numbers that show it."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, final

from quintet.observe.metrics import by_policy
from quintet.protocols import Evidence, Part

State = Literal["reliable", "doubtful", "not known yet"]

NUMBERS: Mapping[State, float] = {"reliable": 1.0, "not known yet": 0.0, "doubtful": -1.0}
"""The states as metrics ``health/PART``."""


@final
class Judged(NamedTuple):
    """The state of a part of a policy's learner, and its reason.

    policy: its index in a run of several; -1: it is the only policy.
    """

    part: str
    state: State
    reason: str
    policy: int = -1

    @property
    def subject(self) -> str:
        part = self.part.replace("_", " ")
        return part if self.policy < 0 else f"{part} of policy {self.policy}"


def judged(parts: Sequence[Part], report: Mapping[str, float]) -> list[Judged]:
    """The state of every part of every policy in the report."""
    policies = by_policy(report) or {-1: dict(report)}
    return [
        _judged(part, own)._replace(policy=policy)
        for policy, own in policies.items()
        for part in parts
    ]


def metrics(parts: Sequence[Part], report: Mapping[str, float]) -> dict[str, float]:
    """The states of a policy's parts as numbers, by ``health/PART``; `report` has plain names."""
    return {f"health/{part.name}": NUMBERS[_judged(part, report).state] for part in parts}


def _judged(part: Part, report: Mapping[str, float]) -> Judged:
    """The state of a part by all of its evidence: one doubt decides; not known without any."""
    found = [each for each in part.evidence if counts(each, report)]
    ripe = [each for each in found if is_ripe(each, report)]
    against = [each for each in ripe if not each.possible.holds(report[each.metric])]
    if against:
        return Judged(part.name, "doubtful", _violations(against, report, doubtful=True))
    open_ = [each for each in ripe if not each.sound.holds(report[each.metric])]
    missing = [each.name for each in part.evidence if each.needed and each.metric not in report]
    if open_:
        why = _violations(open_, report)
    elif len(ripe) < len(found):
        least = max(each.after_updates for each in found)
        why = f"{int(report.get('updates', 0.0))} of the {least} updates that this takes"
    elif missing or not ripe:
        why = f"no report has {missing[0] if missing else 'it'}"
    else:
        return Judged(part.name, "reliable", _violations(ripe, report))
    return Judged(part.name, "not known yet", why)


def counts(each: Evidence, report: Mapping[str, float]) -> bool:
    """Whether a report has this evidence's metric, and meets its condition on another metric."""
    if each.given is None:
        return each.metric in report
    name, range_ = each.given
    return each.metric in report and name in report and range_.holds(report[name])


def is_ripe(each: Evidence, report: Mapping[str, float]) -> bool:
    """Whether there were enough updates for a metric to decide anything."""
    return report.get("updates", 0.0) >= each.after_updates


def _violations(
    evidence: Sequence[Evidence], report: Mapping[str, float], doubtful: bool = False
) -> str:
    """The values, each with the bound that it violates, and the meaning."""
    values, meanings = [], []
    for each in evidence:
        value, bounds = report[each.metric], each.possible if doubtful else each.sound
        text = f"{each.name} {value:.2g}"
        if value < bounds.low:
            text += f" below {bounds.low:.2g}"
            meanings.append(each.below)
        elif value > bounds.high:
            text += f" above {bounds.high:.2g}"
            meanings.append(each.above)
        values.append(text)
    reason = "; ".join(dict.fromkeys(each for each in meanings if each))
    return ", ".join(dict.fromkeys(values)) + (f": {reason}" if reason else "")


_ORDER: tuple[State, ...] = ("reliable", "not known yet", "doubtful")


def sentences(found: Sequence[Judged]) -> list[tuple[State, str]]:
    """A sentence for each part.  With several policies there is one for each part and state, which
    gives the reason of the first policy in this state.
    """
    lines = []
    for part in dict.fromkeys(each.part for each in found):
        count = sum(each.part == part for each in found)
        for state in _ORDER:
            members = [each for each in found if (each.part, each.state) == (part, state)]
            if not members:
                continue
            subject, first = part.replace("_", " "), members[0]
            if first.policy < 0:
                lines.append((state, f"{subject} {state}: {first.reason}"))
            else:
                reason = f"policy {first.policy}: {first.reason}"
                lines.append((state, f"{subject} {state} in {len(members)} of {count} ({reason})"))
    return lines


_SHORTEST_S = 60.0
_LONGEST_S = 3600.0


@final
class Herald:
    """Writes lines about parts that have become doubtful, and about parts that no longer are.

    A part is mentioned more and more rarely, since doubts may come and go.
    """

    def __init__(self) -> None:
        self._reported: dict[tuple[str, int], State] = {}
        self._silent_until: dict[tuple[str, int], float] = {}
        self._silence_s: dict[tuple[str, int], float] = {}

    def news(self, found: Sequence[Judged], now: float) -> list[str]:
        """Lines about changes up to `now`, in seconds."""
        lines = []
        for each in found:
            key, before = (each.part, each.policy), self._reported.get((each.part, each.policy))
            ends = before == "doubtful" and each.state == "reliable"
            if (each.state != "doubtful" and not ends) or before == each.state:
                continue
            if now < self._silent_until.get(key, 0.0):
                continue
            silence = self._silence_s.get(key, _SHORTEST_S)
            self._silent_until[key] = now + silence
            self._silence_s[key] = min(2 * silence, _LONGEST_S)
            self._reported[key] = each.state
            lines.append(f"health: {each.subject} is {each.state}: {each.reason}")
        return lines
