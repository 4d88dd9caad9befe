"""The decisions of a population as a picture: copies, and the values of tuned options over time."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintet.checkpoints.links import require_own
from quintet.errors import QuintetError
from quintet.observe.figures import LINES, figure_classes, line_colour, save, style_axes
from quintet.observe.plot_groups import plain
from quintet.options.bounds import LARGEST, MOST_STEPS
from quintet.system import files

EVENTS = "population.jsonl"
"""The file of decisions in a run's folder, one JSON object per line."""

Event = Mapping[str, Any]

_MOST_NAMES = 12  # options that are drawn


def read_events(run_dir: Path) -> list[Event]:
    """The decisions of a run, the first values of its policies first; raises QuintetError if none
    can be read.
    """
    require_own(run_dir)
    path = run_dir / EVENTS
    if not path.exists():
        raise QuintetError(
            f"the run must have a population, but {run_dir} has no {EVENTS}: train one with "
            "--population 4"
        )
    try:
        events = [_checked(json.loads(line)) for line in files.read_bytes(path).splitlines()]
        names = {tuple(sorted(event["known"])) for event in events}
        begun = [event["policy"] for event in events if event["event"] == "begins"]
        whole = len(names) == 1 and begun == list(range(len(begun)))
        if not whole or not all(event["policy"] in begun for event in events):
            raise ValueError("it lacks the first values of a policy")
        return events
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as fault:
        raise QuintetError(
            f"{path} is damaged ({fault}); resuming the run writes it again"
        ) from None


def _checked(event: Any) -> Event:
    """The event, checked for the picture."""
    begins = event["event"] == "begins"
    known = event["values"] if begins else event["after"]
    steps = event.get("env_steps", 0) if begins else event["env_steps"]
    at = (steps, event["policy"]) if begins else (steps, event["policy"], event["donor"])
    if not (isinstance(known, dict) and all(isinstance(x, int) for x in at)):
        raise TypeError("it has lines that are no events of a population")
    objectives = (
        [] if begins else [None if x is None else float(x) for x in event.get("objectives", ())]
    )
    known = {str(name): float(x) for name, x in known.items()}
    numbers = [*known.values(), *(x for x in objectives if x is not None)]
    if not 0 <= min(at) <= max(at) <= MOST_STEPS or not all(abs(x) <= LARGEST for x in numbers):
        raise ValueError("it has numbers that are too large")
    return {**event, "env_steps": steps, "known": known, "objectives": objectives}


def plot_lineage(run_dir: Path, out: Path) -> Path:
    """Draws the decisions of a run and returns `out`.

    From top to bottom: a line for each policy, with an arrow from donor to copy and a cross where a
    policy diverged; the objectives at each decision; and the value of each tuned option over
    the run's env_steps.

    Raises:
        QuintetError: the run has no population, or the picture can't be written.
    """
    return save(lineage_figure(read_events(files.given_path(run_dir))), files.given_path(out))


def lineage_figure(events: Sequence[Event]) -> Any:
    """The picture of the decisions of a run, see `plot_lineage`."""
    begins = [event for event in events if event["event"] == "begins"]
    every = sorted({name for event in begins for name in event["known"]})
    names, more = every[:_MOST_NAMES], len(every) - _MOST_NAMES
    end = max(event.get("env_steps", 0) for event in events) or 1
    figure_class, formatter = figure_classes()
    figure = figure_class(figsize=(8.0, 3.8 + 1.3 * len(names)), dpi=120, layout="constrained")
    heights = [1.6, 1.6, *[1.0] * len(names)]
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    _draw_copies(axes[0], events, len(begins), end)
    _draw_objectives(axes[1], events, len(begins))
    for place, name in zip(axes[2:], names, strict=True):
        for policy in range(len(begins)):
            _draw_value(place, events, policy, name, end)
        place.set_ylabel(plain(name), fontsize=8)
        place.tick_params(which="both", labelsize=7)
        style_axes(place)
    left_out = f" ({more} more options are not drawn)" if more > 0 else ""
    axes[-1].set_xlabel(f"env_steps of all policies{left_out}", fontsize=9)
    axes[-1].xaxis.set_major_formatter(formatter())
    return figure


def _line(policy: int) -> dict[str, Any]:
    return {"color": line_colour(policy), "ls": LINES[policy % len(LINES)]}


def _draw_copies(axes: Any, events: Sequence[Event], policies: int, end: int) -> None:
    """Draws an arrow for each copy, a cross for each divergence."""
    for policy in range(policies):
        axes.plot([0, end], [policy, policy], **_line(policy))
    for event in events:
        if event.get("donor", event["policy"]) != event["policy"]:
            at, donor, policy = event["env_steps"], event["donor"], event["policy"]
            if event["event"] == "diverged":
                axes.plot([at], [policy], color=line_colour(policy), marker="x", ls="")
            arrow = {"arrowstyle": "-|>", "color": line_colour(donor), "lw": 1.2}
            axes.annotate("", (at, policy), (at, donor), arrowprops=arrow)
    axes.set_yticks(range(policies), [f"policy {policy}" for policy in range(policies)], fontsize=8)
    axes.invert_yaxis()
    axes.set_title("copies, from the donor to the copy", loc="left", fontsize=9)
    style_axes(axes)


def _draw_objectives(axes: Any, events: Sequence[Event], policies: int) -> None:
    """Draws the objective of each policy at all decisions that ranked it."""
    for policy in range(policies):
        known = [
            (event["env_steps"], event["objectives"][policy])
            for event in events
            if policy < len(event["objectives"]) and event["objectives"][policy] is not None
        ]
        at, values = zip(*known, strict=True) if known else ((), ())
        axes.plot(at, values, marker=".", ms=3, lw=1.2, **_line(policy))
    axes.set_ylabel("objective", fontsize=8)
    axes.tick_params(which="both", labelsize=7)
    style_axes(axes)


def _draw_value(axes: Any, events: Sequence[Event], policy: int, name: str, end: int) -> None:
    own = [event for event in events if event["policy"] == policy]
    at = [event.get("env_steps", 0) for event in own]
    values = [event["known"][name] for event in own]
    axes.step([*at, end], [*values, values[-1]], where="post", lw=1.2, **_line(policy))
    if min(values) > 0:
        axes.set_yscale("log")
