"""Every learner over observations x actions x masks x recurrence: every kind listed, and
combinations of them drawn.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conformance_helpers import (
    LEARNERS,
    MASKED,
    PLUGINS,
    Case,
    Noise,
    Run,
    Task,
    choices,
    everything,
    floats,
    gated,
    learn,
    whole_batch,
)
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.errors import EnvironmentFault
from quintet.runtime.batch import select
from quintet.spaces import Space
from quintet.types import Rollout

pytestmark = pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")


def anew(case: Case, learner: Any) -> Any:
    """A learner with the same weights and statistics that makes one step with a batch."""
    again = replace(case, options={**case.options, **whole_batch(case.algo)}).learner()
    again.warm_start(learner.weights())
    return again


def check(case: Case) -> None:
    """Two iterations on the combination, and what must hold for any of them."""
    if not case.algorithm.acts_in(case.spaces.action):
        pytest.skip(f"{case.algo} has no such actions")
    if case.core != "none" and "model.core" in case.algorithm.needs:
        pytest.skip(f"{case.algo} has no memory")
    run = Run(case, case.learner())
    for iteration in range(2):  # the environments refuse what is outside or masked
        told, batches = run.iterate()
        if iteration:  # the first batch was acted before there were statistics of observations
            first_ratio_is_1(told, batches)
        assert all(np.isfinite(value) for value in told.values())
        assert floats(case.task.action) or told.get("policy/entropy", 0.0) >= 0.0
    run.close()
    batch = batches[0]
    learner = anew(case, run.learner)
    learner.update(batch, 0)
    expected, told = everything(learner), dict(learner.metrics())
    invalid_rows_change_nothing(anew(case, run.learner), batch, expected)
    if not samples(case):
        order_of_streams_changes_nothing(anew(case, run.learner), batch, told)


def samples(case: Case) -> bool:
    """Whether the learner draws actions of its policy, which belong to places in the batch."""
    return case.algo == "acer" and not isinstance(case.task.action, spaces.Discrete)


def first_ratio_is_1(told: Mapping[str, float], batches: list[Rollout]) -> None:
    """Of learners that tell it, on a batch that the newest weights acted in."""
    if "policy/ratio_first_max_error" in told:
        assert told["policy/ratio_first_max_error"] <= 1e-5
    elif "policy/ratio_max" in told and len(batches) == 1:
        extremes = told["policy/ratio_min"], told["policy/ratio_max"]
        assert extremes == pytest.approx((1.0, 1.0), abs=1e-5)


def invalid_rows_change_nothing(learner: Any, batch: Rollout, expected: dict[str, str]) -> None:
    """Not what was done or paid there, nor its probabilities; the observation and its value are
    those of the ending and count.
    """
    assert (~batch.valid).any()

    def spoilt(x: torch.Tensor, by: float) -> torch.Tensor:
        x = x.clone()
        x[~batch.valid] = torch.full_like(x[~batch.valid], by)
        return x

    absurd = {"logp_mu": -1e3, "params_mu": 0.5}
    record = {
        name: spoilt(x, absurd[name]) if name in absurd else x for name, x in batch.record.items()
    }
    action, reward = spoilt(batch.action, 0), spoilt(batch.reward, 1e3)
    learner.update(replace(batch, action=action, reward=reward, record=record), 0)
    assert everything(learner) == expected


def order_of_streams_changes_nothing(
    learner: Any, batch: Rollout, expected: Mapping[str, float]
) -> None:
    found = learn(learner, [select(batch, torch.tensor([2, 0, 3, 1]))])
    assert found.keys() == expected.keys()
    for name in (x for x in found if x.startswith("loss/") or x == "policy/entropy"):
        # Sums of 32 float32 terms in another order.
        assert found[name] == pytest.approx(expected[name], rel=2e-6, abs=5e-6), name


INF = np.inf
OBSERVATIONS: dict[str, Space] = {
    "box": spaces.Box(-INF, INF, (3,), np.float32),
    "box_double_matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    "box_bytes": spaces.Box(0, 255, (4,), np.uint8),
    "discrete": spaces.Discrete(3, start=2),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[1, 0]),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Box(-INF, INF, (2,))]),
    "dict": spaces.Dict({"a": spaces.Box(-1.0, 1.0, ()), "b": spaces.MultiBinary(2)}),
    "nested": spaces.Dict(
        {
            "a": spaces.Tuple([spaces.Dict({"x": spaces.Discrete(3)}), spaces.MultiBinary(1)]),
            "b": spaces.Box(-INF, INF, (2,)),
        }
    ),
}
ACTIONS: dict[str, Space] = {
    "discrete": spaces.Discrete(4, start=-1),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[5, -2]),
    "multi_discrete_matrix": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "box": spaces.Box(-2.0, 1.0, (2,), np.float32),
    "box_double_matrix": spaces.Box(-0.1, 0.7, (2, 2), np.float64),
    "integers": spaces.Tuple([spaces.MultiBinary(2), spaces.Discrete(3, start=1)]),
    "hybrid": spaces.Tuple([spaces.Discrete(3, start=1), spaces.Box(-1.0, 1.0, (2,))]),
    "dict": spaces.Dict({"aim": spaces.Box(0.0, 5.0, (1,)), "go": spaces.MultiDiscrete([3, 2])}),
    "nested": spaces.Dict(
        {
            "b": spaces.Tuple([spaces.Box(-1.0, 1.0, ()), spaces.Discrete(2)]),
            "a": spaces.Dict({"x": spaces.MultiBinary(1), "y": spaces.Box(-1.0, 1.0, (1, 2))}),
        }
    ),
}
CORES = ("none", "lstm", "gru")
STDS = ("state_independent", "softplus", "state_dependent")
BOUNDS = ("clip", "squash", "mean_tanh")
KINDS = [name for name in LEARNERS if name != "a2c with replay"]


def in_turn() -> dict[str, tuple[Task, str, dict[str, Any]]]:
    """Every kind of observation, action, core and Gaussian at least once, masked in two of three
    where there are choices: task, core, network.
    """
    found = {}
    for i, (name, action) in enumerate(ACTIONS.items()):
        seen = list(OBSERVATIONS)[i % len(OBSERVATIONS)]
        masked = i % 3 != 1 and bool(list(choices(action)))
        core = CORES[i % 3]
        network: dict[str, Any] = {}
        if floats(action):
            network = {"action_std": STDS[i // 2 % 3], "action_bounds": BOUNDS[i % 3]}
        if core != "none":
            network |= {"core_layers": 1 + i % 2, "shared_torso": i % 4 < 2}
        found[f"{seen}-{name}-{core}"] = (Task(OBSERVATIONS[seen], action, masked), core, network)
    return found


IN_TURN = in_turn()


def test_every_kind_is_among_them() -> None:
    tasks, cores, networks = zip(*IN_TURN.values(), strict=True)
    assert all(any(task.observation is x for task in tasks) for x in OBSERVATIONS.values())
    assert {task.masked for task in tasks} == {True, False}
    assert set(cores) == set(CORES)
    for name, kinds in (("action_std", STDS), ("action_bounds", BOUNDS), ("core_layers", (1, 2))):
        assert {network.get(name) for network in networks} >= set(kinds), name


EACH = [
    pytest.param(
        algo,
        kind,
        marks=()
        if algo in ("ppo", "ddpg") or (i % 3 == 0 and algo not in PLUGINS)
        else pytest.mark.slow,
    )
    for algo in KINDS
    for i, kind in enumerate(IN_TURN)
]
"""All kinds with a learner of batches and one of replay, and a third with each other learner."""


@pytest.mark.parametrize(("algo", "kind"), EACH)
def test_every_kind(algo: str, kind: str) -> None:
    task, core, network = IN_TURN[kind]
    if "model.core" in LEARNERS[algo].needs:
        core = "none"
        network = {name: x for name, x in network.items() if name.startswith("action_")}
    check(Case(algo, task, core=core, network=network))


class Stuck(Noise):
    """Says that nothing is allowed in one of its choices."""

    def draw(self) -> Any:
        obs = super().draw()
        self.mask[:] = 1  # what it says and what it takes are two things
        return {**obs, "action_mask": np.array([1, 1, 0, 0, 0], np.int8)}


def test_each_choice_must_allow_something() -> None:
    case = Case("ppo", MASKED, env=Stuck)
    with pytest.raises(EnvironmentFault, match="at least one action in each choice"):
        case.batches(1)


def trees(leaves: dict[str, Space]) -> st.SearchStrategy[Space]:
    """Spaces of such leaves, nested at will."""
    plain = [leaf for leaf in leaves.values() if not isinstance(leaf, spaces.Tuple | spaces.Dict)]
    return st.recursive(
        st.sampled_from(plain),
        lambda child: (
            st.lists(child, min_size=1, max_size=2).map(spaces.Tuple)
            | st.dictionaries(st.sampled_from("ab"), child, min_size=1).map(spaces.Dict)
        ),
        max_leaves=4,
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Task, str, dict[str, Any]]:
    action = draw(trees(ACTIONS))
    task = Task(
        draw(trees(OBSERVATIONS)), action, bool(list(choices(action))) and draw(st.booleans())
    )
    network = {}
    if floats(action):
        network = {
            "action_std": draw(st.sampled_from(STDS)),
            "action_bounds": draw(st.sampled_from(BOUNDS)),
        }
    return task, draw(st.sampled_from(CORES)), network


@pytest.mark.parametrize("algo", gated(KINDS))
@pytest.mark.parametrize(
    "examples", [3, pytest.param(60, marks=pytest.mark.slow, id="many")], ids=str
)
def test_combinations(algo: str, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(cases())
    def every(drawn: tuple[Task, str, dict[str, Any]]) -> None:
        task, core, network = drawn
        check(Case(algo, task, core=core, network=network))

    every()
