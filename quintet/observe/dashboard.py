"""What a terminal shows while a run trains: how far it is, how it learns, and what limits it."""

import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO, cast, final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from quintet.observe.health import findings
from quintet.observe.limits import Setting, TimeShares, limit
from quintet.observe.progress import Pace, QuietStream, clock, is_terminal, percent
from quintet.observe.text_curve import TextCurve, label
from quintet.observe.timing import Phase

_MOST_OF_TIME = 0.02  # that drawing may take
_SHORTEST_S = 0.1  # between two drawings: the eye sees no more

_NAMES_WIDTH = 11
_NARROW = 50  # columns below which names are not set in a column of their own
_CURVE_HEIGHT = 3

# Sign in a terminal that knows more than ASCII, sign in others, colour: told apart without colour.
_SIGNS: dict[Phase, tuple[str, str, str]] = {
    "stepping": ("█", "S", "blue"),
    "acting": ("▓", "A", "yellow"),
    "learning": ("▒", "L", "magenta"),
    "waiting": ("░", "W", "red"),
    "evaluation": ("▞", "E", "cyan"),
    "checkpoint": ("▤", "C", "green"),
    "other": ("·", "o", "white"),
}

# What a report may hold, by line: the beginning of the names, and those that come first.  What
# stands nowhere here follows as far as there is room, so any learner's numbers are shown.
_LINES: dict[str, tuple[str, ...]] = {
    "loss": ("total", "policy", "value", "q"),
    "policy": ("entropy", "approx_kl", "kl", "clip_frac", "rho_clip_frac", "std_mean"),
    "value": ("explained_variance", "target_mean", "prediction_mean", "q_mean"),
    "optim": ("grad_norm", "learning_rate", "actor_learning_rate", "critic_learning_rate"),
    "normalizer": ("reward_std", "observation_clip_frac", "reward_clip_frac"),
    "exploration": (),
    "replay": (),
    "policy_lag": ("mean", "max"),
    "data": (),
}
_SKIPPED = ("_last_epoch",)


@dataclass
class View:
    """All that the dashboard shows; it changes with every report.

    stage: what is going on that no report tells of yet, or "".
    """

    title: str
    folder: str
    pace: Pace
    setting: Setting | None
    stage: str = ""
    report: dict[str, float] = field(default_factory=dict)
    shares: TimeShares = field(default_factory=TimeShares)
    curve: TextCurve = field(default_factory=TextCurve)
    recent_return: float | None = None
    recent_success: float | None = None
    evaluation: float | None = None
    best: float | None = None

    def add(
        self,
        report: Mapping[str, float],
        recent_return: float | None,
        recent_success: float | None = None,
    ) -> None:
        """Takes a report; what it lacks keeps its last value, as an evaluation's score does."""
        self.pace.advance(int(report.get("env_steps", self.pace.done)))
        self.report |= report
        self.shares.add(report)
        self.stage = ""
        self.recent_return, self.recent_success = recent_return, recent_success
        if recent_return is not None:
            self.curve.add(self.pace.done, recent_return)
        if "eval/return_mean" in report:
            self.evaluation = report["eval/return_mean"]
            if self.best is None or self.evaluation > self.best:
                self.best = self.evaluation


@final
class TerminalProgress:
    """A dashboard at the foot of a terminal; messages go above it."""

    def __init__(self, view: View, stream: TextIO) -> None:
        self._view = view
        self._console = Console(file=cast(TextIO, QuietStream(stream)))
        self._own = stream is sys.stdout
        self._next_draw = float("-inf")
        self._width = self._console.width
        self._live = self._begin()
        self._draw()

    def update(
        self,
        report: Mapping[str, float],
        recent_return: float | None = None,
        recent_success: float | None = None,
    ) -> None:
        self._view.add(report, recent_return, recent_success)
        self._draw_when_due()

    def stage(self, text: str) -> None:
        self._view.stage = text
        self._draw()

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._view.stage = ""
        if self._live.is_started:
            self._draw()
        self._live.stop()

    def _begin(self) -> Live:
        # what the environment or a library prints must not tear the dashboard; what the person
        # sent elsewhere (2>errors.txt) goes on going there
        live = Live(
            console=self._console,
            auto_refresh=False,  # no thread that would compete with training; reports come often
            redirect_stdout=self._own,
            redirect_stderr=self._own and is_terminal(sys.stderr),
        )
        live.start()
        return live

    def _draw_when_due(self) -> None:
        if time.monotonic() >= self._next_draw:
            self._draw()

    def _draw(self) -> None:
        begin = time.monotonic()
        width, height = self._console.size
        if width < self._width:
            # The terminal has broken the lines anew: nothing tells how many they are by now.
            self._live.stop()
            self._console.clear()
            self._live = self._begin()
        self._width = width
        ascii_only = not self._console.encoding.lower().startswith("utf")
        self._live.update(Group(*layout(self._view, width, height - 1, ascii_only)), refresh=True)
        end = time.monotonic()
        self._next_draw = end + max(_SHORTEST_S, (end - begin) / _MOST_OF_TIME)


@dataclass(frozen=True)
class _Block:
    """Lines that are shown together or, when there is no room, not at all.

    rank: 0 stays longest.
    divisible: as many of the lines as there is room for may stand alone.
    """

    rank: int
    lines: Sequence[Text]
    divisible: bool = False


def layout(view: View, width: int, height: int, ascii_only: bool) -> list[Text]:
    """The lines of the dashboard, at most `height` of at most `width` characters.

    What matters less is left out first: other numbers, the curve, the bar of shares; how far the
    run is and what limits it stay.
    """
    narrow = width - _NAMES_WIDTH
    blocks = [
        _Block(0, [_title(view, width)]),
        _Block(0, [_bar(view, width, ascii_only)]),
        _Block(1, [_named("env steps", _steps(view), width)]),
        _Block(3, [_named("return", _returns(view), width)]),
        *_successes(view, width),
        _Block(5, _curve(view, narrow, ascii_only)),
        *_time(view, width, ascii_only),
        *_health(view, width),
        *_numbers(view, width),
    ]
    room = height
    shown: dict[int, Sequence[Text]] = {}
    for index in sorted(range(len(blocks)), key=lambda index: blocks[index].rank):
        lines = blocks[index].lines
        if len(lines) > room:
            shown[index] = lines[:room] if blocks[index].divisible else []
            break  # what matters less must not be shown in its place
        shown[index] = lines
        room -= len(lines)
    kept = [line for index in sorted(shown) for line in shown[index]]
    for line in kept:
        line.no_wrap, line.overflow = True, "crop"
        line.truncate(width)
    return kept


def _title(view: View, width: int) -> Text:
    gap = width - len(view.title) - len(view.folder)
    folder = " " * gap + view.folder if gap >= 2 else ""
    return Text.assemble((view.title, "bold"), (folder, "dim"))


def _bar(view: View, width: int, ascii_only: bool) -> Text:
    pace = view.pace
    figures = f" {pace.percent:3d}%"
    if "wall_s" in view.report and width >= 40:
        figures += f"  {clock(view.report['wall_s'])} elapsed"
    if pace.left_s is not None and pace.done < pace.total and width >= 60:
        figures += f"  {clock(pace.left_s)} left"
    cells = max(0, width - len(figures))
    full = cells * pace.done // max(1, pace.total)
    done, rest = ("#", "-") if ascii_only else ("━", "─")
    return Text.assemble((done * full, "cyan"), (rest * (cells - full), "dim"), figures)


def _steps(view: View) -> list[Text]:
    pace = view.pace
    parts = [f"{pace.done:,} of {pace.total:,}"]
    if pace.steps_per_s is not None:
        parts.append(f"{pace.steps_per_s:,.0f} per second")
    if view.stage:
        return [*map(Text, parts), Text(view.stage, style="yellow")]
    parts += [f"{int(view.report[n]):,} {n}" for n in ("iterations", "updates") if n in view.report]
    return [*map(Text, parts)]


def _returns(view: View) -> list[Text]:
    parts = []
    if view.recent_return is not None:
        parts.append(f"{label(view.recent_return)} training, last 100 episodes")
    if view.evaluation is not None:
        parts.append(f"{label(view.evaluation)} evaluation")
    if view.best is not None:
        parts.append(f"{label(view.best)} best")
    return [*map(Text, parts or ["no episode has ended yet"])]


def _successes(view: View, width: int) -> list[_Block]:
    """Success rates, where a success is defined."""
    parts = []
    if view.recent_success is not None:
        parts.append(f"{percent(view.recent_success)} training, last 100 episodes")
    if "eval/success_rate" in view.report:
        parts.append(f"{percent(view.report['eval/success_rate'])} evaluation")
    return [_Block(3, [_named("success", [*map(Text, parts)], width)])] if parts else []


def _curve(view: View, width: int, ascii_only: bool) -> list[Text]:
    drawn = view.curve.lines(width, _CURVE_HEIGHT, ascii_only)
    return [Text(" " * _NAMES_WIDTH).append(line, style="green") for line in drawn]


def _time(view: View, width: int, ascii_only: bool) -> list[_Block]:
    """The shares of the time, as numbers and as a bar, and the sentence about them."""
    shares = view.shares.recent()
    if not shares:
        return []
    signs = {phase: _SIGNS[phase][1 if ascii_only else 0] for phase in shares}
    legend = [
        Text.assemble((signs[phase], _SIGNS[phase][2]), f" {phase} {100 * share:.0f}%")
        for phase, share in sorted(shares.items(), key=lambda item: -item[1])
        if share >= 0.005
    ]
    cells = max(0, width - _NAMES_WIDTH)
    bar = Text(" " * _NAMES_WIDTH)
    end = 0.0
    for phase, share in shares.items():
        begin, end = end, end + share
        bar.append(
            signs[phase] * (round(end * cells) - round(begin * cells)), style=_SIGNS[phase][2]
        )
    blocks = [_Block(3, [_named("time", legend, width)]), _Block(4, [bar])]
    if view.setting is not None:
        sentence = limit(
            shares, view.setting, starting=view.shares.starting, cores=view.shares.cores()
        )
        blocks.append(_Block(2, _paragraph("limit", sentence, width), divisible=True))
    return blocks


def _health(view: View, width: int) -> list[_Block]:
    found = findings(view.report)
    well = [each.part for each in found if each.healthy]
    lines: list[Text] = []
    if well:
        lines.append(_named("health", [Text(", ".join(well) + " healthy", style="green")], width))
    for each in found:
        if not each.healthy:
            name = "" if lines else "health"
            lines += _paragraph(name, f"{each.part} {each.text}", width, "yellow")
    return [_Block(3, lines)]


def _numbers(view: View, width: int) -> list[_Block]:
    blocks = []
    for rank, (name, first) in enumerate(_LINES.items()):
        values = {
            key.removeprefix(f"{name}/"): value
            for key, value in view.report.items()
            if key.startswith(f"{name}/") and not key.endswith(_SKIPPED)
        }
        ordered = [key for key in first if key in values]
        # what is exactly 0 is switched off
        ordered += [key for key, value in values.items() if key not in first and value != 0]
        parts = [Text.assemble((f"{key} ", "dim"), label(values[key])) for key in ordered]
        if parts:
            blocks.append(_Block(6 + rank, [_named(name, parts, width)]))
    return blocks


def _named(name: str, parts: Sequence[Text], width: int) -> Text:
    """The parts behind their name, as many whole ones as fit."""
    line = Text.assemble((f"{name:{_NAMES_WIDTH if width >= _NARROW else len(name) + 1}}", "bold"))
    for number, part in enumerate(parts):
        if number and len(line) + 2 + len(part) > width:
            break
        line.append("  " if number else "").append_text(part)
    return line


def _paragraph(name: str, sentence: str, width: int, style: str = "") -> list[Text]:
    """The sentence in lines behind its name; narrow terminals have room for the sentence only."""
    if width < _NARROW:
        return [Text(line, style=style) for line in _wrap(sentence, max(10, width))]
    wrapped = _wrap(sentence, width - _NAMES_WIDTH)
    names = [name, *[""] * (len(wrapped) - 1)]
    lines = zip(names, wrapped, strict=True)
    return [_named(head, [Text(line, style=style)], width) for head, line in lines]


def _wrap(sentence: str, width: int) -> list[str]:
    """In lines; options stay whole, so that they can be copied."""
    return textwrap.wrap(sentence, width, break_on_hyphens=False)
