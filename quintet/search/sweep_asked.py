"""The sweep that the user asks for."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

from quintet.errors import ConfigError
from quintet.options.command import require_minutes
from quintet.options.layers import Layer
from quintet.options.saved import asked_for


@final
@dataclass(frozen=True)
class Asked:
    """A sweep as the user asks for it.

    trials: number of trials; None: as many as fit into the minutes.
    minutes: time of trials and the best again; at least half of it is for trials.
    jobs: number of trials at the same time.
    search: see `quintet.search.space.parse`; empty: options that populations tune by default.
    metric: name of the score; None: the mean return of evaluations, or of training if there are
        none.
    best, seeds_of_best: number of trials that are trained again, and of the seeds for each.
    layers: options of all trials, of the ``--config`` files and the command line.
    trust: whether code that the trials' folders name may be imported.
    """

    trials: int | None = None
    minutes: float | None = None
    jobs: int = 1
    search: tuple[str, ...] = ()
    sampler: Literal["tpe", "random"] = "tpe"
    pruner: Literal["median", "hyperband", "none"] = "median"
    metric: str | None = None
    best: int = 3
    seeds_of_best: int = 3
    algo: str = ""
    layers: tuple[Layer, ...] = ()
    trust: bool = False

    @cached_property
    def values(self) -> dict[str, Any]:
        """The options of all trials."""
        return asked_for(*self.layers)

    def require(self) -> None:
        """Raises ConfigError for numbers that are too small, a sweep without an end, and options
        that the sweep itself sets.
        """
        leasts = {"trials": 1, "jobs": 1, "best": 0, "seeds_of_best": 0}
        numbers = {name: getattr(self, name) for name in leasts}
        for name, value in numbers.items():
            if value is not None and value < leasts[name]:
                raise ConfigError(
                    f"--{name.replace('_', '-')} must be a whole number of at least "
                    f"{leasts[name]}, got {value}: raise it"
                )
        require_minutes(self.minutes, {})
        if self.trials is None and self.minutes is None:
            raise ConfigError("quintet sweep needs an end: give --trials 30 or --minutes 60")
        if "resume" in self.values:
            raise ConfigError(
                f"resume must be left to a sweep, got {self.values['resume']!r}: leave it out"
            )
