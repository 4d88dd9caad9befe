"""A dashboard in the terminal: a run's progress, its learning, and the limit of its speed."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO, cast, final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from quintet.findings import health
from quintet.findings.speed import limit
from quintet.observe.metrics import ENV, by_node, by_policy
from quintet.observe.pace import NO_SCORE, Score, clock, percent
from quintet.observe.text_curve import label
from quintet.observe.timing import SERVER, Load, Phase, Shares, mean
from quintet.observe.view import View
from quintet.system.printing import QuietStream, is_terminal, plain

_MOST_OF_TIME = 0.02  # share of the time that drawing may take
_SHORTEST_S = 0.1  # between two drawings: the eye sees no more

_NAMES_WIDTH = 11  # a longer name has a space behind it all the same
_CURVE_HEIGHT = 3
_MOST_WORKERS = 4  # workers with a line each; also nodes
_UNEVEN = 0.2  # difference between shares of nodes' waiting from which one is waited for

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
    "reliable": "green",
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
    "data": ("discarded_columns", "waiting_batches", "worker_restarts"),
}
_SKIPPED = ("_last_epoch",)

_Block = tuple[int, RenderableType]
"""Rank, and lines that are shown together; those of the highest rank are left out first."""


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
        self._live.update(layout(self._view, self._console, height - 1), refresh=True)
        end = time.monotonic()
        self._next_draw = end + max(_SHORTEST_S, (end - begin) / _MOST_OF_TIME)


@dataclass(frozen=True)
class _Items:
    """A line of as many whole items as fit."""

    items: Sequence[Text | str]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        line = Text(no_wrap=True, overflow="ellipsis")
        for item in self.items:
            if line and len(line) + 2 + len(item) > options.max_width:
                break
            line.append("  " if line else "").append(item)
        yield line


@dataclass(frozen=True)
class _ShareBar:
    """Shares of a time as a bar."""

    shares: Shares

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        bar, end = Text(no_wrap=True), 0.0
        for phase, share in self.shares.items():
            begin, end = end, end + share
            sign, colour = _SIGNS[phase]
            cells = round(end * options.max_width) - round(begin * options.max_width)
            bar.append(sign * cells, style=colour)
        yield bar


def _row(name: str, *cells: RenderableType) -> Table:
    """A name, and cells of which the last is three times as wide as others."""
    row = Table.grid(padding=(0, 1), expand=True)
    row.add_column(style="bold", no_wrap=True, min_width=_NAMES_WIDTH - 1)
    for number, _ in enumerate(cells, start=1):
        row.add_column(ratio=3 if number == len(cells) else 1)
    # Texts, because rich may take parts of strings for markup.
    row.add_row(*(Text(each) if isinstance(each, str) else each for each in (name, *cells)))
    return row


def layout(view: View, console: Console, height: int) -> SegmentLines:
    """The dashboard, as wide as the console and of at most `height` lines.

    The least important blocks are left out first: metrics, the curve, the bar of shares; progress
    and the limit of speed stay longest.
    """
    blocks: list[_Block] = [
        (0, _title(view)),
        (0, _progress(view)),
        (1, _row("env steps", _Items(_steps(view)))),
        *_scores(view),
        *_curriculum(view),
        *_policies(view),
        *_curve(view, console.width - _NAMES_WIDTH),
        *_time(view),
        *_nodes(view),
        *_health(view),
        *_numbers(view),
    ]
    room, shown = height, {}
    for number in sorted(range(len(blocks)), key=lambda number: blocks[number][0]):
        lines = console.render_lines(blocks[number][1], pad=False)
        if len(lines) > room:
            break  # no less important block is shown in its place
        shown[number] = lines
        room -= len(lines)
    kept = [line for number in sorted(shown) for line in shown[number]]
    return SegmentLines(kept, new_lines=True)


def _title(view: View) -> Table:
    title = Table.grid(padding=(0, 2), expand=True)
    title.add_column(style="bold", no_wrap=True)
    title.add_column(style="dim", no_wrap=True, justify="right", ratio=1)
    title.add_row(Text(view.title), Text(view.folder))
    return title


def _progress(view: View) -> Table:
    pace = view.pace
    figures = [f"{pace.percent:3d}%"]
    if "wall_s" in view.report:
        figures.append(f"{clock(view.report['wall_s'])} elapsed")
    if pace.left_s is not None and pace.done < pace.total:
        figures.append(f"{clock(pace.left_s)} left")
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_row(
        ProgressBar(max(1, pace.total), pace.done, complete_style="cyan"), "  ".join(figures)
    )
    return bar


def _steps(view: View) -> list[Text | str]:
    pace = view.pace
    parts: list[Text | str] = [f"{pace.done:,} of {pace.total:,}"]
    if pace.steps_per_s is not None:
        parts.append(f"{pace.steps_per_s:,.0f} per second")
    if view.stage:  # more important than progress and speed
        return [Text(view.stage, style="yellow"), *parts]
    return parts + [
        f"{int(view.report[n]):,} {n}" for n in ("iterations", "updates") if n in view.report
    ]


def _scores(view: View) -> Iterator[_Block]:
    """The scores of training and of evaluations, without success where it is not defined."""
    for number, (name, written) in enumerate({"return": label, "success": percent}.items()):
        recent, evaluated = view.recent[number], view.evaluation[number]
        parts = [] if recent is None else [f"{written(recent)} training, last 100 episodes"]
        parts += [] if evaluated is None else [f"{written(evaluated)} {view.evaluation_name}"]
        if name == "return":
            parts += [] if view.best is None else [f"{label(view.best)} best"]
            parts = parts or ["no episode has ended yet"]
        if parts:
            yield 3, _row(name, _Items(parts))
    own = {name: x for name, x in view.report.items() if name.startswith(ENV)}
    if own:
        parts = [f"{name.removeprefix(ENV)} {label(x)}" for name, x in own.items()]
        yield 4, _row("environment", _Items(parts))


def _curriculum(view: View) -> Iterator[_Block]:
    """A line with the stage, or the other numbers, of a curriculum."""
    own = {k.partition("/")[2]: x for k, x in view.report.items() if k.startswith("curriculum/")}
    stage, stages = own.pop("stage", None), own.pop("stages", None)
    parts = [] if stage is None or stages is None else [f"stage {stage:.0f} of {stages:.0f}"]
    if parts or own:
        yield 3, _row("curriculum", _Items(parts + [f"{k} {x:.3g}" for k, x in own.items()]))


def _policies(view: View) -> Iterator[_Block]:
    """A line for each of several policies: its objective, return, copies and hyperparameters."""
    for policy, report in by_policy(view.report).items():
        objective = report.get("population/objective")
        parts = ["not ranked" if objective is None else f"objective {label(objective)}"]
        if "episode/return_mean" in report:
            parts.append(f"return {label(report['episode/return_mean'])}")
        if copies := int(report.get("population/copies", 0)):
            parts.append(f"copied {copies}x")
        tuned = {k: x for k, x in report.items() if k.startswith("hyperparameter/")}
        parts += [f"{name.partition('/')[2]} {x:.3g}" for name, x in tuned.items()]
        yield 3, _row(f"policy {policy}", _Items(parts))


def _curve(view: View, width: int) -> Iterator[_Block]:
    if drawn := view.curve.lines(width, _CURVE_HEIGHT):
        yield 5, _row("", Text("\n".join(drawn), style="green", no_wrap=True))


def _time(view: View) -> Iterator[_Block]:
    """The shares of the time as numbers and bars, and the sentence about the limit of speed."""
    load = view.shares.recent()
    if not load.learner:
        return
    if load.beside:
        yield from _processes(load)
    else:
        yield 3, _row("time", _legend(load.learner, load.learner))
        yield 4, _row("", _ShareBar(load.learner))
    if view.facts is not None:
        yield 2, _row("limit", limit(load, view.facts, starting=view.shares.starting))


def _processes(load: Load) -> Iterator[_Block]:
    """A line for each process: a bar and its shares; of many workers their mean, and below it their
    range.
    """
    yield 3, _of_process("learner", load.learner, load.learner)
    workers = mean(load.workers) if load.workers else {}
    if len(load.workers) > _MOST_WORKERS:
        yield 4, _of_process(f"{len(load.workers)} workers", workers, workers)
        yield 4, _row("", "", _Items(_ranges(load.workers, workers)))
    else:
        for name, shares in load.beside.items():
            if name != SERVER:
                yield 4, _of_process(name.replace("/", " "), shares, workers)
    if load.server:
        yield 4, _of_process(SERVER, load.server, load.server)


def _nodes(view: View) -> Iterator[_Block]:
    """A line for each node of a cluster; with many nodes one line for all, and the node that others
    wait for.
    """
    nodes = by_node(view.report)
    waits = {index: own["waiting_frac"] for index, own in nodes.items() if "waiting_frac" in own}
    if len(nodes) > _MOST_WORKERS:
        sums = {
            name: sum(own.get(name, 0.0) for own in nodes.values())
            for name in ("workers", "env_steps_per_s", "in_bytes_per_s", "out_bytes_per_s")
        }
        ages = [own["weights_age_s"] for own in nodes.values() if "weights_age_s" in own]
        means = {"weights_age_s": sum(ages) / len(ages)} if ages else {}
        if waits:
            means["waiting_frac"] = sum(waits.values()) / len(waits)
        yield 4, _row(f"{len(nodes)} nodes", _Items(_of_node(sums | means)))
    else:
        for index, own in nodes.items():
            yield 4, _row(f"node {index}", _Items(_of_node(own)))
    if len(waits) > 1 and max(waits.values()) - min(waits.values()) > _UNEVEN:
        least = min(waits, key=lambda index: waits[index])
        line = f"node {least} is waited for: its workers wait {percent(waits[least])} of their time"
        yield 4, _row("", f"{line}, others up to {percent(max(waits.values()))}")


def _of_node(own: Mapping[str, float]) -> list[Text | str]:
    """The metrics of a node, or of several, in words."""
    parts: list[Text | str] = [f"{own['workers']:.0f} workers"]
    parts.append(f"{own['env_steps_per_s']:,.0f} steps/s")
    for way, name in (("in", "in_bytes_per_s"), ("out", "out_bytes_per_s")):
        parts.append(f"{own[name] / 1e6:.3g} MB/s {way}")
    if "waiting_frac" in own:
        parts.append(f"waits {percent(own['waiting_frac'])}")
    if "weights_age_s" in own:
        parts.append(f"weights {own['weights_age_s']:.2g} s old")
    return parts


def _of_process(name: str, shares: Shares, order: Shares) -> Table:
    return _row(name, _ShareBar(shares), _legend(shares, order))


def _ranges(workers: Sequence[Shares], order: Shares) -> list[Text]:
    """The smallest and the largest share of a worker, by phase."""
    found = []
    for phase in sorted(order, key=lambda phase: -order[phase]):
        shares = [100 * worker.get(phase, 0.0) for worker in workers]
        if max(shares) >= 0.5:
            found.append(Text(f"{phase} {min(shares):.0f} to {max(shares):.0f}%", style="dim"))
    return found


def _legend(shares: Shares, order: Shares) -> _Items:
    """Every phase with its symbol and share, the largest in `order` first."""
    return _Items(
        [
            Text.assemble(_SIGNS[phase], f" {phase} {100 * share:.0f}%")
            for phase, share in sorted(shares.items(), key=lambda item: -order.get(item[0], 0.0))
            if share >= 0.005
        ]
    )


def _health(view: View) -> Iterator[_Block]:
    lines = [Text(said, style=_STYLES[state]) for state, said in health.sentences(view.states)]
    doubts = [f"choice: {said}" for said in view.choices]
    doubts += [f"doctor: {said}" for said in view.marks]
    lines += [Text(plain(said), style=_STYLES["doubtful"]) for said in doubts]
    if lines:
        yield 3, _row("health", Group(*lines))


def _numbers(view: View) -> Iterator[_Block]:
    for rank, (name, first) in enumerate(_LINES.items(), start=6):
        values = {
            key.removeprefix(f"{name}/"): value
            for key, value in view.report.items()
            if key.startswith(f"{name}/") and not key.endswith(_SKIPPED)
        }
        ordered = [key for key in first if key in values]
        # A value of exactly 0 is switched off.
        ordered += [key for key, value in values.items() if key not in first and value != 0]
        parts = [Text.assemble((f"{key} ", "dim"), label(values[key])) for key in ordered]
        if parts:
            yield rank, _row(name, _Items(parts))
