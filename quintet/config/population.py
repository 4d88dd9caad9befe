"""The hyperparameters of a population: which they are, what they may be, where they begin."""

import math
from collections.abc import Mapping, Sequence

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError

from quintet.algorithms import registry
from quintet.config.run import RunConfig
from quintet.errors import ConfigError
from quintet.population.pbt import Bounds, Rules


def rules(config: RunConfig) -> Rules:
    """What mutations go by; raises ConfigError where an option can't be tuned."""
    names = registry.find(config.algo).tuned_options(config.learner, config.population.tuned)
    first = {name: float(getattr(config.learner, name)) for name in names}
    return Rules(config.population, first, bounds_of(config.learner, names))


def first_values(config: RunConfig) -> None:
    """Raises ConfigError where the policies can't begin with the values that are given."""
    first, initial = rules(config).first, config.population.initial
    others = sorted(set(initial) - set(first))
    if others:
        raise ConfigError(
            f"population.initial requires options that are tuned ({', '.join(first)}), got "
            f"{', '.join(others)}; name them in population.tuned too"
        )
    for name, values in initial.items():
        if 0.0 in values:
            raise ConfigError(
                f"population.initial requires values that are not 0, got {name}={list(values)}: to "
                "or from 0 is another loss; give a small number"
            )
    for policy in range(config.population.size):
        with_values(config.learner, {name: values[policy] for name, values in initial.items()})


def with_values(options: BaseModel, values: Mapping[str, float]) -> BaseModel:
    """The options with these values; raises ConfigError where one of them is out of bounds."""
    try:
        return type(options).model_validate(options.model_dump() | dict(values))
    except ValidationError as error:
        faults = [
            f"{x['loc'][0]}={values.get(str(x['loc'][0]))}: {x['msg'].lower()}"
            if x["loc"]
            else x["msg"].removeprefix("Value error, ")
            for x in error.errors()
        ]
        raise ConfigError(f"population.initial can't have these: {'; '.join(faults)}") from error


def bounds_of(options: BaseModel, names: Sequence[str]) -> dict[str, Bounds]:
    """What the options' fields allow, and of c_bar and rho_bar the other one, if it stays."""
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
        given = options.model_dump()
        if name == "c_bar" and "rho_bar" not in names and given["rho_bar"] is not None:
            highs.append(given["rho_bar"])
        if name == "rho_bar" and "c_bar" not in names and given["c_bar"] is not None:
            lows.append(given["c_bar"])
        found[name] = Bounds(max(lows), min(highs))
    return found
