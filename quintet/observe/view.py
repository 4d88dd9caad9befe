"""The state of a run that is shown in a dashboard or in plain lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quintet.findings.health import Judged, judged
from quintet.findings.speed import RunFacts
from quintet.observe.metrics import NODE
from quintet.observe.pace import NO_SCORE, Pace, Score
from quintet.observe.text_curve import TextCurve
from quintet.observe.timing import TimeShares
from quintet.protocols import Part
from quintet.system.printing import plain

OBJECTIVE = "/population/objective"
"""Suffix of the name of a policy's objective."""


@dataclass
class View:
    """Everything that is shown of a run; changes with every report.

    facts: inputs of the limit of speed; None: it is not shown.
    best: the highest score of an evaluation so far.
    parts: parts of the learner, with their evidence.
    stage: the current activity until the next report, or "".
    evaluated: the environment of evaluations, if it differs from training's.
    choices, marks: sentences about choices that are doubtful, and about likely causes of a failure;
        lists to which the run adds.
    """

    title: str
    pace: Pace
    folder: str = ""
    facts: RunFacts | None = None
    best: float | None = None
    parts: tuple[Part, ...] = ()
    stage: str = ""
    report: dict[str, float] = field(default_factory=dict)
    shares: TimeShares = field(default_factory=TimeShares)
    curve: TextCurve = field(default_factory=TextCurve)
    recent: Score = NO_SCORE
    evaluation: Score = NO_SCORE
    evaluated: str = ""
    choices: Sequence[str] = ()
    marks: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Names of others do not command the terminal."""
        self.title, self.folder = plain(self.title), plain(self.folder)
        self.evaluated = plain(self.evaluated)

    @property
    def evaluation_name(self) -> str:
        """The name of evaluations' scores, with their environment if it is not training's."""
        return f"evaluation in {self.evaluated}" if self.evaluated else "evaluation"

    @property
    def states(self) -> list[Judged]:
        """The states of the learner's parts, by their last evidence."""
        return judged(self.parts, self.report)

    def add(self, report: Mapping[str, float], recent: Score) -> None:
        """Adds a report; metrics that it lacks keep their last value."""
        self.pace.advance(int(report.get("env_steps", self.pace.done)))
        if not self.report and self.facts is not None and self.facts.compiles:
            self.pace.restart()
        if "policy_0/env_steps" in report:  # a policy without an objective now is not ranked
            self.report = {k: x for k, x in self.report.items() if not k.endswith(OBJECTIVE)}
        if "data/nodes" in report:  # a node that is gone is not shown
            self.report = {k: x for k, x in self.report.items() if not k.startswith(NODE)}
        self.report |= report
        self.shares.add(report)
        self.stage = ""
        self.recent = recent
        if recent.return_ is not None:
            self.curve.add(self.pace.done, recent.return_)
        if "eval/return_mean" in report:
            score = report["eval/return_mean"]
            self.evaluation = Score(score, report.get("eval/success_rate"))
            self.best = score if self.best is None else max(score, self.best)
