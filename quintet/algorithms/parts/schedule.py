"""The schedules of learning rates by the budget: quintet's own, or a function of the user's."""

import math
from collections.abc import Callable

from quintet.errors import ConfigError
from quintet.ops.schedules import OF_FRACTION
from quintet.system.importing import code_of
from quintet.system.signals import STOPS
from quintet.system.user_code import raised

Schedule = Callable[[float], float]
"""The factor of a rate, as a function of the fraction of the run that is done."""


def find_schedule(name: str) -> Schedule:
    """The schedule of that name, or the function of the user's own.

    Raises:
        ConfigError: it can't be imported, or is no function.
    """
    if name in OF_FRACTION:
        return OF_FRACTION[name]
    own = code_of("lr_schedule", name, "lr_schedule= of quintet.train")
    if not callable(own):
        raise ConfigError(f"lr_schedule={name} must name a function, got {own!r}; correct the name")

    def checked(done: float) -> float:
        try:
            factor = float(own(done))
        except STOPS:
            raise
        except BaseException as error:
            raise ConfigError(
                f"lr_schedule={name} must give a number for each number from 0 to 1, but at "
                f"{done:g} it {raised(error)}: mend the function"
            ) from error
        if not (math.isfinite(factor) and factor >= 0):
            raise ConfigError(
                f"lr_schedule={name} must give a finite number of at least 0, got {factor} at "
                f"{done:g}: mend the function"
            )
        return factor

    for done in (0.0, 0.5, 1.0):  # a fault shows before anything is collected
        checked(done)
    return checked


def find_decay(name: str) -> Schedule:
    """The schedule of that name as a function of the fraction of the run that is left; adaptive
    rates have the factor 1.
    """
    if name == "linear":
        return lambda left: left
    if ":" not in name:
        return lambda left: 1.0  # noqa: ARG005
    own = find_schedule(name)
    return lambda left: own(1.0 - left)
