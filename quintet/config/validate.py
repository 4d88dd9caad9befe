"""Builds a configuration from merged values; every fault is listed, one sentence each."""

import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from quintet.algorithms import registry
from quintet.config.layers import meant, options
from quintet.config.population import first_values, tuned_shaping
from quintet.config.run import PARTS, TOP, RunConfig, prefix_of
from quintet.envs.config import EnvConfig
from quintet.errors import ConfigError
from quintet.observe.metrics import OF_RUNS
from quintet.options import faults as faults_of
from quintet.population.scores import MEANS

_NO_ENV = EnvConfig(id="none")
_RETURN = "episode/return_mean"

M = TypeVar("M", bound=BaseModel)
Parts = dict[str, BaseModel | None]
"""The parts of a configuration by name; None for a part that can't be made."""


def build(algo: str, values: dict[str, Any], faults: list[str]) -> tuple[Parts, RunConfig | None]:
    """The parts of a configuration, each built once from the merged values, and the whole, if all
    parts can be made; invalid options have their defaults.

    faults: receives every fault of a part, one sentence each.
    """
    if "env.id" not in values:
        faults.append(
            "env must name an environment, got none: give it by --env ID (quintet envs lists them)"
        )
        values = values | {"env.id": "none"}
    parts: Parts = {}
    for name, model, prefix, mine in _of_parts(algo, values):
        whole = RunConfig.model_fields[name].default
        parts[name] = _built(model, prefix, mine, faults) if mine or name == "learner" else whole
    top = {name: values[name] for name in TOP if name in values}
    made = {name: part for name, part in parts.items() if part is not None}
    stand_ins = dict.fromkeys(("learner", "env"), _NO_ENV)  # for options of the run alone
    config = _built(RunConfig, "", stand_ins | made | top, faults)
    return parts, config if len(made) == len(parts) else None


def sound(algo: str, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The values as their options mean them; None if an option is unknown, or a value of the
    learner or of a part is invalid by itself, whatever the others are.
    """
    known = options(algo)
    if not values.keys() <= known.keys():
        return None
    found = {name: meant(value, known[name]) for name, value in values.items()}
    for _, model, _, mine in _of_parts(algo, found):
        try:
            if mine:
                model(**mine)
        except ValidationError as error:
            if any(item["loc"] for item in error.errors()):
                return None
    return found


def _of_parts(
    algo: str, values: dict[str, Any]
) -> Iterator[tuple[str, type[BaseModel], str, dict[str, Any]]]:
    """Name, model and prefix of each part, and its values by field name."""
    for name, model in {"learner": registry.find(algo).config, **PARTS}.items():
        prefix = prefix_of(name) if name in PARTS else ""
        mine = {n: values[prefix + n] for n in model.model_fields if prefix + n in values}
        yield name, model, prefix, mine


def _built(model: type[M], prefix: str, mine: dict[str, Any], faults: list[str]) -> M | None:
    """One part of the configuration, with defaults for invalid fields."""
    try:
        return model(**mine)
    except ValidationError as error:
        faults += faults_of(error, prefix)
        wrong = {item["loc"][0] for item in error.errors() if item["loc"]}
    try:
        return model(**{name: value for name, value in mine.items() if name not in wrong})
    except ValidationError:
        return None


def combination_faults(config: RunConfig) -> list[str]:
    """Faults of options of several parts, one sentence each."""
    faults = []
    if config.resume == "exact" and config.runtime.kind == "async":
        faults.append(
            "resume=exact must have a run that gives the same bytes twice, got runtime.kind=async: "
            "use --resume latest"
        )
    steps, policies = config.total_env_steps, config.population.size
    found = size_faults(config, steps) or [
        f"{fault} (of {steps:,} env_steps each of the {policies} policies has its share)"
        for fault in size_faults(config, steps // policies)
    ]
    return [*faults, *_population_faults(config), *found]


def _population_faults(config: RunConfig) -> list[str]:
    """Faults of a population, one sentence each."""
    population = config.population
    if not population.several:
        return []
    faults: list[str] = []
    share = config.total_env_steps // population.size
    for name in ("start_env_steps", "period_env_steps", "window_env_steps"):
        steps = getattr(population, name)
        if steps is not None and steps >= share:
            faults.append(
                f"population.{name} must be below the env_steps of each policy, {share:,} of the "
                f"budget of {config.total_env_steps:,}, got {steps:,}: no policy would be "
                "considered; lower it or raise total_env_steps, or use population.pbt=false"
            )
    try:
        first_values(config)
        shaping = tuned_shaping(config)
    except ConfigError as error:
        return [*faults, str(error), *_objective_faults(config)]
    if shaping and population.pbt and population.objective == _RETURN:
        faults.append(
            f"population.objective={_RETURN} can't rank policies of which each weighs its "
            f"rewards in another way ({', '.join(shaping)}); use episode/success_rate with "
            "env.success, or eval/return_mean with runtime.kind=async: evaluations play by "
            "env.reward_shaping"
        )
    return faults + _objective_faults(config)


def _objective_faults(config: RunConfig) -> list[str]:
    """Faults of the metric by which policies are ranked."""
    name, kind = config.population.objective, config.runtime.kind
    own = registry.find(config.algo).reported()
    evaluated = [x for x in OF_RUNS if x.startswith("eval/")]
    known = [*MEANS, *evaluated, *own]
    if not any(name == x or (x.endswith("/") and name.startswith(x)) for x in known):
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else "see the names in metrics.jsonl"
        return [
            f"population.objective must be a metric of the policies of {config.algo}, got {name}: "
            f"{hint}"
        ]
    if name in evaluated and config.eval.episodes == 0:
        return [f"population.objective={name} must have eval.episodes > 0, got 0: raise it"]
    if name not in MEANS and kind != "async":
        return [
            f"population.objective={name} must have runtime.kind=async, got {kind}, in which no "
            f"clock decides anything, and reports follow the clock: use {' or '.join(MEANS)}, or "
            "--runtime.kind async"
        ]
    return []


def batch_steps(config: RunConfig) -> int:
    """Number of env_steps of an iteration; 1 if the learner's options don't set it."""
    return math.prod(_value(config, name) for name in registry.find(config.algo).batch)


def _value(config: RunConfig, name: str) -> Any:
    return attrgetter(name if "." in name else f"learner.{name}")(config)


def size_faults(config: RunConfig, budget: int) -> list[str]:
    """Faults of the learner's sizes with a budget of one policy, one sentence each."""
    algorithm, learners = registry.find(config.algo), config.runtime.num_learners
    steps, option = batch_steps(config), algorithm.shared
    faults = algorithm.check(config.learner, config.model, config.env.num_streams, budget)
    if budget < steps:
        faults = [
            f"total_env_steps must be at least one batch of {' x '.join(algorithm.batch)} = "
            f"{steps}, got {budget}; raise it, or lower one of these",
            *faults,
        ]
    if option and learners > 1:
        rows = _value(config, option) or steps
        unit = algorithm.chunk(config.learner, config.model) * learners
        if rows % unit:
            faults.append(
                f"runtime.num_learners={learners} must divide {option} evenly, got {rows}: use "
                f"{option} {-(-rows // unit) * unit}, or another number of learners"
            )
    return faults
