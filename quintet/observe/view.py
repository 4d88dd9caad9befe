"""How a run goes, as a person sees it: in a dashboard or in plain lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quintet.observe.advice import RunFacts
from quintet.observe.pace import NO_SCORE, Pace, Score
from quintet.observe.shares import TimeShares
from quintet.observe.text_curve import TextCurve


@dataclass
class View:
    """All that is shown of a run; it changes with every report.

    folder: of the run.
    facts: what the speed depends on; without it nothing is said of what limits it.
    best: the highest score of an evaluation so far.
    stage: what is going on that no report tells of yet, or "".
    """

    title: str
    pace: Pace
    folder: str = ""
    facts: RunFacts | None = None
    best: float | None = None
    stage: str = ""
    report: dict[str, float] = field(default_factory=dict)
    shares: TimeShares = field(default_factory=TimeShares)
    curve: TextCurve = field(default_factory=TextCurve)
    recent: Score = NO_SCORE
    evaluation: Score = NO_SCORE

    def add(self, report: Mapping[str, float], recent: Score) -> None:
        """Takes a report; what it lacks keeps its last value, as an evaluation's score does."""
        self.pace.advance(int(report.get("env_steps", self.pace.done)))
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
