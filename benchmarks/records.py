"""Records of the learning tables: where they are, and whether they are still what the same commands
would give.

A record holds its resolved configuration.  It is stale where a command resolves to another one
today, counting every option but those that are resolved from the machine (`OF_THE_MACHINE`) or do
not touch what is learned (`OF_THE_SESSION`).
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rows import SEEDS, Row

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NOWHERE = "/nonexistent/quintet"
"""A run folder that holds no run: what is saved in the usual one must not take part."""

OF_THE_SESSION = ("seed", "run_dir", "resume", "report.", "eval.", "checkpoint.", "env.metrics")
"""Beginnings of names: the seed, where and how often files are written, evaluation on environments
of its own, numbers in info that are only reported.
"""

OF_THE_MACHINE = (
    "runtime.device",
    "runtime.threads",
    "runtime.actor_threads",
    "runtime.num_workers",
    "runtime.precision",
    "runtime.actor_precision",
    "runtime.compile",
)
"""Resolved from cores, the kind of processor, or whether there is a compiler; they change the
rounding and the speed.  They count where a row sets them.  ``env.streams_per_group`` follows from
the number of workers and counts as what it is with the recorded number.
"""

OF_PATIENCE = ("runtime.worker_timeout_s", "runtime.learner_timeout_s", "runtime.max_restarts")
"""What happens when something fails; nothing of it is learned."""


class Difference(NamedTuple):
    """An option that the same command gives another value today; None: it has none, or had."""

    option: str
    recorded: Any
    today: Any


class Standing(NamedTuple):
    """How a row stands.

    differences: of its configuration; the record is stale where there are any.
    other_seeds: recorded seeds that results are not reported on.
    missing: seeds that it is to be reported on and is not, or not with today's configuration.
    """

    differences: tuple[Difference, ...]
    other_seeds: tuple[int, ...]
    missing: tuple[int, ...]


def path_of(row: Row) -> Path:
    return RESULTS / f"{row.name}.json"


def record_of(row: Row) -> dict[str, Any] | None:
    path = path_of(row)
    return json.loads(path.read_text()) if path.exists() else None


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all, also where the power fails."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def given(row: Row) -> dict[str, Any]:
    """The options that the row's command gives, by name."""
    values: dict[str, Any] = {}
    for option in row.options:
        name, _, value = option.partition("=")
        values[name] = json.loads(value) if value[:1] in '0123456789-[{"' else value
    return values


def counts(option: str, row: Row) -> bool:
    """Whether a record with another value of this option is another result."""
    if option.startswith(OF_THE_SESSION) or option in OF_PATIENCE:
        return False
    return option not in OF_THE_MACHINE or option in given(row)


@cache
def today(row: Row, num_workers: int | None) -> dict[str, Any]:
    """What the row's command resolves to, with so many worker processes where there are any."""
    from quintet.options.layers import Layer
    from quintet.options.resolve import resolved
    from quintet.options.saved import load_config

    values = {"env.id": row.env, "run_dir": NOWHERE, **given(row)}
    loaded = load_config(row.algo, [], Layer("call", values))
    if loaded.config.runtime.kind != "serial" and num_workers is not None:
        values.setdefault("runtime.num_workers", num_workers)
        loaded = load_config(row.algo, [], Layer("call", values))
    return resolved(loaded)[0]


def differences(row: Row, config: dict[str, Any]) -> tuple[Difference, ...]:
    """Between a resolved configuration and today's, of options that count.

    An option that there was not yet has the value of older runs, or its default, in the older
    one.  With one policy no option of populations counts.
    """
    if row.is_peers:
        asked = {"env.id": row.env, **given(row)}
        return tuple(
            Difference(k, config.get(k), x) for k, x in asked.items() if config.get(k) != x
        )
    from quintet.options.layers import options
    from quintet.options.run import OF_OLDER_RUNS

    config = OF_OLDER_RUNS | config
    now, known = today(row, config.get("runtime.num_workers")), options(row.algo)
    alone = config.get("population.size", 1) == now["population.size"] == 1
    found = []
    for name in dict.fromkeys([*config, *now]):
        if name.startswith("population.") and alone:
            continue
        before = config.get(name)
        if name not in config:
            before = _default(known[name])
        if counts(name, row) and before != now.get(name):
            found.append(Difference(name, before, now.get(name)))
    return tuple(found)


def _default(info: Any) -> Any:
    value = info.get_default(call_default_factory=True)
    return list(value) if isinstance(value, tuple) else value


def standing(row: Row) -> Standing:
    record = record_of(row)
    if record is None:
        return Standing((), (), row.seeds)
    differs = differences(row, record["config"])
    if record.get("until") != row.until:
        differs += (Difference("until", record.get("until"), row.until),)
    seeds = [run["seed"] for run in record["runs"]]
    others = tuple(seed for seed in seeds if seed not in row.seeds)
    fresh = () if differs or others else seeds
    return Standing(differs, others, tuple(seed for seed in row.seeds if seed not in fresh))


def seconds_per_seed(row: Row) -> float | None:
    """As recorded, of the slowest seed, else as estimated; None: neither is there."""
    record = record_of(row)
    if record is not None and record["runs"]:
        return max(float(run["train_s"]) for run in record["runs"])
    return None if row.minutes is None else 60.0 * row.minutes


def notes(row: Row) -> tuple[str, ...]:
    """What a table has to say of a row's record, by the sign that stands beside its seeds."""
    record = record_of(row)
    if record is None:
        return ()
    how, seeds = standing(row), {run["seed"] for run in record["runs"]}
    marks = []
    if how.other_seeds:
        marks.append("¹")
    if seeds & set(row.seen):
        marks.append("²")
    if how.differences:
        marks.append("³")
    if row.seen and row.seeds != SEEDS and not how.other_seeds:
        marks.append("⁴")
    return tuple(marks)
