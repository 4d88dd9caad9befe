"""The schedule of ACER's learning rate: one of quintet's or a function of the user's own."""

import math
from collections.abc import Callable

from quintet.errors import ConfigError
from quintet.ops.schedules import OF_FRACTION
from quintet.system.blame import raised
from quintet.system.importing import import_module
from quintet.system.signals import STOPS

Schedule = Callable[[float], float]
"""The factor of a rate, of the fraction of the run that is done."""


def find_schedule(name: str) -> Schedule:
    """The schedule of that name, or the function that an import string names.

    Raises:
        ConfigError: it can't be imported, or is no function.
    """
    if name in OF_FRACTION:
        return OF_FRACTION[name]
    module, _, attribute = name.partition(":")
    own = getattr(import_module(module, name), attribute, None)
    if not callable(own):
        raise ConfigError(
            f"lr_schedule={name} requires a function {attribute!r} of a number in {module!r}, got "
            f"{own!r}; correct the name"
        )

    def checked(done: float) -> float:
        try:
            factor = float(own(done))
        except STOPS:
            raise
        except BaseException as error:
            raise ConfigError(
                f"lr_schedule={name} must give a number for each number from 0 to 1, for {done:g} "
                f"it {raised(error)}; mend the function"
            ) from error
        if not (math.isfinite(factor) and factor >= 0):
            raise ConfigError(
                f"lr_schedule={name} must give a finite number of at least 0, for {done:g} it "
                f"gave {factor}; mend the function"
            )
        return factor

    for done in (0.0, 0.5, 1.0):  # a fault shows before anything is collected
        checked(done)
    return checked
