"""What a population may know of learners' options: which change, how, and within which bounds."""

import math
from collections.abc import Mapping, Sequence

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel

NEAR_1 = frozenset(
    {
        "gamma", "gae_lambda", "lambda_", "adam_beta1", "adam_beta2", "rmsprop_decay",
        "average_decay",
    }
)  # fmt: skip
"""Values near 1, of which ``1 - x`` is what changes."""

CAPS = ("c_bar", "rho_bar")
"""Caps of ratios, of which the first is at most the second."""


def bounds_of(options: BaseModel, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Least and greatest values that the options' fields allow, and of one of CAPS the other one,
    if that stays.
    """
    found = {}
    for name in names:
        lows, highs = [-math.inf], [math.inf]
        for limit in type(options).model_fields[name].metadata:
            match limit:
                case Ge(ge=x):
                    lows.append(float(x))  # type: ignore[arg-type]
                case Gt(gt=x):
                    lows.append(math.nextafter(float(x), math.inf))  # type: ignore[arg-type]
                case Le(le=x):
                    highs.append(float(x))  # type: ignore[arg-type]
                case Lt(lt=x):
                    highs.append(math.nextafter(float(x), -math.inf))  # type: ignore[arg-type]
        found[name] = max(lows), min(highs)
    given: Mapping[str, float | None] = options.model_dump()
    lower, upper = CAPS
    if lower in names and upper not in names and (most := given.get(upper)) is not None:
        found[lower] = found[lower][0], min(found[lower][1], most)
    if upper in names and lower not in names and (least := given.get(lower)) is not None:
        found[upper] = max(found[upper][0], least), found[upper][1]
    return found
