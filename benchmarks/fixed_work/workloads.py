"""The fixed work on which speed is measured, by name."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fixed_work.acer import ACERWork
from fixed_work.ddpg import DDPGWork
from fixed_work.on_policy import APPOWork, PPOWork
from fixed_work.sac import SACWork
from fixed_work.work import Work
from quintet.algorithms.registry import LEARNERS
from quintet.errors import ConfigError
from quintet.options.command import parse
from quintet.options.layers import Layer

ENVIRONMENT_VARIABLE = "QUINTET_BENCH_WORKLOADS"
"""Environment variable that names another file of workloads, for comparisons between programs that
read the same file."""

TABLES = Path(__file__).with_name("workloads.toml")

KINDS: Mapping[str, type[Work]] = {
    "ppo": PPOWork,
    "appo": APPOWork,
    "ddpg": DDPGWork,
    "acer": ACERWork,
    "sac": SACWork,
}
"""Classes of workloads by learner."""

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
    """The workload of this name, from the file that ENVIRONMENT_VARIABLE names, else from TABLES;
    raises ConfigError if there is none, or quintet can't run it.
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


def scheduling(values: Mapping[str, str | None]) -> Layer:
    """The layer of the options that a command line gives, by names among FREE; None: not given."""
    given = {name: value for name, value in values.items() if value is not None}
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    return parse("config", ["ppo", *words]).options


def names() -> list[str]:
    """The workloads that quintet can run."""
    kinds = _kinds()
    return [name for name, table in _tables().items() if table.get("algo") in kinds]


def _kinds() -> dict[str, type[Work]]:
    """Classes of workloads by learner, for installed learners."""
    return {name: kind for name, kind in KINDS.items() if name in LEARNERS}


def _tables() -> dict[str, Any]:
    """The tables of workloads by name."""
    given = os.environ.get(ENVIRONMENT_VARIABLE)
    try:
        return tomllib.loads((Path(given) if given else TABLES).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{ENVIRONMENT_VARIABLE} must name a TOML file: {error}") from error
