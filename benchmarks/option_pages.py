"""Tables of all options and metrics, from their declarations."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel

from quintet.algorithms import registry
from quintet.envs.atari import AtariConfig
from quintet.models.config import GridOptions, PictureOptions
from quintet.observe.metrics import OF_LEARNERS, OF_RUNS, PREFIXES, Metric
from quintet.options.declaration import Tune, about, default_of, tunable
from quintet.options.run import PARTS, TOP, RunConfig, prefix_of

SEVERAL = "Several learners"
METRICS = "| metric | unit | meaning |\n|---|---|---|\n"
TABLE = "| option | default | meaning |\n|---|---|---|\n"


def meaning(options: type[BaseModel], name: str) -> str:
    """An option's meaning, with what it needs."""
    info = options.model_fields[name]
    needs = [
        (f"{need.value}: " if need.value else "", re.sub(r"(,| \()[^,({]*{.*", "", need.what))
        for need in about(info).needs
    ]
    only = "; ".join(f"{of}only with {_grouped(need)}" for of, need in needs if "{" not in need)
    said = " ".join((info.description or "").split())
    return "; ".join(part for part in (said, only) if part)


def _grouped(need: str) -> str:
    """A condition with parentheses around every `and` next to an `or`."""
    parts = need.split(" or ")
    return need if len(parts) == 1 else " or ".join(f"({x})" if " and " in x else x for x in parts)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def of_run() -> Iterable[str]:
    """Sections of the options that all learners have: the run's own, and those of its parts."""
    yield _section("A run", [(name, RunConfig, name) for name in TOP])
    for part, kind in PARTS.items():
        rows = [(prefix_of(part) + name, kind, name) for name in kind.model_fields]
        yield _section(f"`{prefix_of(part)}*`", rows)
        for title, own in _KWARGS.items():
            if title.startswith(f"`{prefix_of(part)}"):
                yield _section(title, [(name, own, name) for name in own.model_fields])


_KWARGS: dict[str, type[BaseModel]] = {
    "`env.kwargs` of Atari games": AtariConfig,
    "`model.encoder_kwargs` of film_grid": GridOptions,
    "`model.encoder_kwargs` of small_cnn": PictureOptions,
}
"""Keyword arguments in options that are mappings."""


def _section(title: str, rows: Iterable[tuple[str, type[BaseModel], str]]) -> str:
    lines = [
        f"| `{told}` | {_default(options, name)} | {meaning(options, name)} |\n"
        for told, options, name in rows
    ]
    return f"\n## {title}\n\n{TABLE}{''.join(lines)}"


def _default(options: type[BaseModel], name: str) -> str:
    required = options.model_fields[name].is_required()
    return "required" if required else _shown(default_of(options, name))


def of_learners(configs: dict[str, type[BaseModel]]) -> str:
    """Sections of learners' options: first those that several share, then each learner's own."""
    defaults: dict[tuple[str, str], dict[str, str]] = {}
    for algo, options in configs.items():
        for name in options.model_fields:
            given = defaults.setdefault((name, meaning(options, name)), {})
            given[algo] = _shown(default_of(options, name))
    sections = {SEVERAL: "", **{algo.upper(): "" for algo in configs}}
    for (name, meant), by_algo in defaults.items():
        section = next(iter(by_algo)).upper() if len(by_algo) == 1 else SEVERAL
        told = _defaults(by_algo, len(configs))
        sections[section] += f"| `{name}` | {told} | {meant} |\n"
    return "".join(f"\n## {title}\n\n{TABLE}{rows}" for title, rows in sections.items())


def _defaults(by_algo: dict[str, str], learners: int) -> str:
    """Defaults, with the learners that have them unless all have the same."""
    learners_of: dict[str, list[str]] = {}
    for algo, value in by_algo.items():
        learners_of.setdefault(value, []).append(algo)
    if len(by_algo) == 1 or (len(by_algo) == learners and len(learners_of) == 1):
        return next(iter(learners_of))
    return "; ".join(f"{', '.join(of)}: {value}" for value, of in learners_of.items())


def of_options() -> str:
    """All sections."""
    configs = {algo: registry.find(algo).config for algo in registry.LEARNERS.own}
    return of_learners(configs) + of_populations(configs) + "".join(of_run())


def of_populations(configs: dict[str, type[BaseModel]]) -> str:
    """The section of the options that populations tune."""
    lines = [
        f"| {algo} | {_named(kind, lambda way: way.usual)} | "
        f"{_named(kind, lambda way: way.by == 'distance_to_1')} |\n"
        for algo, kind in configs.items()
    ]
    head = "| learner | by default | by the distance to 1 |\n|---|---|---|\n"
    return f"\n## What populations tune\n\n{head}{''.join(lines)}"


def _named(options: type[BaseModel], fits: Callable[[Tune], bool]) -> str:
    return ", ".join(f"`{name}`" for name, way in tunable(options).items() if fits(way))


def of_metrics() -> str:
    """Sections of metrics: by the beginning of their names, and each learner's own."""
    sections: dict[str, str] = {}
    # A learner that is in use has its families among all.
    own = {name for _, each in registry.LEARNERS.usable() for name in each.own_metrics}
    for name, metric in {**OF_RUNS, **OF_LEARNERS, **PREFIXES}.items():
        if name in own:
            continue
        title = f"`{name.partition('/')[0]}/*`" if "/" in name else "Counters"
        sections[title] = sections.get(title, "") + _metric(name, metric)
    for algo in registry.LEARNERS.own:
        for name, metric in registry.find(algo).own_metrics.items():
            title = algo.upper()
            sections[title] = sections.get(title, "") + _metric(name, metric)
    return "".join(f"\n## {title}\n\n{METRICS}{rows}" for title, rows in sections.items())


def _metric(name: str, metric: Metric) -> str:
    told = f"{name}*" if name.endswith("/") else name
    return f"| `{told}` | {metric.unit} | {metric.meaning} |\n"
