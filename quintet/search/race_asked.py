"""The race that the user asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from quintet.algorithms.registry import DEFAULT
from quintet.envs.env_source import EnvSource, can_be_made_again
from quintet.errors import ConfigError
from quintet.observe.metrics import ENV, signed
from quintet.options.command import require_jobs, require_minutes
from quintet.options.layers import Layer, hint, options
from quintet.options.saved import asked_for, find_run_dir

RETURN = "eval/return_mean"
"""Objective of a race, unless the user chose another one by ``checkpoint.best_by``."""

OF_TRAINING = {
    RETURN: "episode/return_mean",
    "eval/success_rate": "episode/success_rate",
    "eval/length_mean": "episode/length_mean",
}
"""Metrics of episodes by which a race can go, beside the environment's own, and those of
training."""

NAME = "auto"
"""The word in the place of a learner."""

_LEFT = {
    "algo": "the candidates have different learners",
    "resume": "an interrupted race goes on by the same command",
    "preset": "each candidate has its own",
    "init_from": "the candidates have different networks",
    "cluster.address": "a race has one machine",
    "population.size": "a population is one run",
}
"""Options that a race does not have, and why."""


def of_training(objective: str) -> tuple[str, float]:
    """The metric of training that stands for an objective, and the factor with which it is the
    better the higher it is."""
    name, sign = signed(objective)
    return OF_TRAINING.get(name, name.removeprefix("eval/")), sign


@final
@dataclass(frozen=True)
class Asked:
    """A race as the user asks for it.

    minutes: time of everything: examination, entries, evaluations, the winner.
    jobs: number of entries at the same time; None: by their cores.
    layers: options of all entries, of the ``--config`` files and the command line.
    source: makes the environments in place of their id.
    trust: whether code that the folders name may be imported.
    overwrite: whether what is in the folder is moved aside.
    """

    minutes: float | None
    layers: tuple[Layer, ...]
    jobs: int | None = None
    source: EnvSource | None = None
    trust: bool = False
    overwrite: bool = False

    @cached_property
    def values(self) -> dict[str, Any]:
        """Options all entries share."""
        return asked_for(*self.layers)

    @property
    def total_s(self) -> float:
        assert self.minutes is not None
        return 60.0 * self.minutes

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways to act in evaluations: both, unless the user chose one."""
        greedy = self.values.get("eval.greedy")
        return ("greedy", "sampled") if greedy is None else ("greedy" if greedy else "sampled",)

    @property
    def objective(self) -> str:
        """The metric of episodes by which candidates are ranked, perhaps after a minus."""
        return str(self.values.get("checkpoint.best_by", RETURN))

    @property
    def folder(self) -> Path:
        """The given folder, else ``runs/auto-ENV-sSEED``."""
        found = find_run_dir(NAME, self.values)
        assert found is not None
        return found

    def require(self) -> None:
        """Raises ConfigError for options that no race can have."""
        if self.minutes is None:
            raise ConfigError("quintet train auto needs a time: --minutes 10 for ten minutes")
        require_minutes(self.minutes, self.values)
        if "env.id" not in self.values:
            raise ConfigError(
                "there is no environment: give one by --env ID (quintet envs lists them)"
            )
        require_jobs(self.jobs)
        name, _ = signed(self.objective)
        if name not in OF_TRAINING and not name.removeprefix("eval/").startswith(ENV):
            raise ConfigError(
                f"--metric of a race must be {', '.join(OF_TRAINING)} or env/KEY, with a minus in "
                f"front if less is better, got {self.objective}: choose one"
            )
        for name, why in _LEFT.items():
            if name in self.values:
                raise ConfigError(
                    f"{name} must be left out of a race, got {self.values[name]!r}: {why}"
                )
        if not can_be_made_again(self.source):
            raise ConfigError(
                f"a race must have environments that can be made again, got {self.source}: give a "
                "function that makes it"
            )

    def require_common(self, learners: Sequence[str]) -> None:
        """Raises ConfigError for an option that not all of these learners have."""
        for name in self.values:
            having = [each for each in learners if name in options(each)]
            if len(having) < len(learners):
                whose = f"of {', '.join(having)} only" if having else "which no learner has"
                way = f"give it to quintet train {having[0]}" if having else "correct its name"
                hinted = "" if having else hint(DEFAULT, name)
                raise ConfigError(
                    f"options of a race must exist in all its learners "
                    f"({', '.join(learners)}), got {name}, {whose}: leave it out, or {way}{hinted}"
                )


def as_asked(asked: Asked) -> Mapping[str, Any]:
    """Options that may not change when a race goes on, as JSON-able values."""
    left = ("run_dir",)
    kept = {
        name: list(x) if isinstance(x, tuple) else x if _plain(x) else repr(x)
        for name, x in asked.values.items()
        if name not in left and not name.startswith("report.")
    }
    return {"minutes": asked.minutes, "jobs": asked.jobs, **kept}


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | list | dict | None)
