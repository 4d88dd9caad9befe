"""Decisions of population-based training, as pure functions of objectives, values and a generator.

Source: Jaderberg et al., arXiv 1711.09846, with the rules of Sample Factory, Petrenko et al., arXiv
    2006.11751.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from quintet.options.declaration import Tune
from quintet.population.config import PopulationConfig

Values = Mapping[str, float]
"""Hyperparameters by the option's name."""

REST_FACTORS = 1.01, 1.2
LEAST_REST = 1e-8

CAP_FACTOR = 1.005


class Bounds(NamedTuple):
    """Range of a value, with both ends."""

    low: float = -math.inf
    high: float = math.inf


class Rules(NamedTuple):
    """Rules of mutations.

    first: the learner's options.
    bounds: bounds of values that have bounds.
    ways: rules by which options change: ``1 - x`` of options near 1 by a factor of REST_FACTORS,
        caps of ratios by CAP_FACTOR, all others by the configuration's factors.
    """

    config: PopulationConfig
    first: Values
    bounds: Mapping[str, Bounds] = {}
    ways: Mapping[str, Tune] = {}

    def near_1(self, name: str) -> bool:
        return name in self.ways and self.ways[name].by == "distance_to_1"

    def ordered(self, values: Values) -> list[tuple[str, str]]:
        """Pairs of values whose first must not exceed the second."""
        pairs = ((name, way.at_most) for name, way in self.ways.items())
        return [pair for pair in pairs if values.keys() >= set(pair)]


class Decision(NamedTuple):
    """Decision about a policy.

    donor: policy whose weights it takes; itself: it keeps its own.
    before, after: its hyperparameters before and after.
    objectives: objectives of all policies; None: not ranked.
    """

    policy: int
    donor: int
    before: dict[str, float]
    after: dict[str, float]
    objectives: tuple[float | None, ...]


def begin(rules: Rules, rng: np.random.Generator) -> list[dict[str, float]]:
    """The first values of each policy: policy 0 has the given values, each other policy a mutation
    of them (without PBT the same values), except values that the configuration sets for each
    policy.
    """
    values = [dict(rules.first) for _ in range(rules.config.size)]
    if rules.config.pbt:
        values[1:] = [mutated(rules.first, rules, rng) for _ in values[1:]]
    return [with_initial(own, policy, rules) for policy, own in enumerate(values)]


def with_initial(values: Values, policy: int, rules: Rules) -> dict[str, float]:
    """A policy's values with those that the configuration sets for each policy; if it sets one of
    two ordered caps, the other follows.
    """
    initial = rules.config.initial
    own = dict(values) | {name: given[policy] for name, given in initial.items()}
    for lower, upper in rules.ordered(own):
        if upper not in initial:
            own[upper] = max(own[upper], own[lower])
        elif lower not in initial:
            own[lower] = min(own[lower], own[upper])
    return own


def decide(
    policy: int,
    objectives: Sequence[float | None],
    values: Sequence[Values],
    rules: Rules,
    rng: np.random.Generator,
) -> Decision:
    """Considers a policy that has an objective.

    Of n policies with an objective, m = ceil(replace_frac * n), at most n - 1, are the best and m
    the worst; of equal objectives the higher index ranks first.  The best policies stay unchanged.
    A policy among the worst becomes a copy of one of the best, drawn uniformly, if the lead of that
    one is large enough.  All but the best are mutated, also copies; policy 0 may be replaced, but
    is never mutated.  With n = 1 nothing happens.

    Args:
        objectives: objectives of all policies; -inf ranks last, and any other objective leads it;
            None: not ranked.
        values: hyperparameters of all policies.
    """
    config = rules.config
    before, given = dict(values[policy]), tuple(objectives)
    of = {k: x for k, x in enumerate(objectives) if x is not None}
    best, worst = best_and_worst(of, config)
    if len(of) == 1 or policy in best:
        return Decision(policy, policy, before, before, given)
    donor = policy
    if policy in worst:
        candidate = best[int(rng.integers(len(best)))]
        if leads(of[candidate], of[policy], config):
            donor = candidate
    after = dict(values[donor])
    if policy != 0:
        after = mutated(after, rules, rng)
    return Decision(policy, donor, before, after, given)


def replace(
    policy: int,
    objectives: Sequence[float | None],
    sound: Sequence[int],
    values: Sequence[Values],
    rules: Rules,
    rng: np.random.Generator,
) -> Decision:
    """Replaces a diverged policy by a copy of a sound one: one of the best of these, drawn
    uniformly, or any if none of them is ranked.  The copy is mutated, unless it is policy 0.
    """
    of = {k: x for k in sound if (x := objectives[k]) is not None}
    donors = best_and_worst(of, rules.config)[0] if of else list(sound)
    donor = donors[int(rng.integers(len(donors)))]
    after = dict(values[donor])
    if policy != 0:
        after = mutated(after, rules, rng)
    return Decision(policy, donor, dict(values[policy]), after, tuple(objectives))


def best_and_worst(
    objectives: Mapping[int, float], config: PopulationConfig
) -> tuple[list[int], list[int]]:
    """The policies that rank first and the policies that rank last, see `decide`."""
    ranked = sorted(objectives, key=lambda k: (objectives[k], k), reverse=True)
    most = min(math.ceil(config.replace_frac * len(ranked)), max(1, len(ranked) - 1))
    return ranked[:most], ranked[len(ranked) - most :]


def leads(candidate: float, own: float, config: PopulationConfig) -> bool:
    """Whether a candidate's objective is far enough above a policy's."""
    if own == -math.inf:
        return candidate > own
    delta = candidate - own
    if config.gap_mode == "original":
        far = abs(delta) > config.gap_relative * abs(candidate + 1e-8)
        return abs(delta) > config.gap_absolute and far
    share = delta / max(abs(candidate), abs(own), 1e-8)
    return delta > config.gap_absolute and share > config.gap_relative


def mutated(values: Values, rules: Rules, rng: np.random.Generator) -> dict[str, float]:
    """Values changed at random, independently and within their bounds; none becomes 0, which would
    change the loss.
    """
    after = {}
    for name in sorted(values):
        x = _mutated(name, values[name], rules, rng)
        low, high = rules.bounds.get(name, Bounds())
        after[name] = min(max(x, low), high) or values[name]
    for lower, upper in rules.ordered(after):
        after[lower] = min(after[lower], after[upper])
    return after


def _mutated(name: str, x: float, rules: Rules, rng: np.random.Generator) -> float:
    """The value, or by chance the first one or one a factor away."""
    config, first = rules.config, rules.first[name]
    if rng.random() >= config.mutation_rate:
        return x
    stuck = rules.near_1(name) and first == 1.0  # no factor would lead away from it
    if x != first and not stuck and rng.random() < config.reset_rate:
        return first
    up = rng.random() < 0.5
    if rules.near_1(name):
        factor = rng.uniform(*REST_FACTORS)
        return 1.0 - max((1.0 - x) * (factor if up else 1.0 / factor), LEAST_REST)
    factor = CAP_FACTOR
    if name not in rules.ways or rules.ways[name].by != "cap":
        factor = rng.uniform(config.perturb_min, config.perturb_max)
    return x * factor if up else x / factor
