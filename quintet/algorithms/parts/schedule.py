"""The schedules of learning rates by the budget: quintet's own, or a function of the user's."""

import math
from collections.abc import Callable
from itertools import pairwise

from pydantic import BaseModel

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
        """The function's factor; raises ConfigError for an error, or a number below 0."""
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


_POINTS = 100
_TINY = 0.01
"""Largest factor of a function that returns rates, not factors; rates are below 0.01 themselves."""
_RATES = ("learning_rate", "_lr")


def schedule_warnings(options: BaseModel) -> list[str]:
    """Warnings about the user's function of a learner's options: it seems to return rates in place
    of factors, or to take the fraction of the budget that is left.
    """
    name: str = getattr(options, "lr_schedule", "")
    if ":" not in name:
        return []
    own = find_schedule(name)
    factors = [own(i / _POINTS) for i in range(_POINTS + 1)]
    greatest, found = max(factors), []
    rates = {k: getattr(options, k) for k in type(options).model_fields if k.endswith(_RATES)}
    small = {k: x for k, x in rates.items() if x < 10 * _TINY}  # else the function scales it
    if greatest <= _TINY and small:
        shown = " and ".join(f"{k}={x:g} to at most {x * greatest:.2g}" for k, x in small.items())
        found.append(
            f"lr_schedule={name} gives a factor of the rate, not a rate: factors of at most "
            f"{greatest:g} lower {shown}. If it gives rates, divide them by the first one"
        )
    rises = all(a <= b for a, b in pairwise(factors)) and factors[-1] > factors[-_POINTS // 10]
    if rises:
        found.append(
            f"lr_schedule={name} rises until the end, from {factors[0]:g} to {factors[-1]:g}: its "
            "argument is the fraction of the budget that is done. A function of the fraction that "
            "is left, as in Stable-Baselines3, becomes lambda done: f(1 - done)"
        )
    return found


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
