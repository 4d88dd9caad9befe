"""What a person sees while a run trains: a dashboard in a terminal, plain lines elsewhere.

Output never stops a run: when the pipe or the terminal is gone, it ends quietly.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TextIO, final

from quintet.observe.advice import Setting, count
from quintet.observe.limits import Cause, cause, crowded, limit
from quintet.observe.pace import NO_SCORE, Pace, Score, clock, percent
from quintet.observe.shares import TimeShares
from quintet.observe.stream import QuietStream, is_terminal
from quintet.observe.timing import Phase

_LINE_INTERVAL_S = 10.0
_MOST_SILENCE_S = 600.0  # about what is waited for


class Progress(Protocol):
    """Shows how far a run is."""

    def update(self, report: Mapping[str, float], recent: Score = NO_SCORE) -> None:
        """Shows a report, and the score of the last episodes."""
        ...

    def stage(self, text: str) -> None:
        """Shows what is going on until the next report, "" for nothing worth telling."""
        ...

    def waiting(self, text: str) -> None:
        """Shows what training has been waiting for, for seconds."""
        ...

    def say(self, message: str) -> None:
        """Shows a message on a line of its own, at once."""
        ...

    def close(self) -> None:
        """Shows the last state and gives the terminal back; may be called twice."""
        ...


@final
@dataclass(frozen=True)
class Begin:
    """Where a run begins or goes on: how far it is, and its best evaluation's score so far."""

    env_steps: int = 0
    best: float | None = None


FROM_NOTHING = Begin()


def make_progress(
    total_env_steps: int,
    title: str,
    stream: TextIO | None = None,
    *,
    folder: str = "",
    begin: Begin = FROM_NOTHING,
    setting: Setting | None = None,
) -> Progress:
    """A dashboard when `stream` (standard output by default) is a terminal, else plain lines.

    folder: of the run, named beside the title.
    begin: of a resumed run; the time left is judged from there.
    setting: what the speed depends on; without it nothing is said of what limits it.
    """
    out = stream if stream is not None else sys.stdout
    pace = Pace(total_env_steps, begin.env_steps)
    if not is_terminal(out):
        return LineProgress(f"{title} -> {folder}" if folder else title, out, pace, setting)
    # imported here: a run without a terminal never needs rich
    from quintet.observe.dashboard import TerminalProgress, View

    return TerminalProgress(View(title, folder, pace, setting, best=begin.best), out)


def first_stage(setting: Setting) -> str:
    """What a run does before its timer runs: it starts its processes, or collects."""
    if not setting.num_workers:
        return _collecting(setting)
    server = " and the inference server" if setting.inference == "server" else ""
    return f"starting {count(setting.num_workers, 'worker')}{server}"


def stage_of(phase: Phase, setting: Setting) -> str | None:
    """What the first of a phase is, and why it takes long: graphs are compiled when they are first
    called; None: nothing worth telling.
    """
    if phase in ("acting", "waiting") and setting.compiles:
        return "compiling acts (up to a minute), then collecting"
    if phase == "waiting":
        return _collecting(setting)
    if phase == "learning":
        return "first update" + (", which compiles it: up to a minute" if setting.compiles else "")
    return None


def _collecting(setting: Setting) -> str:
    return f"collecting the first {setting.batch_steps:,}"


@final
class LineProgress:
    """One plain line per shown report, at most every ten seconds, and one at the end.

    What limits the speed is said once, when the run has got going, or at once where others take the
    cores, since its first steps may then take minutes; and again at the end if that has changed.
    """

    def __init__(
        self, title: str, stream: TextIO, pace: Pace, setting: Setting | None = None
    ) -> None:
        self._out = QuietStream(stream)
        self._pace = pace
        self._setting = setting
        self._shares = TimeShares()
        self._told: Cause | None = None
        self._shown_at = self._silent_until = float("-inf")
        self._silence_s = _LINE_INTERVAL_S
        self._evaluation = Score()
        self._pending: str | None = None
        self.say(title)

    def update(self, report: Mapping[str, float], recent: Score = NO_SCORE) -> None:
        self._pace.advance(int(report.get("env_steps", self._pace.done)))
        self._shares.add(report)
        if "eval/return_mean" in report:
            self._evaluation = Score(report["eval/return_mean"], report.get("eval/success_rate"))
        self._pending = f"{self._pace.percent:3d}%  " + _summary(
            self._pace, recent, self._evaluation
        )
        now = time.monotonic()
        if now - self._shown_at >= _LINE_INTERVAL_S:
            begun = self._shown_at > float("-inf")
            self._shown_at = now
            self._flush()
            if self._told is None and (begun or self._crowded):
                self._tell()

    def stage(self, text: str) -> None:
        """Says nothing: lines stay where they are, and a stage passes."""

    def waiting(self, text: str) -> None:
        """Says so ever more rarely, since a slow run waits in every iteration."""
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + self._silence_s
            self._silence_s = min(2 * self._silence_s, _MOST_SILENCE_S)
            self._flush()
            self.say(text)

    def say(self, message: str) -> None:
        self._out.write(f"{message}\n")
        self._out.flush()

    def close(self) -> None:
        self._flush()
        if self._told is not None:
            self._tell()

    def _flush(self) -> None:
        if self._pending is not None:
            self.say(self._pending)
            self._pending = None

    def _tell(self) -> None:
        """What limits the speed, unless the same was said last."""
        load = self._shares.recent()
        if self._setting is None or not load.learner:
            return
        told = cause(load, self._setting)
        if told != self._told:
            self._told = told
            self.say(limit(load, self._setting, starting=self._shares.starting))

    @property
    def _crowded(self) -> bool:
        return self._setting is not None and crowded(self._shares.recent(), self._setting)


def _summary(pace: Pace, recent: Score, evaluation: Score) -> str:
    parts = [f"{pace.done:,}/{pace.total:,} env steps"]
    if pace.steps_per_s is not None:
        parts.append(f"{pace.steps_per_s:,.0f} steps/s")
    if pace.left_s is not None and pace.done < pace.total:
        parts.append(f"{clock(pace.left_s)} left")
    for name, scores in (("return", recent), ("evaluation", evaluation)):
        if scores.return_ is not None:
            parts.append(f"{name} {scores.return_:,.1f}")
            if scores.success is not None:
                parts[-1] += f" ({percent(scores.success)} won)"
    return "  ".join(parts)
