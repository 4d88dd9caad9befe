"""Every wrong value of an option, of learners and of networks, is refused by name and rule."""

from dataclasses import replace
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import annotated_types
import pytest
from a2c_helpers import A2C, A2CConfig
from conformance_helpers import CHOICE, CONTINUOUS, LEARNERS, Case, literals, switches
from gymnasium.spaces import Discrete
from pydantic import BaseModel, Field, ValidationError

from quintet.algorithms import registry
from quintet.algorithms.parts.setup import Compute
from quintet.errors import ConfigError
from quintet.models.config import ModelConfig
from quintet.options.layers import Layer
from quintet.options.resolve import compose

TOY = "quintet.envs.toy:Contextual"
RULES = {
    annotated_types.Ge: ("greater than or equal to", "ge", -1),
    annotated_types.Gt: ("greater than", "gt", 0),
    annotated_types.Le: ("less than or equal to", "le", 1),
    annotated_types.Lt: ("less than", "lt", 0),
}


CONFIGS: dict[str, type[BaseModel]] = {
    "model": ModelConfig,
    **{name: entry.config for name, entry in LEARNERS.items() if "replay" not in name},
}
# Rules that no annotation shows: of the rows, (value, words of the error).
OTHER_RULES = {
    "encoder": (
        "no identifier",
        "must be auto, mlp, nature_cnn, impala_cnn, small_cnn, film_grid or an",
    ),
    "exploration": ("normal_0", "must be a list of none, normal_S, ou_S, adaptive-param_S"),
    "encoder_kwargs": ({"a": float("inf")}, "must hold only what JSON can store"),
}


def bounds(annotation: Any) -> list[Any]:
    """Rules within an annotation, as on the elements of a tuple."""
    found = list(getattr(annotation, "__metadata__", ()))
    found = [rule for field in found for rule in getattr(field, "metadata", [field])]
    return found + [rule for part in get_args(annotation) for rule in bounds(part)]


def plain(annotation: Any) -> set[Any]:
    """A type, or the members of a union, without what is said of them."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return {get_args(part)[0] if get_origin(part) is Annotated else part for part in parts}


def wrong_values(config: type[BaseModel]) -> dict[str, list[tuple[Any, str]]]:
    """Of each field (value, words of the rule): of a wrong type, and for each rule that it has."""
    found: dict[str, list[tuple[Any, str]]] = {}
    for name, field in config.model_fields.items():
        words = "input should be '" if literals(field.annotation) else "input should be a valid"
        mine = found[name] = [(object if field.annotation is str else "nonsense", words)]
        within = bounds(field.annotation)
        for rule in [*field.metadata, *within]:
            if type(rule) not in RULES:  # e.g. one against infinities
                continue
            words, attribute, step = RULES[type(rule)]
            bound = getattr(rule, attribute)
            value = bound + step * max(1, abs(bound))  # 1e30 + 1 is 1e30
            several = {get_origin(x) for x in (field.annotation, *get_args(field.annotation))}
            if rule in within and dict in several:
                value = {"a": value}
            elif rule in within and tuple in several:
                value = (8, value)
            shown = int(bound) if abs(bound) < 1e16 and bound == int(bound) else bound
            mine.append((value, f"{words} {shown}"))
        if float in plain(field.annotation):
            mine += [(float(x), "input should be a finite number") for x in ("nan", "inf")]
        if name in OTHER_RULES:
            mine.append(OTHER_RULES[name])
    return found


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a2c", "sac"):
        monkeypatch.setitem(registry.LEARNERS.loaded, name, LEARNERS[name])


@pytest.mark.parametrize(
    ("whose", "name", "wrong"),
    [
        pytest.param(whose, name, wrong, id=f"{whose}-{name}")
        for whose, config in CONFIGS.items()
        for name, wrong in wrong_values(config).items()
    ],
)
def test_wrong_values_are_refused(whose: str, name: str, wrong: list[tuple[Any, str]]) -> None:
    """By the way that every option takes: layers that are merged and then validated."""
    algo, option = ("ppo", f"model.{name}") if whose == "model" else (whose, name)
    for value, rule in wrong:
        layers = [Layer("command line", {"env.id": TOY, option: value})]
        with pytest.raises(ConfigError) as error:
            compose(algo, layers)
        given = value
        if isinstance(value, tuple):
            given = value[1]
        elif isinstance(value, dict) and "a" in value and option != "model.encoder_kwargs":
            given = value["a"]
        lines = str(error.value).splitlines()
        fault = next((line for line in lines if option in line and rule in line), "")
        assert f", got {given!r}" in fault, (value, rule, lines)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_numbers_have_ranges(config: type[BaseModel]) -> None:
    for name, field in config.model_fields.items():
        number = plain(field.annotation) in ({int}, {float}, {int, NoneType}, {float, NoneType})
        # A clip of rewards may be 0 or below, which turns it off, and values may be any.
        any_number = name in ("reward_norm_clip", "return_low", "return_high")
        rules = [*field.metadata, *(bounds(field.annotation) if number else ())]
        ranged = any(type(rule) in RULES for rule in rules)
        assert ranged == number or any_number, name


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_unknown_names_are_refused_and_nothing_changes(config: type[BaseModel]) -> None:
    with pytest.raises(ValidationError, match="clip_epsilom"):
        config(clip_epsilom=0.2)
    name = next(iter(config.model_fields))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config(), name, getattr(config(), name))


@pytest.mark.parametrize(
    "algo", [name for name, config in CONFIGS.items() if "check_numerics" in config.model_fields]
)
def test_check_numerics_refuses_to_be_compiled(algo: str) -> None:
    with pytest.raises(ConfigError, match="check_numerics"):
        Case(algo, options={"check_numerics": True}).learner(Compute(compile=True))


class Capped(A2CConfig):
    """Options with one that is off, and above 1 where it is on."""

    cap: float | None = Field(None, gt=1)


def test_learners_of_the_future_fit_into_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    future = replace(A2C, config=Capped, actions=(Discrete,))
    monkeypatch.setitem(LEARNERS, "future", future)
    assert Case("future").task == CHOICE
    assert Case("ppo").task == Case("ddpg").task == CONTINUOUS
    cases = [case.config.cap for case in switches("future").values()]
    assert cases[0] is None
    assert max(cap for cap in cases if cap is not None) > 1
