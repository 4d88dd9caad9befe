"""Facts in a run's reports over time."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, final

from gymnasium.envs.registration import EnvSpec

from quintet.findings.engine import Again
from quintet.findings.record import Finding
from quintet.observe.metrics import by_policy
from quintet.observe.run_summary import RunSummary, text
from quintet.options.bounds import LARGEST
from quintet.protocols import Part
from quintet.system.files import is_number

_OF_POLICY = re.compile(r"policy_\d+/")  # beginnings of names of metrics
_CLEARLY = 3.0  # times the noise
_LEFT = 0.5  # share of the highest rise
_WINS = 0.9  # share of the episodes
_LEAST_EPISODES = 5  # fewer tell too little about their noise
_FIRST_EPISODES, _FIRST = 10, 0.25  # episodes, and part of the run, for the first level

Report = Mapping[str, float]


@final
@dataclass(frozen=True)
class Level:
    """Mean of the returns of some episodes, their standard deviation, and their number."""

    mean: float
    std: float
    count: float

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.std / math.sqrt(max(self.count, 1.0))


@final
@dataclass(frozen=True)
class RunSeen:
    """A policy's reports and the run's options.

    A number that no report has is NaN, with which every comparison is false.

    policy: its index; -1: it is the only one.
    reports: its metrics and those of the run, under plain names, each with its env_steps.
    usual: the options of a run without the user's own.
    given: names of options that the user gave.
    tuned: names of options that a preset has for this environment.
    continuous: whether some actions are real numbers, whose entropy has no least value.
    threshold: return at which the environment's registration calls it solved; None: there is none.
    parts: of the learner, with their evidence.
    again: beginnings of commands; one of the commands trains again with the same options.
    roles: the learner's options that have an effect, by their usual names, as "learning_rate":
        ("actor_lr",).
    others: final levels of runs with the same options and other seeds.
    symptoms: findings about the reports, for those about options; None: not known yet.
    """

    run: RunSummary
    policy: int
    reports: Sequence[Report]
    usual: Mapping[str, Any]
    given: frozenset[str]
    parts: tuple[Part, ...]
    again: Again
    roles: Mapping[str, tuple[str, ...]]
    others: Sequence[Level] = ()
    tuned: frozenset[str] = frozenset()
    continuous: bool = False
    threshold: float | None = None
    symptoms: Sequence[Finding] | None = None

    @property
    def rows(self) -> int:
        """Number of reports."""
        return len(self.reports)

    @property
    def _steps(self) -> float:
        """The env_steps so far."""
        return max((x["env_steps"] for x in self.reports), default=0.0)

    def part(self, begin: float, end: float) -> list[Report]:
        """The reports of a part of the env_steps so far; they may be crowded anywhere."""
        low, high = (each * self._steps for each in (begin, end))
        after = [x for x in self.reports if begin <= 0.0 or x["env_steps"] > low]
        return [x for x in after if x["env_steps"] <= high]

    def values(self, name: str, begin: float = 0.0, end: float = 1.0) -> list[float]:
        """Values of a metric in the reports of a part of the run so far."""
        return [each[name] for each in self.part(begin, end) if name in each]

    def late(self, *names: str) -> float:
        """The median of the first metric that there is in the second half of the run so far."""
        found = next(filter(None, (self.values(name, 0.5) for name in names)), [math.nan])
        return median(found)

    def share(self, name: str) -> float:
        """The mean of a metric over the whole time of the run; 0 without any."""
        whole = total = before = 0.0
        for report in self.reports:
            passed = max(report.get("wall_s", before + 1.0) - before, 0.0)
            before += passed
            if name in report:
                whole, total = whole + passed, total + passed * report[name]
        return total / whole if whole else 0.0

    def last(self, name: str) -> float:
        return (self.values(name) or [math.nan])[-1]

    def option(self, name: str) -> float | None:
        """The number that an option of the run has."""
        return number(self.run.options.get(name))

    def scaled(self, role: str, factor: float) -> str:
        """The words that multiply the options of a role; "" without any."""
        values = dict[str, Any]()
        for name in self.roles.get(role, ()):
            if (x := self.option(name)) is not None and x > 0:
                whole = isinstance(self.run.options[name], int)
                values[name] = max(1, round(x * factor)) if whole else float(f"{x * factor:.2g}")
        return words(values)

    def level(self, begin: float, end: float, of: str = "episode") -> Level | None:
        """The level of returns in a part of the run so far."""
        return level(self.part(begin, end), of)

    @cached_property
    def first_level(self) -> Level | None:
        """The level of the first episodes: of the first reports that have enough of them, or of the
        first quarter of the run so far, or of the first report with episodes.  A spread of
        few episodes is raised to that of the whole run; None if the run has too few."""
        some, episodes, early = list[Report](), 0.0, _FIRST * self._steps
        for each in self.reports:
            if episodes and (episodes >= _FIRST_EPISODES or each["env_steps"] > early):
                break
            some.append(each)
            episodes += each.get("episode/count", 0.0)
        found, whole = level(some, least=1), level(self.reports)
        if found is None or found.count >= _LEAST_EPISODES:
            return found
        return whole and Level(found.mean, max(found.std, whole.std), found.count)

    @cached_property
    def last_level(self) -> Level | None:
        """The level of the last quarter."""
        return self.level(0.75, 1.0)

    @cached_property
    def rise(self) -> float | None:
        """Difference of the last quarter from the first level, in units of its noise: standard
        errors, and at least half a standard deviation of the first returns; None: not known."""
        begin, end = self.first_level, self.last_level
        if begin is None or end is None or len(self.reports) < 3:
            return None
        noise = math.hypot(begin.error, end.error)
        least = max(3.0 * noise, 0.5 * begin.std, 1e-3 * abs(begin.mean), 1e-12)
        return (end.mean - begin.mean) / least

    @cached_property
    def learns(self) -> bool:
        """Whether returns rose beyond their noise and kept at least half of the highest rise."""
        rise, first, end = self.rise, self.first_level, self.last_level
        if rise is None or rise <= 1.0 or first is None or end is None:
            return False
        levels = (self.level(k / 8, (k + 2) / 8) for k in range(7))
        best = max((x.mean for x in levels if x is not None), default=end.mean)
        return end.mean - first.mean >= _LEFT * (best - first.mean)

    @property
    def well(self) -> str:
        """A sentence that shows that the run does well: it wins nearly always, or solves the
        environment; "": it is not known to."""
        for name, whose in (("eval", "evaluation episodes"), ("episode", "episodes")):
            found = self.values(f"{name}/success_rate", 0.75)
            if found:
                share = sum(found) / len(found)
                return f"{share:.1%} of its last {whose} succeeded" if share >= _WINS else ""
        end = self.last_level
        if self.threshold is None or end is None or end.mean < self.threshold:
            return ""
        return (
            f"its last returns are {end.mean:.4g}, above {self.threshold:g}, at which the "
            "environment counts as solved"
        )

    @property
    def better(self) -> str:
        """A sentence that shows how far the returns rose, if they did clearly; else ""."""
        first, end = self.first_level, self.last_level
        if not self.learns or (self.rise or 0.0) <= _CLEARLY or first is None or end is None:
            return ""
        return f"its returns rose from {first.mean:.4g} to {end.mean:.4g}"

    @property
    def doubt(self) -> float:
        """Factor of the findings' weights: a run that learns is less likely to have a fault."""
        if not self.learns:
            return 1.0
        return 0.5 if (self.rise or 0.0) > _CLEARLY else 0.8


def level(
    reports: Sequence[Report], of: str = "episode", least: float = _LEAST_EPISODES
) -> Level | None:
    """The pooled level of some reports; None if they have less than `least` episodes."""
    mean, spread = f"{of}/return_mean", f"{of}/return_std"
    counts = "episode/count" if of == "episode" else "eval/episodes"
    found = [x for x in reports if {mean, spread, counts} <= x.keys() and x[counts] > 0]
    whole = math.fsum(x[counts] for x in found)
    if whole < least:
        return None
    middle = math.fsum(x[mean] * x[counts] for x in found) / whole
    squares = math.fsum((x[spread] ** 2 + (x[mean] - middle) ** 2) * x[counts] for x in found)
    return Level(middle, math.sqrt(squares / whole), whole)


def of_policies(reports: Sequence[Report]) -> dict[int, list[dict[str, float]]]:
    """The reports of each policy, with the metrics of the run; -1: the only one."""
    found: dict[int, list[dict[str, float]]] = {}
    for report in reports:
        own = by_policy(report)
        shared = {name: x for name, x in report.items() if not _OF_POLICY.match(name)}
        for policy, mine in own.items():
            found.setdefault(policy, []).append({**shared, **mine})
        if not own:
            found.setdefault(-1, []).append(dict(shared))
    return found


def number(value: Any) -> float | None:
    """An option's value as a finite number; None: it is not a finite number."""
    return float(value) if is_number(value) and abs(value) <= LARGEST else None


def words(values: Mapping[str, Any]) -> str:
    """The words of the command line that give options these values."""
    return " ".join(f"--{name.replace('_', '-')} {as_word(x)}" for name, x in values.items())


def as_word(value: Any) -> str:
    """A value as on the command line; it may come from another person's file."""
    if value is None or (isinstance(value, list | tuple) and not value):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return text(" ".join(as_word(x) for x in value[:20]))
    return f"{value:g}" if isinstance(value, float) else text(value)


def threshold_of(spec: EnvSpec | None) -> float | None:
    """The return at which an environment's registration calls it solved."""
    threshold = None if spec is None else spec.reward_threshold
    return None if threshold is None else float(threshold)
