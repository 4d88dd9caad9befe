"""The hyperparameters of a population: which they are, what they may be, where they begin."""

from collections.abc import Mapping

from pydantic import BaseModel, ValidationError

from quintet.algorithms import registry
from quintet.algorithms.tuning import CAPS, NEAR_1, bounds_of
from quintet.config.run import RunConfig
from quintet.errors import ConfigError
from quintet.population.pbt import Bounds, Rules


def rules(config: RunConfig) -> Rules:
    """What mutations go by; raises ConfigError where an option can't be tuned."""
    names = registry.find(config.algo).tuned_options(config.learner, config.population.tuned)
    first = {name: float(getattr(config.learner, name)) for name in names}
    bounds = {name: Bounds(*pair) for name, pair in bounds_of(config.learner, names).items()}
    return Rules(config.population, first, bounds, NEAR_1, CAPS)


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
