"""Progress of a run: a dashboard in a terminal, plain lines elsewhere.

A closed pipe or terminal ends the output, but not the run.
"""

import sys
import time
from collections.abc import Mapping
from typing import Protocol, TextIO, final

from quintet.findings.health import Herald, sentences
from quintet.findings.speed import Cause, RunFacts, cause, limit
from quintet.observe.pace import NO_SCORE, Score, clock, count, percent
from quintet.observe.timing import Phase
from quintet.observe.view import View
from quintet.system.printing import QuietStream, is_terminal

_LINE_INTERVAL_S = 10.0
_MOST_SILENCE_S = 600.0  # between two lines about waiting
_COMPILES_ACTS = "compiling acts (up to a minute), then collecting"
_COMPILES_UPDATE = "first update, which compiles it: up to a minute"


class Progress(Protocol):
    """Shows the progress of a run."""

    def update(self, report: Mapping[str, float], recent: Score = NO_SCORE) -> None:
        """Shows a report and the score of the last episodes."""

    def stage(self, text: str) -> None:
        """Shows the current activity until the next report; "" shows nothing."""

    def waiting(self, text: str) -> None:
        """Shows the reason for a long wait."""

    def say(self, message: str) -> None:
        """Shows a message at once, on a separate line."""

    def close(self) -> None:
        """Shows the last state and restores the terminal; may be called more than once."""


def make_progress(view: View, stream: TextIO | None = None) -> Progress:
    """A dashboard if `stream` (standard output by default) is a terminal, else plain lines."""
    out = stream if stream is not None else sys.stdout
    if not is_terminal(out):
        return LineProgress(view, out)
    # imported here: a run without a terminal never needs rich
    from quintet.observe.dashboard import TerminalProgress

    return TerminalProgress(view, out)


def first_stage(facts: RunFacts) -> str:
    """The first stage, before the timer runs: starting processes, or collecting."""
    if not facts.num_workers:
        return _collecting(facts)
    server = " and the inference server" if facts.inference == "server" else ""
    return f"starting {count(facts.num_workers, 'worker')}{server}"


def stage_of(phase: Phase, facts: RunFacts) -> str | None:
    """The stage when a phase begins for the first time, which may compile graphs; None: the stage
    does not change.
    """
    if phase in ("acting", "waiting") and facts.compiles:
        return _COMPILES_ACTS
    if phase == "waiting":
        return _collecting(facts)
    if phase == "learning":
        return _COMPILES_UPDATE if facts.compiles else "first update"
    return None


def _collecting(facts: RunFacts) -> str:
    return f"collecting the first {facts.batch_steps:,}"


@final
class LineProgress:
    """A plain line for a report, at most every ten seconds, and one at the end; lines about parts
    of the learner that became doubtful, and about all parts at the end.

    A line about the limit of the speed is printed once, with the second shown report (with the
    first if other programs use the cores), and again at the end if it has changed.
    """

    def __init__(self, view: View, stream: TextIO) -> None:
        self._view, self._out = view, QuietStream(stream)
        self._reported: Cause | None = None
        self._herald = Herald()
        self._shown_at = self._silent_until = float("-inf")
        self._silence_s = _LINE_INTERVAL_S
        self._pending: str | None = None
        self._closed = False
        self.say(f"{view.title} -> {view.folder}" if view.folder else view.title)

    def update(self, report: Mapping[str, float], recent: Score = NO_SCORE) -> None:
        self._view.add(report, recent)
        self._pending = _summary(self._view)
        now = time.monotonic()
        if now - self._shown_at >= _LINE_INTERVAL_S:
            begun = self._shown_at > float("-inf")
            self._shown_at = now
            self._flush()
            for line in self._herald.news(self._view.states, now):
                self.say(line)
            if self._reported is None:
                self._tell(only_others=not begun)

    def stage(self, text: str) -> None:
        """Prints only what may compile for long, since a printed line outlasts its stage."""
        if text in (_COMPILES_ACTS, _COMPILES_UPDATE):
            self.say(text)

    def waiting(self, text: str) -> None:
        """Prints the reason more and more rarely, since a slow run waits in every iteration."""
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + self._silence_s
            self._silence_s = min(2 * self._silence_s, _MOST_SILENCE_S)
            self._flush()
            self.say(text)

    def say(self, message: str) -> None:
        self._out.line(message)

    def close(self) -> None:
        self._flush()
        if self._view.report and not self._closed:
            self._closed = True
            for _, sentence in sentences(self._view.states):
                self.say(f"health: {sentence}")
        if self._reported is not None:
            self._tell()

    def _flush(self) -> None:
        if self._pending is not None:
            self.say(self._pending)
            self._pending = None

    def _tell(self, only_others: bool = False) -> None:
        """Prints the limit of the speed, unless it was already printed.

        only_others: whether only other processes of the machine are worth a line.
        """
        load, facts = self._view.shares.recent(), self._view.facts
        if facts is None or not load.learner:
            return
        found = cause(load, facts)
        if found != self._reported and (found == "others" or not only_others):
            self._reported = found
            self.say(limit(load, facts, starting=self._view.shares.starting))


def _summary(view: View) -> str:
    pace = view.pace
    parts = [f"{pace.percent:3d}%", f"{pace.done:,}/{pace.total:,} env steps"]
    if pace.steps_per_s is not None:
        parts.append(f"{pace.steps_per_s:,.0f} steps/s")
    if pace.left_s is not None and pace.done < pace.total:
        parts.append(f"{clock(pace.left_s)} left")
    for name, scores in (("return", view.recent), (view.evaluation_name, view.evaluation)):
        if scores.return_ is not None:
            parts.append(f"{name} {scores.return_:,.1f}")
            if scores.success is not None:
                parts[-1] += f" ({percent(scores.success)} won)"
    return "  ".join(parts)
