"""The suite's tasks and the rows of its tables, from suite.toml: what is trained, on which seeds it
counts, what it is held against.
"""

import tomllib
from pathlib import Path
from typing import Any, Literal, NamedTuple

SEEDS = (11, 12, 13)
"""What results are reported on; presets are tuned on seeds from 100 on."""

PEER = "sb3-"
"""Beginning of the name of a learner that is Stable-Baselines3's, with the settings of its zoo."""


class Row(NamedTuple):
    """One row, and the record behind it.

    options: of the run beside the preset's, with a label that tells the record from the preset's.
    until: env_steps at which the run is ended before its budget.
    must, aim: what the score is held against; None: nothing is asked.
    beside: the name of the row in whose panel it is drawn, where it has none of its own.
    score: what of a record counts; a rate lies between 0 and 1.
    seeds: on which it is reported: SEEDS, or the next three where the preset was changed after
        those had been seen.
    seen: seeds whose scores had been seen when the preset was changed for the last time.
    busy: processes that keep cores busy beside the training.
    minutes: estimate for a seed, as long as none is recorded.
    """

    algo: str
    env: str
    must: float | None = None
    aim: float | None = None
    reference: str = ""
    title: str = ""
    label: str = ""
    options: tuple[str, ...] = ()
    until: int | None = None
    beside: str = ""
    score: Literal["return_mean", "success_rate"] = "return_mean"
    seeds: tuple[int, ...] = SEEDS
    seen: tuple[int, ...] = ()
    busy: int = 0
    minutes: float | None = None

    @property
    def name(self) -> str:
        """Of the record: benchmarks/results/NAME.json."""
        env = self.env.replace(":", ".").replace("/", ".")
        return "-".join(filter(None, [self.algo, env, self.label]))

    @property
    def told(self) -> str:
        """As tables and pictures call it."""
        return self.title or self.env

    @property
    def is_peers(self) -> bool:
        return self.algo.startswith(PEER)

    @staticmethod
    def of(values: dict[str, Any]) -> "Row":
        """From JSON or TOML, which have lists in place of tuples."""
        return Row(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


class Anchor(NamedTuple):
    """A score that others publish; `env_steps` is None where the budget is not known."""

    learner: str
    score: float
    source: str
    seeds: int
    env_steps: int | None = None


class Task(NamedTuple):
    """An environment with a budget, and what scores within it are held against.

    bar: mean score to reach; None: only what peers score in the same suite.
    number: of the thirty; None: further rows of the tables.
    note: why scores are below the bar, as far as known.
    """

    name: str
    env: str
    rows: tuple[Row, ...]
    number: int | None = None
    bar: float | None = None
    env_steps: int | None = None
    anchors: tuple[Anchor, ...] = ()
    note: str = ""


def read_suite(path: Path) -> tuple[tuple[Task, ...], dict[str, str]]:
    """The tasks of a file like suite.toml, and the sources of anchors by their short names.  An
    unknown key or source is an error.
    """
    content = tomllib.loads(path.read_text())
    tasks = []
    for values in content["task"]:
        env, cells = values["env"], values.pop("cells")
        anchors = tuple(Anchor(**each) for each in values.pop("anchors", []))
        if unknown := {each.source for each in anchors} - content["sources"].keys():
            raise ValueError(f"anchors of {env} must name one of [sources], got {unknown}")
        rows = tuple(Row.of({"env": env, **cell}) for cell in cells)
        tasks.append(Task(**{"name": env, **values, "rows": rows, "anchors": anchors}))
    return tuple(tasks), content["sources"]


TASKS, SOURCES = read_suite(Path(__file__).with_name("suite.toml"))
ROWS = tuple(row for task in TASKS for row in task.rows)
