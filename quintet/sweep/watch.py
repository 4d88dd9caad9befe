"""The scores of a trial while it trains, and when it is pruned."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from quintet.errors import QuintetError
from quintet.observe.metrics import highest, newest
from quintet.observe.report_files import read_metrics
from quintet.sweep import study
from quintet.system.files import is_number


def last_score(run_dir: Path, metric: str) -> float | None:
    """The newest value of the metric in a run's reports."""
    with suppress(QuintetError):
        return newest(read_metrics(run_dir, lambda _: None), metric)
    return None


@final
class Watch:
    """Receives the reports of a trial; the first one of each step decides whether the trial
    continues.

    curve: scores by step; score: the newest.
    """

    def __init__(
        self, metric: str, total: int, pruner: str, others: Sequence[Mapping[str, Any]]
    ) -> None:
        """total: env_steps of the trial; others: see `Study.others`."""
        self._metric, self._total = metric, total
        self._ends, self.attrs = study.judge(pruner, others)
        self.curve: dict[int, float] = {}
        self.score: float | None = None
        self.pruned = False

    def reread(self, run_dir: Path) -> bool:
        """Receives the reports of an earlier start; returns whether they ended the trial."""
        with suppress(QuintetError):  # nothing was reported
            return any(self.hear(each) for each in read_metrics(run_dir, lambda _: None))
        return False

    def hear(self, report: Mapping[str, float]) -> bool:
        """Returns whether the trial should end."""
        score = highest(report, self._metric)
        if score is None or not is_number(score):
            return False
        self.score = float(score)
        steps = report["env_steps"]
        step = int(steps * study.STEPS // self._total)
        if step > 0 and step not in self.curve:
            self.curve[step] = self.score
            self.pruned = self._ends(step, self.score) and steps < self._total
        return self.pruned

    def answer(self, status: str) -> dict[str, Any]:
        """The end of the trial, as `Study.end` takes it."""
        return {
            "status": status,
            "score": self.score,
            "curve": list(self.curve.items()),
            "attrs": self.attrs(),
        }
