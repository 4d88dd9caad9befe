"""Decisions of population-based training by hand, and what its random draws keep to."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from quintet.errors import ConfigError
from quintet.options.declaration import CAP, NEAR_1, Tune
from quintet.options.layers import Layer
from quintet.options.resolve import compose
from quintet.population.config import PopulationConfig
from quintet.population.controller import Controller
from quintet.population.pbt import Bounds, Rules, begin, decide, leads, mutated, replace

WAYS = {
    **dict.fromkeys(
        ("gamma", "gae_lambda", "vtrace_lambda", "adam_beta1", "rmsprop_decay"), NEAR_1
    ),
    "rho_bar": CAP,
    "c_bar": Tune("cap", at_most="rho_bar"),
}
FIRST = {"learning_rate": 1e-3, "entropy_coef": 0.01}


class Scripted:
    """A generator that gives what it was told to: numbers of `random`, then of the others."""

    def __init__(self, randoms: list[float], integers: tuple[int, ...] = (), uniform: float = 1.2):
        self.randoms, self.given, self.factor = [*randoms], [*integers], uniform
        self.asked: list[tuple[float, float]] = []

    def random(self) -> float:
        return self.randoms.pop(0)

    def integers(self, end: int) -> int:
        assert self.given[0] < end
        return self.given.pop(0)

    def uniform(self, low: float, high: float) -> float:
        self.asked.append((low, high))
        return self.factor


def rules(size: int = 4, first: dict[str, float] = FIRST, **options: Any) -> Rules:
    return Rules(PopulationConfig(size=size, **options), first, {}, WAYS)


def never(count: int = 100) -> Any:
    """Draws by which nothing changes, and the first candidate is taken."""
    return Scripted([0.99] * count, (0,) * count)


def of(size: int) -> list[dict[str, float]]:
    """Values by which the policies can be told apart."""
    return [{"learning_rate": 1e-3 * (k + 1), "entropy_coef": 0.01} for k in range(size)]


@pytest.mark.parametrize(
    ("policy", "objectives", "donor"),
    [
        (1, [1.0, 9.0, 5.0, 2.0], 1),  # the best but one
        (2, [1.0, 9.0, 8.0, 2.0], 2),  # the second of two best
        (0, [1.0, 9.0, 8.0, 2.0], 1),
        (3, [1.0, 9.0, 8.0, 2.0], 1),
        (0, [-9.0, -1.0, -2.0, -8.0], 1),  # negative objectives
        (0, [5.0, 5.0, 5.0, 5.0], 0),  # no lead
    ],
)
def test_who_is_copied(policy: int, objectives: list[float], donor: int) -> None:
    """Of four policies two are best and two worst; the first candidate is drawn."""
    values = of(4)
    found = decide(policy, objectives, values, rules(), never())
    assert found.donor == donor
    assert found.before == values[policy]
    assert found.after == values[donor]
    assert found.objectives == tuple(objectives)


def test_one_of_the_best_draws_nothing_and_stays_as_it_is() -> None:
    found = decide(1, [1.0, 9.0, 8.0, 2.0], of(4), rules(), Scripted([]))
    assert (found.donor, found.after) == (1, of(4)[1])


def test_the_middle_is_mutated_and_copies_nobody() -> None:
    """Of five policies with 0.3 two are best and two worst."""
    draws = Scripted([0.0, 0.0, 0.99])  # entropy_coef changes up, learning_rate does not
    found = decide(2, [9.0, 8.0, 5.0, 2.0, 1.0], of(5), rules(5), draws)
    assert found.donor == 2
    assert found.after == {"learning_rate": 3e-3, "entropy_coef": pytest.approx(0.012)}


def test_ties_rank_the_higher_index_first() -> None:
    """All are equal: of three with 0.3 the last is best and the first worst."""
    three = rules(3, gap_absolute=0.0, gap_relative=0.0)
    for policy, mutates in ((2, False), (1, True), (0, False)):  # policy 0 never is
        draws = Scripted([0.99] * 2, (0,))
        decide(policy, [1.0, 1.0, 1.0], of(3), three, draws)
        assert (not draws.randoms) == mutates, policy
        assert (not draws.given) == (policy == 0), "only the worst asks for a candidate"


def test_best_and_worst_may_overlap() -> None:
    """Of three policies with 0.6 two are best and two worst: the middle one counts as best."""
    three = rules(3, replace_frac=0.6)
    middle = decide(1, [1.0, 5.0, 9.0], of(3), three, Scripted([]))
    assert (middle.donor, middle.after) == (1, of(3)[1])
    worst = decide(0, [1.0, 5.0, 9.0], of(3), three, Scripted([], (1,)))
    assert worst.donor == 1  # the second candidate of [2, 1]


@pytest.mark.parametrize("size", [1, 2])
def test_few_policies(size: int) -> None:
    if size == 1:
        alone = Rules(PopulationConfig(), FIRST)
        assert decide(0, [1.0], of(1), alone, Scripted([])).donor == 0
        return
    found = decide(1, [5.0, 1.0], of(2), rules(2), never())
    assert found.donor == 0
    assert decide(0, [5.0, 1.0], of(2), rules(2), Scripted([])).donor == 0


def test_a_policy_without_an_objective_is_neither_donor_nor_replaced() -> None:
    """Ranks and their numbers are of the others: of two one is best and one worst."""
    four = [None, 9.0, None, 2.0]
    assert decide(3, four, of(4), rules(), never()).donor == 1
    assert decide(1, four, of(4), rules(), Scripted([])).donor == 1
    assert decide(3, four, of(4), rules(), never()).objectives == tuple(four)
    alone = decide(1, [None, 9.0, None, None], of(4), rules(), Scripted([]))
    assert (alone.donor, alone.after) == (1, of(4)[1])
    most = rules(4, replace_frac=0.7)  # of two it would be all
    assert decide(3, four, of(4), most, never()).donor == 1


@pytest.mark.parametrize("mode", ["relative_to_larger", "original"])
def test_minus_infinity_is_led_by_any_other(mode: str) -> None:
    config = rules(2, gap_mode=mode, gap_absolute=1e9, gap_relative=1e9)
    assert decide(0, [-math.inf, -5.0], of(2), config, never()).donor == 1
    assert decide(0, [-math.inf, -math.inf], of(2), config, never()).donor == 0


def test_who_replaces_a_policy_that_has_diverged() -> None:
    """One of the best of the sound ones, drawn; of sound ones that are not ranked any."""
    objectives = [1.0, -math.inf, 8.0, 9.0, 7.0]
    draws = Scripted([0.99] * 2, (1,))  # of policies 2 and 4, which are the two best of three
    found = replace(1, objectives, [0, 2, 4], of(5), rules(5, replace_frac=0.5), draws)
    assert (found.donor, found.before, found.after) == (4, of(5)[1], of(5)[4])
    always = rules(3, mutation_rate=1.0, reset_rate=0.0)
    unranked = replace(0, [-math.inf, None, None], [1, 2], of(3), always, Scripted([], (1,)))
    assert (unranked.donor, unranked.after) == (2, of(3)[2]), "policy 0 is not mutated"
    other = replace(1, [None, -math.inf, None], [0], of(3), always, Scripted([0.0] * 4, (0,)))
    assert other.after["learning_rate"] == pytest.approx(1.2e-3)


def test_a_policy_that_has_diverged_is_no_donor_before_it_is_ranked_again() -> None:
    each = controller()
    assert each.recovered(1)
    each.replace(1, [1.0, -math.inf, None], [0], (60, 180), "its loss became nan")
    event = json.loads(json.dumps(each.events[-1], allow_nan=False))
    assert (event["event"], event["policy"], event["donor"]) == ("diverged", 1, 0)
    assert event["objectives"] == [1.0, None, None]
    assert event["reason"] == "its loss became nan"
    assert not each.due(1, 110), "a period begins"
    assert each.recovered(0)
    assert not each.recovered(1)
    each.consider(0, [1.0, None, 2.0], 120, 360)
    assert not each.recovered(1)
    each.consider(0, [1.0, 0.5, 2.0], 180, 540)
    assert each.recovered(1)


def test_policy_0_is_replaced_and_never_mutated() -> None:
    always = rules(mutation_rate=1.0)
    found = decide(0, [1.0, 9.0, 8.0, 2.0], of(4), always, Scripted([], (0,)))
    assert (found.donor, found.after) == (1, of(4)[1])
    middle = decide(0, [5.0, 9.0, 8.0, 2.0, 1.0], of(5), rules(5, mutation_rate=1.0), Scripted([]))
    assert middle.after == of(5)[0]


@pytest.mark.parametrize(
    ("candidate", "own", "expected", "original"),
    [
        (110.1, 100.0, False, False),  # 0.0917 of the larger, 0.0917 of the candidate's
        (112.0, 100.0, True, True),
        (-100.0, -112.0, True, True),
        (-100.0, -105.0, False, False),
        (90.0, 100.0, False, True),  # a candidate that is behind
        (1e-7, 0.0, False, False),  # below the absolute gap
        (0.5, 0.0, True, True),
        (0.1, -5.0, True, True),
        (-1e-8, -1.0, True, True),
    ],
)
def test_leads(candidate: float, own: float, expected: bool, original: bool) -> None:
    assert leads(candidate, own, PopulationConfig(size=2)) == expected
    assert leads(candidate, own, PopulationConfig(size=2, gap_mode="original")) == original


@pytest.mark.parametrize("mode", ["relative_to_larger", "original"])
@pytest.mark.parametrize(("absolute", "relative"), [(2.0, 0.0), (0.0, 0.5)])
def test_a_lead_as_large_as_the_gap_is_not_enough(
    mode: str, absolute: float, relative: float
) -> None:
    gaps = {"gap_absolute": absolute, "gap_relative": relative, "gap_mode": mode}
    assert not leads(4.0, 2.0, PopulationConfig(size=2, **gaps))
    assert leads(4.01, 2.0, PopulationConfig(size=2, **gaps))


# Mutations


def test_a_float_is_multiplied_or_divided_by_a_factor_between_the_bounds() -> None:
    up = Scripted([0.0, 0.0], uniform=1.3)
    assert mutated({"x": 2.0}, rules(first={"x": 2.0}), up) == {"x": pytest.approx(2.6)}
    assert up.asked == [(1.05, 1.5)]
    down = Scripted([0.0, 0.7], uniform=1.25)
    assert mutated({"x": 2.0}, rules(first={"x": 2.0}), down) == {"x": pytest.approx(1.6)}


def test_a_changed_value_is_sometimes_reset() -> None:
    reset = Scripted([0.0, 0.04])
    assert mutated({"x": 3.0}, rules(first={"x": 2.0}), reset) == {"x": 2.0}
    not_reset = Scripted([0.0, 0.06, 0.0], uniform=2.0)
    assert mutated({"x": 3.0}, rules(first={"x": 2.0}), not_reset) == {"x": 6.0}
    unchanged = Scripted([0.0, 0.0], uniform=2.0)  # the first value itself is never reset
    assert mutated({"x": 2.0}, rules(first={"x": 2.0}), unchanged) == {"x": 4.0}


@pytest.mark.parametrize("name", ["gamma", "adam_beta1", "vtrace_lambda"])
def test_values_near_1_change_by_what_they_lack(name: str) -> None:
    up = Scripted([0.0, 0.0], uniform=1.2)
    found = mutated({name: 0.9}, rules(first={name: 0.9}), up)
    assert up.asked == [(1.01, 1.2)]
    assert found[name] == pytest.approx(0.88)
    at_one = mutated({name: 1.0}, rules(first={name: 1.0}), Scripted([0.0, 0.7], uniform=1.2))
    assert at_one[name] == 1.0 - 1e-8


def test_no_value_is_reset_to_1_which_no_factor_leads_away_from() -> None:
    first, up = {"gamma": 1.0}, Scripted([0.0, 0.7], uniform=1.2)
    kept = Rules(PopulationConfig(size=2, reset_rate=0.5), first, {}, WAYS)
    assert mutated({"gamma": 0.9}, kept, up)["gamma"] == pytest.approx(1 - 0.1 / 1.2)


def test_caps_change_by_a_fixed_factor_and_stay_in_order() -> None:
    """c_bar up and rho_bar down would put them out of order."""
    first = {"rho_bar": 1.0, "c_bar": 1.0}
    found = mutated(first, rules(first=first), Scripted([0.0, 0.0, 0.0, 0.7]))
    assert found == {"rho_bar": pytest.approx(1 / 1.005), "c_bar": pytest.approx(1 / 1.005)}


def test_a_value_stays_within_its_bounds() -> None:
    bounded = Rules(PopulationConfig(size=2), {"x": 0.9}, {"x": Bounds(0.0, 1.0)})
    assert mutated({"x": 0.9}, bounded, Scripted([0.0, 0.0], uniform=1.5)) == {"x": 1.0}


def test_a_value_never_becomes_0_which_would_be_another_loss() -> None:
    of = Rules(
        PopulationConfig(size=2, mutation_rate=1.0, reset_rate=0.0),
        {"gae_lambda": 0.3, "off": 0.0},
        {"gae_lambda": Bounds(0.0, 1.0)},
        WAYS,
    )
    rng, lowest = np.random.default_rng(0), 1.0
    for _ in range(50):
        values = dict(of.first)
        for _ in range(40):
            values = mutated(values, of, rng)
            assert values["gae_lambda"] > 0.0
            assert values["off"] == 0.0
            lowest = min(lowest, values["gae_lambda"])
    assert lowest < 0.1


@pytest.mark.parametrize("given", ["rho_bar", "c_bar"])
def test_caps_stay_in_order_where_one_is_given(given: str) -> None:
    """The other one of the pair, which was mutated, gives way."""
    first = {"rho_bar": 1.0, "c_bar": 1.0}
    of = rules(40, first, mutation_rate=1.0, initial={given: [1.0] * 40})
    moved = 0
    for own in begin(of, np.random.default_rng(1)):
        assert own[given] == 1.0
        assert own["c_bar"] <= own["rho_bar"]
        moved += own["c_bar"] != own["rho_bar"]
    assert 5 < moved < 35


def test_values_change_as_often_as_they_should() -> None:
    rng = np.random.default_rng(0)
    many = [mutated(FIRST, rules(), rng) for _ in range(4000)]
    changed = np.mean([each["learning_rate"] != FIRST["learning_rate"] for each in many])
    assert changed == pytest.approx(0.15, abs=0.02)
    factors = [each["learning_rate"] / 1e-3 for each in many if each["learning_rate"] != 1e-3]
    assert np.mean([factor > 1 for factor in factors]) == pytest.approx(0.5, abs=0.07)
    assert all(1.05 <= max(x, 1 / x) <= 1.5 + 1e-9 for x in factors)
    both = np.mean([all(each[k] != FIRST[k] for k in FIRST) for each in many])
    assert both == pytest.approx(0.15**2, abs=0.01)  # each by itself


def test_policy_0_begins_with_the_given_values_and_the_others_with_a_mutation() -> None:
    values = begin(rules(3, mutation_rate=1.0), np.random.default_rng(1))
    assert values[0] == FIRST
    assert all(each["learning_rate"] != 1e-3 for each in values[1:])
    assert values[1] != values[2]


def test_first_values_may_be_given() -> None:
    given = rules(3, mutation_rate=1.0, initial={"learning_rate": (1.0, 2.0, 3.0)})
    values = begin(given, np.random.default_rng(1))
    assert [each["learning_rate"] for each in values] == [1.0, 2.0, 3.0]
    assert values[0]["entropy_coef"] == 0.01
    assert values[1]["entropy_coef"] != 0.01


# The controller


def controller(seed: int = 3) -> Controller:
    return Controller(rules(3, mutation_rate=0.5), start=100, period=50, seed=seed)


def test_a_policy_is_due_by_its_own_steps() -> None:
    each = controller()
    assert not each.due(1, 99)
    assert each.due(1, 100)
    each.consider(1, [1.0, 1.0, 1.0], 100, 300)  # noted whatever comes of it
    assert not each.due(1, 150)
    assert each.due(1, 151)
    assert each.due(0, 100)


def test_decisions_are_kept_and_saved() -> None:
    one, other = controller(), controller(seed=9)
    one.consider(0, [1.0, 5.0, 9.0], 120, 360)
    other.load(json.loads(json.dumps(one.save())))
    assert not other.due(0, 170)  # it was considered at 120
    for each in (one, other):
        each.consider(1, [1.0, 5.0, 9.0], 130, 390)
        each.consider(0, [1.0, 5.0, 9.0], 180, 540)
    assert one.events == other.events
    assert one.values == other.values
    assert not other.due(1, 140)
    kinds = [event["event"] for event in one.events]
    assert kinds[:3] == ["begins"] * 3
    assert kinds[3] == "copied"
    copied = one.events[3]
    assert (copied["policy"], copied["donor"], copied["env_steps"]) == (0, 2, 360)
    assert copied["after"] == one.events[2]["values"]
    assert copied["objectives"] == [1.0, 5.0, 9.0]


OTHERS: dict[str, Any] = {
    "initial": {"learning_rate": (0.1, 0.01, 0.02)},
    "replace_frac": 0.6,
    "mutation_rate": 1.0,
    "reset_rate": 1.0,
    "perturb_min": 1.4,
    "perturb_max": 1.06,
    "gap_absolute": 10.0,
    "gap_relative": 5.0,
    "gap_mode": "original",
}


def _one_less(saved: dict[str, Any]) -> None:
    saved["values"].pop()


def _other_options(saved: dict[str, Any]) -> None:
    saved["values"][1]["other"] = 1.0


def _another_policy(saved: dict[str, Any]) -> None:
    saved["events"].append({"event": "copied", "policy": 9})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_one_less, "the values .* belong to other policies or options"),
        (_other_options, "the values .* belong to other policies or options"),
        (_another_policy, "the events .* belong to other policies"),
    ],
)
def test_what_was_saved_of_other_policies_is_refused(
    damage: Callable[[dict[str, Any]], None], said: str
) -> None:
    saved = json.loads(json.dumps(controller().save()))
    damage(saved)
    with pytest.raises(ValueError, match=said):
        controller().load(saved)


@pytest.mark.parametrize("name", OTHERS)
def test_every_option_of_decisions_has_an_effect(name: str) -> None:
    def decided(**options: Any) -> list[dict[str, Any]]:
        given: dict[str, Any] = {"mutation_rate": 0.6, **options}
        each = Controller(rules(3, **given), start=0, period=1, seed=5)
        for time in range(1, 20):
            for policy in range(3):
                if each.due(policy, 2 * time):
                    # The second lead is large enough as a share of the candidate's alone.
                    now = [-1.0, 4.0, 3.9] if time < 10 else [-5.53, -5.0, -5.2]
                    each.consider(policy, now, 2 * time, 6 * time)
        return each.events

    assert decided(**{name: OTHERS[name]}) != decided()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 2, "perturb_min": 2.0}, "perturb_min must be at most perturb_max"),
        ({"mutation_rate": 0.5}, "mutation_rate=0.5 has no effect without population.size > 1"),
        ({"size": 2, "pbt": False, "mutation_rate": 0.5}, "without population.pbt"),
        ({"size": 2, "tuned": ("a", "a")}, "no option twice"),
        (
            {"size": 2, "mutation_rate": 0, "reset_rate": 0.5},
            "without population.mutation_rate >",
        ),
        (
            {"size": 2, "mutation_rate": 0, "perturb_max": 2.0},
            "without population.mutation_rate >",
        ),
        (
            {"size": 2, "objective": "eval/return_mean", "min_episodes": 5},
            "min_episodes=5 has no effect without an objective of episodes",
        ),
        ({"size": 3, "replace_frac": 0.7}, r"all 3 policies \(rounded up\) count as best"),
        ({"size": 2, "initial": {"a": (1.0,)}}, "must have 2 values of a"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], said: str) -> None:
    given = {f"population.{name}": value for name, value in options.items()}
    with pytest.raises(ConfigError, match=said):
        compose("ppo", [Layer("call", {"env.id": "CartPole-v1"} | given)])
