"""What fields declare of options: what they need for an effect, and their bounds."""

import math
from importlib import import_module
from types import SimpleNamespace

import pytest
from pydantic import BaseModel, Field

from quintet.algorithms import registry
from quintet.algorithms.appo.config import APPOConfig
from quintet.options.bounds import LARGEST, Positive
from quintet.options.declaration import (
    Facts,
    Needs,
    Unknown,
    about,
    bounds_of,
    holds,
    idle,
    option,
    tunable,
)
from quintet.options.facts import facts
from quintet.options.layers import Layer
from quintet.options.resolve import compose
from quintet.options.run import PARTS, prefix_of


class Options(BaseModel):
    open_: float = Field(1.0, gt=0, lt=2)
    closed: float = Field(1.0, ge=0, le=2)
    free: float = 1.0
    within: Positive | None = 1.0


def test_bounds_are_those_of_the_fields_whose_ends_may_not_belong_to_them() -> None:
    found = bounds_of(Options(), ("open_", "closed", "free", "within"))
    low, high = found["open_"]
    assert 0.0 < low < 1e-300
    assert 2.0 - 1e-15 < high < 2.0
    assert Options.model_validate({"open_": low}).open_ == low
    assert Options.model_validate({"open_": high}).open_ == high
    assert found["closed"] == (0.0, 2.0)
    assert found["free"] == (-math.inf, math.inf)
    assert found["within"] == (5e-324, LARGEST)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("c_bar",), {"c_bar": (0.0, 1.5)}),
        (("rho_bar",), {"rho_bar": (0.5, LARGEST)}),
        (("c_bar", "rho_bar"), {"c_bar": (0.0, LARGEST), "rho_bar": (5e-324, LARGEST)}),
    ],
)
def test_a_cap_that_stays_bounds_the_other(
    names: tuple[str, ...], wanted: dict[str, tuple[float, float]]
) -> None:
    assert bounds_of(APPOConfig(rho_bar=1.5, c_bar=0.5), names) == wanted


class Chain(BaseModel):
    """Each option needs the one before it, the first one a fact."""

    first: bool = option(True, doc="", needs=Needs("a {f.word}", lambda _, f: f.on, rest=False))
    second: float = option(0.5, doc="", needs="chain.first", also="two 2nd")
    third: str = option("none", doc="", needs=("chain.second > 0", "other.kind=big"))


def test_an_option_without_effect_leaves_those_without_that_need_it() -> None:
    big = Facts(on=True, word="fact", other=SimpleNamespace(kind="big"))
    assert idle(Chain(), big, "chain.") == {}
    off = Facts(on=False, word="fact")
    found = idle(Chain(second=0.0), off, "chain.")
    assert found == {
        "first": (False, "a fact"),
        "second": (0.5, "chain.first"),
        "third": ("none", "chain.second > 0"),
    }
    small = Facts(on=True, other=SimpleNamespace(kind="small"))
    assert list(idle(Chain(), small, "chain.")) == ["third"]
    more = idle(Chain(), big, "chain.", {"second": Needs("more", lambda *_: False)})
    assert more["second"] == (0.5, "more")


class Place(BaseModel):
    """One of the values has a need."""

    place: str = option("auto", doc="", needs=Needs("a ship", lambda _, f: f.on, value="far"))


def test_a_need_of_one_value_leaves_the_others_alone() -> None:
    assert idle(Place(place="far"), Facts(on=False)) == {"place": ("auto", "a ship")}
    assert not idle(Place(place="near"), Facts(on=False))
    assert not idle(Place(place="far"), Facts(on=True))


def test_needs_wait_for_facts_that_are_not_known() -> None:
    assert idle(Chain(), Facts(), "chain.") == {}
    assert list(idle(Chain(second=0.0), Facts(), "chain.")) == ["third"]
    with pytest.raises(Unknown):
        holds("other.kind=big", Chain(), Facts())


@pytest.mark.parametrize(
    ("condition", "true"),
    [
        ("first", True),
        ("third", False),  # the word none
        ("second > 0.5", False),
        ("first=false", False),
        ("first=false or second > 0", True),
        ("first and third or first and second", True),
        ("first and third", False),
    ],
)
def test_conditions(condition: str, true: bool) -> None:
    assert holds(condition, Chain(), Facts()) == true


def test_conditions_of_all_options_name_options() -> None:
    """One that names none would be an AttributeError where it is judged."""
    for algo in registry.LEARNERS.names():
        config = compose(algo, [Layer("call", {"env.id": "CartPole-v1"})]).config
        idle(config.learner, facts(config))
        for part in PARTS:
            idle(getattr(config, part), facts(config), prefix_of(part))


def test_names_of_other_libraries_are_words() -> None:
    assert about(Chain.model_fields["second"]).also == ("two", "2nd")


@pytest.mark.parametrize("algo", ["ppo", "impala", "appo", "ddpg", "acer"])
def test_options_that_are_knobs_of_a_loss_may_change_during_a_run(algo: str) -> None:
    module = import_module(f"quintet.algorithms.{algo}.config")
    config = registry.find(algo).config
    knobs = {name for name in module.Knobs._fields if name in config.model_fields}
    assert knobs
    assert knobs <= tunable(config).keys()


def test_the_package_has_the_names_of_learners_packages_until_0_4() -> None:
    from quintet.options import declaration

    package = import_module("quintet.options")
    for name in ("Options", "option", "Needs", "USUAL", "require_tunable"):
        with pytest.warns(DeprecationWarning, match=rf"options\.declaration has {name};"):
            assert getattr(package, name) is getattr(declaration, name)
    with pytest.raises(AttributeError, match="no attribute 'opinion'"):
        _ = package.opinion
