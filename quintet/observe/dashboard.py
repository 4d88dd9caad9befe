"""A dashboard in the terminal: a run's progress, its learning, and the limit of its speed."""

import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO, cast, final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from quintet.observe import health
from quintet.observe.limits import limit
from quintet.observe.metrics import policy_of
from quintet.observe.pace import NO_SCORE, Score, clock, percent
from quintet.observe.shares import SERVER, Load, Shares, mean
from quintet.observe.stream import QuietStream, is_terminal
from quintet.observe.text_curve import label
from quintet.observe.timing import Phase
from quintet.observe.view import View

_MOST_OF_TIME = 0.02  # that drawing may take
_SHORTEST_S = 0.1  # between two drawings: the eye sees no more

_NAMES_WIDTH = 11  # a longer name has a space behind it all the same
_NARROW = 50  # columns below which names are not set in a column of their own
_CURVE_HEIGHT = 3
_PROCESS_WIDTH = 11
_SHORTEST_BAR = 12
_MOST_WORKERS = 4  # that have a line each

# Sign and colour: told apart without colour.
_SIGNS: dict[Phase, tuple[str, str]] = {
    "stepping": ("█", "blue"),
    "making": ("▙", "bright_blue"),
    "acting": ("▓", "yellow"),
    "learning": ("▒", "magenta"),
    "replay": ("▚", "bright_magenta"),
    "waiting": ("░", "red"),
    "evaluation": ("▞", "cyan"),
    "checkpoint": ("▤", "green"),
    "other": ("·", "white"),
}

_STYLES: dict[health.State, str] = {
    "sound": "green",
    "not known yet": "dim",
    "doubtful": "yellow",
}

# Lines of metrics: the beginning of their names, and those that come first.  The others of a line
# follow as far as there is room, so the metrics of any learner are shown.
_LINES: dict[str, tuple[str, ...]] = {
    "loss": ("total", "policy", "value"),
    "policy": ("entropy", "approx_kl", "kl", "clip_frac", "rho_clip_frac", "std_mean"),
    "value": ("explained_variance", "target_mean", "prediction_mean"),
    "optim": ("grad_norm", "learning_rate"),
    "normalizer": ("reward_std", "observation_clip_frac", "reward_clip_frac"),
    "exploration": (),
    "replay": (),
    "policy_lag": ("mean", "max"),
    "data": (),
}
_SKIPPED = ("_last_epoch",)

# With workers these have a line of their own; texts for one and for several.
_COUNTS = {
    "data/discarded_columns": ("{} column dropped", "{} columns dropped"),
    "data/waiting_batches": ("{} batch waits", "{} batches wait"),
    "data/worker_restarts": ("{} process replaced", "{} processes replaced"),
}
_OF_WORKERS = (*_COUNTS, "data/discarded_env_steps", "policy_lag/")


@final
class TerminalProgress:
    """A dashboard at the bottom of a terminal; messages appear above it."""

    def __init__(self, view: View, stream: TextIO) -> None:
        self._view = view
        self._console = Console(file=cast(TextIO, QuietStream(stream)))
        self._own = stream is sys.stdout
        self._next_draw = float("-inf")
        self._width = self._console.width
        self._live = self._begin()
        self._draw()

    def update(self, report: Mapping[str, float], recent: Score = NO_SCORE) -> None:
        self._view.add(report, recent)
        if time.monotonic() >= self._next_draw:
            self._draw()

    def stage(self, text: str) -> None:
        self._view.stage = text
        self._draw()

    def waiting(self, text: str) -> None:
        self.stage(text)

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._view.stage = ""
        if self._live.is_started:
            self._draw()
        self._live.stop()

    def _begin(self) -> Live:
        # lines of environments and libraries must not tear the dashboard; streams that the person
        # has redirected (2>errors.txt) stay so
        live = Live(
            console=self._console,
            auto_refresh=False,  # no thread that would compete with training; reports come often
            redirect_stdout=self._own,
            redirect_stderr=self._own and is_terminal(sys.stderr),
        )
        live.start()
        return live

    def _draw(self) -> None:
        begin = time.monotonic()
        width, height = self._console.size
        if width < self._width:
            # The terminal has wrapped the lines, so their number is unknown.
            self._live.stop()
            self._console.clear()
            self._live = self._begin()
        self._width = width
        self._live.update(Group(*layout(self._view, width, height - 1)), refresh=True)
        end = time.monotonic()
        self._next_draw = end + max(_SHORTEST_S, (end - begin) / _MOST_OF_TIME)


@dataclass(frozen=True)
class _Block:
    """Lines that are shown together or, without room for them, not at all.

    rank: blocks of the highest rank are left out first.
    divisible: whether as many of the lines as fit may be shown alone.
    """

    rank: int
    lines: Sequence[Text]
    divisible: bool = False


def layout(view: View, width: int, height: int) -> list[Text]:
    """The lines of the dashboard, at most `height` of at most `width` characters.

    The least important blocks are left out first: metrics, the curve, the bar of shares; how far
    the run is and what limits it stay longest.
    """
    narrow = width - _NAMES_WIDTH
    blocks = [
        _Block(0, [_title(view, width)]),
        _Block(0, [_bar(view, width)]),
        _Block(1, [_steps(view, width)]),
        _Block(3, [_named("return", _returns(view), width)]),
        *_successes(view, width),
        *_policies(view, width),
        _Block(5, _curve(view, narrow)),
        *_time(view, width),
        *_samples(view, width),
        *_health(view, width),
        *_numbers(view, width),
    ]
    room = height
    shown: dict[int, Sequence[Text]] = {}
    for index in sorted(range(len(blocks)), key=lambda index: blocks[index].rank):
        lines = blocks[index].lines
        if len(lines) > room:
            shown[index] = lines[:room] if blocks[index].divisible else []
            break  # no less important block is shown in its place
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


def _bar(view: View, width: int) -> Text:
    pace = view.pace
    figures = f" {pace.percent:3d}%"
    if "wall_s" in view.report and width >= 40:
        figures += f"  {clock(view.report['wall_s'])} elapsed"
    if pace.left_s is not None and pace.done < pace.total and width >= 60:
        figures += f"  {clock(pace.left_s)} left"
    cells = max(0, width - len(figures))
    full = cells * pace.done // max(1, pace.total)
    return Text.assemble(("━" * full, "cyan"), ("─" * (cells - full), "dim"), figures)


def _steps(view: View, width: int) -> Text:
    pace = view.pace
    parts = [f"{pace.done:,} of {pace.total:,}"]
    if pace.steps_per_s is not None:
        parts.append(f"{pace.steps_per_s:,.0f} per second")
    if view.stage:
        # The stage is more important than how far and how fast the run is.
        while parts and _NAMES_WIDTH + len("  ".join([*parts, view.stage])) > width:
            parts.pop()
        return _named("env steps", [*map(Text, parts), Text(view.stage, style="yellow")], width)
    parts += [f"{int(view.report[n]):,} {n}" for n in ("iterations", "updates") if n in view.report]
    return _named("env steps", [*map(Text, parts)], width)


def _returns(view: View) -> list[Text]:
    parts = []
    if view.recent.return_ is not None:
        parts.append(f"{label(view.recent.return_)} training, last 100 episodes")
    if view.evaluation.return_ is not None:
        parts.append(f"{label(view.evaluation.return_)} {view.evaluation_name}")
    if view.best is not None:
        parts.append(f"{label(view.best)} best")
    return [*map(Text, parts or ["no episode has ended yet"])]


def _successes(view: View, width: int) -> list[_Block]:
    parts = []
    if view.recent.success is not None:
        parts.append(f"{percent(view.recent.success)} training, last 100 episodes")
    if view.evaluation.success is not None:
        parts.append(f"{percent(view.evaluation.success)} {view.evaluation_name}")
    return [_Block(3, [_named("success", [*map(Text, parts)], width)])] if parts else []


def _policies(view: View, width: int) -> list[_Block]:
    """A line for each of several policies: its objective, return, copies and hyperparameters."""
    own: dict[int, dict[str, float]] = {}
    for name, x in view.report.items():
        if (policy := policy_of(name)) >= 0:
            own.setdefault(policy, {})[name.partition("/")[2]] = x
    lines = []
    for policy, report in sorted(own.items()):
        objective = report.get("population/objective")
        parts = ["not ranked" if objective is None else f"objective {label(objective)}"]
        if "episode/return_mean" in report:
            parts.append(f"return {label(report['episode/return_mean'])}")
        if copies := int(report.get("population/copies", 0)):
            parts.append(f"copied {copies}x")
        tuned = {k: x for k, x in report.items() if k.startswith("hyperparameter/")}
        parts += [f"{name.partition('/')[2]} {x:.3g}" for name, x in tuned.items()]
        lines.append(_named(f"policy {policy}", [*map(Text, parts)], width))
    return [_Block(3, lines, divisible=True)] if lines else []


def _curve(view: View, width: int) -> list[Text]:
    drawn = view.curve.lines(width, _CURVE_HEIGHT)
    return [Text(" " * _NAMES_WIDTH).append(line, style="green") for line in drawn]


def _time(view: View, width: int) -> list[_Block]:
    """The shares of the time as numbers and bars, and the sentence on what limits the speed."""
    load = view.shares.recent()
    if not load.learner:
        return []
    if load.beside:
        rows = _processes(load, width)
        blocks = [_Block(3, rows[:1]), _Block(4, rows[1:], divisible=True)]
    else:
        legend = _legend(load.learner, load.learner)
        bar = Text(" " * _NAMES_WIDTH)
        bar.append_text(_share_bar(load.learner, max(0, width - _NAMES_WIDTH)))
        blocks = [_Block(3, [_named("time", legend, width)]), _Block(4, [bar])]
    if view.facts is not None:
        sentence = limit(load, view.facts, starting=view.shares.starting)
        blocks.append(_Block(2, _paragraph("limit", sentence, width), divisible=True))
    return blocks


def _processes(load: Load, width: int) -> list[Text]:
    """A line for each process: its name, a bar and its shares; of many workers their mean, and
    below it their range.
    """
    workers = mean(load.workers) if load.workers else {}
    named: list[tuple[str, Shares, Shares]] = [("learner", load.learner, load.learner)]
    several = len(load.workers) > _MOST_WORKERS
    if several:
        named.append((f"{len(load.workers)} workers", workers, workers))
    else:
        every = (name for name in load.beside if name != SERVER)
        named += [(name.replace("/", " "), load.beside[name], workers) for name in every]
    if load.server:
        named.append((SERVER, load.server, load.server))
    cells = (width - _NAMES_WIDTH - _PROCESS_WIDTH) // 4
    cells = cells if cells >= _SHORTEST_BAR else 0  # the numbers tell more
    lines = []
    for number, (name, shares, order) in enumerate(named):
        bar = _share_bar(shares, cells)
        bar.append("  " if cells else "")
        lines.append(_of_process(number == 0, name, bar, _legend(shares, order), width))
        if several and number == 1:
            ends = [Text(each, style="dim") for each in _ranges(load.workers, workers)]
            lines.append(_of_process(False, "", Text(" " * len(bar)), ends, width))
    return lines


def _of_process(first: bool, name: str, bar: Text, parts: Sequence[Text], width: int) -> Text:
    """A line of the block "time", with as many whole parts as fit."""
    if width < _NARROW:
        return _filled(Text.assemble(f"{name} ", bar), parts, width)
    head = (f"{'time' if first else '':{_NAMES_WIDTH}}", "bold")
    return _filled(Text.assemble(head, f"{name:{_PROCESS_WIDTH}}", bar), parts, width)


def _ranges(workers: Sequence[Shares], order: Shares) -> list[str]:
    """The smallest and the largest share of a worker, by phase."""
    found = []
    for phase in sorted(order, key=lambda phase: -order[phase]):
        shares = [100 * worker.get(phase, 0.0) for worker in workers]
        if max(shares) >= 0.5:
            found.append(f"{phase} {min(shares):.0f} to {max(shares):.0f}%")
    return found


def _legend(shares: Shares, order: Shares) -> list[Text]:
    """Every phase with its sign and share, the largest of `order` first."""
    return [
        Text.assemble(_SIGNS[phase], f" {phase} {100 * share:.0f}%")
        for phase, share in sorted(shares.items(), key=lambda item: -order.get(item[0], 0.0))
        if share >= 0.005
    ]


def _share_bar(shares: Shares, cells: int) -> Text:
    bar = Text()
    end = 0.0
    for phase, share in shares.items():
        begin, end = end, end + share
        sign, colour = _SIGNS[phase]
        bar.append(sign * (round(end * cells) - round(begin * cells)), style=colour)
    return bar


def _samples(view: View, width: int) -> list[_Block]:
    """Policy lag, dropped columns and waiting batches of a run with workers."""
    if not _has_workers(view):
        return []
    report = view.report
    parts = []
    for name in ("mean", "max"):
        if f"policy_lag/{name}" in report:
            parts.append(Text(f"{label(report[f'policy_lag/{name}'])} {name}"))
    for name, text in _COUNTS.items():
        if name in report:
            count = int(report[name])
            style = "yellow" if name == "data/worker_restarts" else ""
            if count or not style:
                parts.append(Text(text[count != 1].format(f"{count:,}"), style=style))
    return [_Block(4, [_named("policy lag", parts, width)])] if parts else []


def _has_workers(view: View) -> bool:
    return view.facts is not None and view.facts.num_workers > 0


def _health(view: View, width: int) -> list[_Block]:
    lines: list[Text] = []
    for state, sentence in health.sentences(view.findings):
        lines += _paragraph("" if lines else "health", sentence, width, _STYLES[state])
    return [_Block(3, lines)] if lines else []


def _numbers(view: View, width: int) -> list[_Block]:
    told = _OF_WORKERS if _has_workers(view) else ()
    blocks = []
    for rank, (name, first) in enumerate(_LINES.items()):
        values = {
            key.removeprefix(f"{name}/"): value
            for key, value in view.report.items()
            if key.startswith(f"{name}/")
            and not key.endswith(_SKIPPED)
            and not key.startswith(told)
        }
        ordered = [key for key in first if key in values]
        # what is exactly 0 is switched off
        ordered += [key for key, value in values.items() if key not in first and value != 0]
        parts = [Text.assemble((f"{key} ", "dim"), label(values[key])) for key in ordered]
        if parts:
            blocks.append(_Block(6 + rank, [_named(name, parts, width)]))
    return blocks


def _named(name: str, parts: Sequence[Text], width: int) -> Text:
    """A name and as many whole parts as fit."""
    cells = _NAMES_WIDTH - 1 if width >= _NARROW else 0
    line = Text.assemble((f"{name:{cells}} ", "bold"))
    return _filled(line, parts, width)


def _filled(line: Text, parts: Sequence[Text], width: int) -> Text:
    """Appends as many whole parts as fit to the line."""
    for number, part in enumerate(parts):
        if number and len(line) + 2 + len(part) > width:
            break
        line.append("  " if number else "").append_text(part)
    return line


def _paragraph(name: str, sentence: str, width: int, style: str = "") -> list[Text]:
    """The sentence in lines after its name, which narrow terminals leave out."""
    if width < _NARROW:
        return [Text(line, style=style) for line in _wrap(sentence, max(10, width))]
    wrapped = _wrap(sentence, width - _NAMES_WIDTH)
    names = [name, *[""] * (len(wrapped) - 1)]
    lines = zip(names, wrapped, strict=True)
    return [_named(head, [Text(line, style=style)], width) for head, line in lines]


def _wrap(sentence: str, width: int) -> list[str]:
    """Wraps a sentence; options stay whole, so that they can be copied."""
    return textwrap.wrap(sentence, width, break_on_hyphens=False)
