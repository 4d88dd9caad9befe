"""PPO's invariants over observations x actions x masks x recurrence: every kind listed, and
combinations of them drawn.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from ppo_helpers import columns, everything, learn, make_learner, train

from quintet.algorithms.parts.minibatches import Chunks
from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.envs.make import make_vector_env
from quintet.errors import EnvironmentFault
from quintet.models.config import ModelConfig
from quintet.types import ACTION_MASK, Rollout, Spaces

pytestmark = pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")
Space = spaces.Space[Any]
STREAMS, STEPS, CHUNK = 4, 8, 4


def choices(space: Space, action: Any = None) -> Iterator[tuple[int, int]]:
    """Every choice among several actions in a space: how many there are and which one `action`
    takes, counted from 0; in the order of the mask.
    """
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from choices(child, None if action is None else action[key])
    elif isinstance(space, spaces.Tuple):
        for i, child in enumerate(space.spaces):
            yield from choices(child, None if action is None else action[i])
    elif isinstance(space, spaces.Discrete):
        yield int(space.n), -1 if action is None else int(action - space.start)
    elif isinstance(space, spaces.MultiDiscrete):
        taken = np.full(space.shape, -1) if action is None else action - space.start
        yield from zip(space.nvec.ravel().tolist(), taken.ravel().tolist(), strict=True)


class Noise(gymnasium.Env):
    """Random observations, rewards and endings; an action that it must not get is an error."""

    def __init__(self, observation: Space, action: Space, masked: bool) -> None:
        # Spaces hold random state, which no two environments may share.
        self.inner, self.action_space = copy.deepcopy(observation), copy.deepcopy(action)
        self.masked = masked
        self.observation_space: Space = self.inner
        self.sizes = [n for n, _ in choices(action)]
        if masked:
            mask = spaces.MultiBinary(sum(self.sizes))
            self.observation_space = spaces.Dict({"inner": self.inner, ACTION_MASK: mask})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.inner.seed(seed)
        return self.draw(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        at = 0
        for n, taken in choices(self.action_space, action):
            assert not self.masked or self.mask[at + taken], (action, self.mask)
            at += n
        coin = self.np_random.random()
        reward = self.np_random.normal()
        return self.draw(), reward, bool(coin < 0.15), bool(0.15 <= coin < 0.3), {}

    def draw(self) -> Any:
        if not self.masked:
            return self.inner.sample()
        parts = [(self.np_random.random(n) < 0.4).astype(np.int8) for n in self.sizes]
        for part in parts:  # often nothing else is left
            part[self.np_random.integers(len(part))] = 1
        self.mask = np.concatenate(parts)
        return {"inner": self.inner.sample(), ACTION_MASK: self.mask.copy()}


@dataclass(frozen=True)
class Case:
    observation: Space
    action: Space
    masked: bool = False
    core: str = "none"
    std: str = "state_independent"
    bounds: str = "clip"

    @property
    def config(self) -> PPOConfig:
        options = {} if self.core == "none" else {"bptt_steps": CHUNK}
        return PPOConfig(
            unroll_steps=STEPS, minibatch_steps=16, num_epochs=2, entropy_coef=0.01, **options
        )

    @property
    def model(self) -> ModelConfig:
        options: dict[str, Any] = {"policy_hidden": (8,)}
        if self.core != "none":
            options |= {"core": self.core, "core_size": 4}
        if floats(self.action):
            options |= {"action_std": self.std, "action_bounds": self.bounds}
        return ModelConfig.model_validate(options)

    def run(self) -> tuple[PPOLearner, list[dict[str, float]], Rollout]:
        def make() -> Noise:
            return Noise(self.observation, self.action, self.masked)

        return train(self.config, make, 2, model=self.model, streams=STREAMS, groups=2)


def floats(space: Space) -> bool:
    """Whether any leaf is a Box."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        children = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(floats(child) for child in children)
    return isinstance(space, spaces.Box)


def anew(case: Case, learner: PPOLearner, **options: Any) -> PPOLearner:
    """A learner with the same weights and statistics, and perhaps another configuration."""
    config = case.config.model_copy(update=options)
    again = make_learner(config, learner_spaces(case), case.model, STREAMS)
    again.load(copy.deepcopy(learner.save()))
    return again


def learner_spaces(case: Case) -> Spaces:
    env = make_vector_env(lambda: Noise(case.observation, case.action, case.masked), 1)
    env.close()
    return env.spaces


def check(case: Case) -> None:
    """Two iterations on the combination, and what must hold for any of them."""
    learner, metrics, batch = case.run()  # the environments refuse what is outside or masked
    for each in metrics:
        assert each["policy/ratio_first_max_error"] <= 1e-5
        assert all(np.isfinite(value) for value in each.values())
        assert floats(case.action) or each["policy/entropy"] >= 0.0
    same, _, other = case.run()
    assert everything(same) == everything(learner)
    assert all(torch.equal(x, other.obs[name]) for name, x in batch.obs.items())
    assert torch.equal(other.action, batch.action)
    rows_are_visited_once(learner, batch)
    invalid_rows_change_nothing(case, learner, batch)
    order_of_streams_changes_nothing(case, learner, batch)


def rows_are_visited_once(learner: PPOLearner, batch: Rollout) -> None:
    rows, _ = learner._rows(batch, batch.valid)
    rows = replace(rows, advantage=torch.arange(batch.valid.numel()).float())
    chunks = Chunks(batch.valid.shape, learner.chunk_steps, torch.device("cpu"))
    visited: list[int] = []
    for each in learner._minibatches(rows, chunks, batch.valid.flatten()):
        weight = each.weight
        visited += each.take().advantage[weight > 0].int().tolist()
        assert weight.sum().item() == pytest.approx(1.0, abs=1e-6)
    assert sorted(visited) == batch.valid.flatten().nonzero().squeeze(1).tolist()


def invalid_rows_change_nothing(case: Case, learner: PPOLearner, batch: Rollout) -> None:
    """Not what was done there, nor its probability; the observation is that of the ending, whose
    value counts.
    """
    assert (~batch.valid).any()
    hidden = ~batch.valid

    def spoilt(x: torch.Tensor, by: float) -> torch.Tensor:
        x = x.clone()
        x[hidden] = torch.full_like(x[hidden], by)
        return x

    record = {
        **batch.record,
        "logp_mu": spoilt(batch.record["logp_mu"], -1e3),
        "params_mu": spoilt(batch.record["params_mu"], 0.5),
    }
    other = replace(
        batch, action=spoilt(batch.action, 0), reward=spoilt(batch.reward, 1e3), record=record
    )
    one, two = (anew(case, learner, num_epochs=1) for _ in range(2))
    one.update(batch, 0)
    two.update(other, 0)
    assert everything(one) == everything(two)


def order_of_streams_changes_nothing(case: Case, learner: PPOLearner, batch: Rollout) -> None:
    whole = {"minibatch_steps": None, "num_epochs": 1}
    one = learn(anew(case, learner, **whole), batch, 0)
    two = learn(anew(case, learner, **whole), columns(batch, [2, 0, 3, 1]), 0)
    assert one.keys() == two.keys()
    for name in (*(name for name in one if name.startswith("loss/")), "policy/entropy"):
        assert two[name] == pytest.approx(one[name], rel=2e-6, abs=1e-6), name


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


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_every_kind_of_observation(name: str) -> None:
    check(Case(OBSERVATIONS[name], ACTIONS["discrete"], masked=True))


@pytest.mark.parametrize("name", ACTIONS)
def test_every_kind_of_action(name: str) -> None:
    check(Case(OBSERVATIONS["box"], ACTIONS[name]))


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
@pytest.mark.parametrize("name", [name for name in ACTIONS if list(choices(ACTIONS[name]))])
def test_every_kind_of_masked_action(name: str, core: str) -> None:
    check(Case(OBSERVATIONS["tuple"], ACTIONS[name], True, core))


@pytest.mark.parametrize("std", ["softplus", "state_dependent"])
@pytest.mark.parametrize("bounds", ["squash", "mean_tanh"])
def test_every_kind_of_gaussian_beside_other_actions(std: str, bounds: str) -> None:
    check(Case(OBSERVATIONS["box"], ACTIONS["hybrid"], True, "none", std, bounds))


def test_each_choice_must_allow_something() -> None:
    class Stuck(Noise):
        def draw(self) -> Any:
            obs = super().draw()
            self.mask[:] = 1  # what it says and what it takes are two things
            return {**obs, ACTION_MASK: np.array([1, 1, 0, 0, 0], np.int8)}

    case = Case(OBSERVATIONS["box"], ACTIONS["multi_discrete"], masked=True)
    with pytest.raises(EnvironmentFault, match="at least one action in each choice"):
        train(
            case.config,
            lambda: Stuck(case.observation, case.action, case.masked),
            1,
            model=case.model,
        )


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
def cases(draw: st.DrawFn) -> Case:
    action = draw(trees(ACTIONS))
    return Case(
        observation=draw(trees(OBSERVATIONS)),
        action=action,
        masked=bool(list(choices(action))) and draw(st.booleans()),
        core=draw(st.sampled_from(["none", "lstm", "gru"])),
        std=draw(st.sampled_from(["state_independent", "softplus", "state_dependent"])),
        bounds=draw(st.sampled_from(["clip", "squash", "mean_tanh"])),
    )


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(cases())
def test_combinations(case: Case) -> None:
    check(case)
