"""The fixed work on which speed is measured, of all learners."""

import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from quintet.algorithms import registry
from quintet.algorithms.parts.work import Work
from quintet.config.command import parse
from quintet.config.layers import Layer
from quintet.errors import ConfigError

ENVIRONMENT_VARIABLE = "QUINTET_BENCH_WORKLOADS"
"""Environment variable that names another file of workloads, for comparisons between programs that
read the same file."""

FREE = (
    "runtime.threads",
    "runtime.precision",
    "runtime.actor_precision",
    "runtime.compile",
    "runtime.kind",
    "runtime.lag",
    "runtime.num_workers",
    "runtime.actor_threads",
    "runtime.inference",
    "runtime.slots",
    "runtime.prefetch_batches",
    "env.num_threads",
    "env.streams_per_group",
)
"""Options that change how the work is scheduled, not the work itself."""


def read(name: str) -> Work:
    """The workload of this name, from the file that ENVIRONMENT_VARIABLE names, else the learner's
    own; raises ConfigError if there is none, or quintet can't run it.
    """
    tables, kinds = _tables(), _kinds()
    if name not in tables:
        raise ConfigError(f"a workload must be one of {', '.join(names())}; got {name!r}")
    try:
        kind = kinds[tables[name]["algo"]]
        return kind.model_validate({**tables[name], "name": name})
    except KeyError:
        raise ConfigError(
            f"workload {name} can't be run: algo must be one of {', '.join(kinds)}, got "
            f"{tables[name].get('algo')!r}"
        ) from None
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".removeprefix(": Value error, ")
            for fault in error.errors()
        )
        raise ConfigError(f"workload {name} can't be run: {faults}") from error


def layer(work: Work) -> Layer:
    """The options of a run for this work."""
    return Layer(f"workload {work.name}", work.options())


def scheduling(arguments: list[str]) -> Layer:
    """The scheduling options of a command line; raises ConfigError if there are others."""
    asked = parse("bench", [registry.LEARNERS.names()[0], *arguments])
    layer = asked.options
    fixed = [name for name in layer.values if name not in FREE] + ["config"] * bool(asked.files)
    if fixed:
        raise ConfigError(
            f"options must be some of {', '.join(FREE)}; got {', '.join(fixed)}; leave it out"
        )
    return layer


def names() -> list[str]:
    """The workloads that quintet can run."""
    kinds = _kinds()
    return [name for name, table in _tables().items() if table.get("algo") in kinds]


def _kinds() -> dict[str, type[Work]]:
    """Classes of workloads by learner, for learners that have them."""
    learners = registry.LEARNERS.usable()
    return {name: each.work.get() for name, each in learners if each.work is not None}


def _tables() -> dict[str, Any]:
    """The tables of workloads by name."""
    given = os.environ.get(ENVIRONMENT_VARIABLE)
    if given:
        return _of_file(Path(given), f"{ENVIRONMENT_VARIABLE} must name a TOML file")
    found: dict[str, Any] = {}
    for algo, kind in _kinds().items():
        tables = _of_file(kind.tables, f"the workloads of {algo} must be a TOML file")
        found |= {name: table for name, table in tables.items() if name not in found}
    return found


def _of_file(file: Path, required: str) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{required}: {error}") from error
