"""Masks that environments give in info become the leaf action_mask."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from envs_helpers import record
from gymnasium import spaces
from gymnasium.envs.toy_text.taxi import TaxiEnv
from gymnasium.vector import SyncVectorEnv, VectorWrapper

from quintet.envs.masks import is_in
from quintet.envs.public import make_vector_env
from quintet.envs.toy import MaskedDoors
from quintet.envs.vector import allocate_row
from quintet.errors import ConfigError, EnvironmentFault
from quintet.spaces import observation_leaves
from quintet.types import ACTION_MASK

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Told(gymnasium.Env):
    """Episodes of three steps; the mask says which step it is."""

    def __init__(
        self,
        observation: spaces.Space = BOX,
        action: spaces.Space | None = None,
        at_the_end: bool = True,
        mask: Any = None,
    ) -> None:
        self.observation_space = observation
        self.action_space = spaces.Discrete(4) if action is None else action
        self.at_the_end, self.mask = at_the_end, mask
        self.count = 0

    def info(self) -> dict[str, Any]:
        told = np.arange(4) == self.count
        return {ACTION_MASK: told if self.mask is None else self.mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(0)
        self.count = 0
        return self.observation_space.sample(), self.info()

    def step(self, action: Any) -> Any:
        self.count += 1
        over = self.count == 3
        info = {} if over and not self.at_the_end else self.info()
        return self.observation_space.sample(), 0.0, False, over, info


def masks(make: Any, steps: int = 5) -> list[list[int]]:
    env = make_vector_env(make, 1, mask_from_info=True)
    mask = record(env, [1], np.zeros((steps, 1), np.int64)).obs[ACTION_MASK]
    assert mask.dtype == np.int8
    return mask[:, 0].tolist()


def first_mask(action: spaces.Space, mask: Any) -> list[int]:
    env = make_vector_env(lambda: Told(action=action, mask=mask), 1, mask_from_info=True)
    row = allocate_row(env.spaces.observation, 1)
    env.restart([1], row.obs)
    return row.obs[ACTION_MASK][0].tolist()


def test_every_row_has_the_mask_of_its_own_observation() -> None:
    rows = np.eye(4, dtype=int).tolist()
    assert masks(Told) == [*rows, rows[0], rows[1]]


def test_a_reset_need_not_take_options() -> None:
    class Plain(Told):
        def reset(self, seed: int | None = None) -> Any:
            return super().reset(seed=seed)

    record(make_vector_env(Plain, 2, mask_from_info=True), [1, 2], np.zeros((4, 2), np.int64))


def test_a_mask_may_be_missing_where_the_episode_ended() -> None:
    rows = np.eye(4, dtype=int).tolist()
    assert masks(lambda: Told(at_the_end=False)) == [*rows[:3], [0, 0, 0, 0], rows[0], rows[1]]


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float64])
def test_a_mask_may_be_of_any_kind_of_numbers(dtype: Any) -> None:
    assert masks(lambda: Told(mask=np.array([1, 0, 1, 0]).astype(dtype)), 1)[0] == [1, 0, 1, 0]


TWO, GRID = spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([[2, 2], [2, 2]])
BOTH = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([BOX, TWO]), "c": GRID})
ROWS = (np.array([1, 0], np.int8), np.array([0, 1, 1], np.int8))


@pytest.mark.parametrize(
    ("action", "mask", "row"),
    [
        (TWO, ROWS, [1, 0, 0, 1, 1]),
        (spaces.MultiDiscrete([2, 2]), np.array([[1, 0], [0, 1]]), [1, 0, 0, 1]),
        (GRID, (ROWS[:1] * 2, (ROWS[0], np.array([0, 1], np.int8))), [1, 0, 1, 0, 1, 0, 0, 1]),
        (spaces.Box(0, 1, (2,), np.int64), ([True, False], [0, 1]), [1, 0, 0, 1]),
        (BOTH, {"a": None, "b": (None, ROWS), "c": None}, [1, 1, 1, 0, 0, 1, 1, *[1] * 8]),
    ],
)
def test_a_mask_may_have_the_form_that_the_action_space_samples_with(
    action: spaces.Space, mask: Any, row: list[int]
) -> None:
    if not isinstance(action, spaces.Box) and isinstance(mask, tuple | dict):
        action.sample(mask=mask)  # Gymnasium takes it
    assert first_mask(action, mask) == row


@pytest.mark.parametrize("mask", [ROWS[::-1], (*ROWS, ROWS[0]), ROWS[:1], (ROWS[0], None)])
def test_a_mask_with_other_parts_than_the_action_space_is_refused(mask: Any) -> None:
    with pytest.raises(EnvironmentFault, match="must be an array of 5 numbers, one per action, or"):
        first_mask(TWO, mask)


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Discrete(3, start=2),
        spaces.Tuple([BOX, spaces.Discrete(3)]),
        spaces.Dict({"b": BOX, "a": spaces.Tuple([spaces.Discrete(2)])}),
        spaces.Dict({0: BOX, 1: spaces.Discrete(2)}),
    ],
)
def test_the_other_leaves_stay_as_they_are(space: spaces.Space) -> None:
    plain = make_vector_env(lambda: Told(space), 2)
    masked = make_vector_env(lambda: Told(space), 2, mask_from_info=True)
    leaves = observation_leaves(masked.spaces.observation)
    assert leaves.pop(ACTION_MASK) == spaces.MultiBinary(4)
    assert leaves == observation_leaves(plain.spaces.observation)
    assert list(leaves) == list(observation_leaves(plain.spaces.observation))
    one, two = (record(env, [1, 2], np.zeros((4, 2), np.int64)) for env in (plain, masked))
    for name, rows in one.obs.items():
        np.testing.assert_array_equal(two.obs[name], rows)


def test_taxi() -> None:
    env = make_vector_env(TaxiEnv, 3, mask_from_info=True)
    mask = record(env, [1, 2, 3], np.zeros((20, 3), np.int64)).obs[ACTION_MASK]
    assert mask.shape == (21, 3, 6)
    twin = TaxiEnv()
    _, info = twin.reset(seed=2)
    assert mask[0, 1].tolist() == info[ACTION_MASK].tolist()
    assert (mask == 0).any()


def test_masks_are_not_taken_unasked() -> None:
    env = make_vector_env(TaxiEnv, 1)
    assert list(observation_leaves(env.spaces.observation)) == ["obs"]


def test_what_would_have_no_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match="must have Discrete or MultiDiscrete actions"):
        make_vector_env(lambda: Told(action=BOX), 1, mask_from_info=True)
    with pytest.raises(ConfigError, match="this observation has one"):
        make_vector_env(MaskedDoors, 1, mask_from_info=True)
    says = "must have single Gymnasium environments"
    with pytest.raises(ConfigError, match=f"{says}.*envpool.*single .* 'gymnasium'$"):
        make_vector_env("CartPole-v1", 1, backend="envpool", mask_from_info=True)
    given = VectorWrapper(SyncVectorEnv([Told]))
    with pytest.raises(ConfigError, match=rf"{says}.*\(vector environment, gym.*give a maker"):
        make_vector_env(given, 1, mask_from_info=True)
    has_its_own = VectorWrapper(SyncVectorEnv([MaskedDoors]))
    with pytest.raises(ConfigError, match=says):
        make_vector_env(has_its_own, 1, mask_from_info=True)


def test_the_environments_of_a_sync_vector_env_give_their_masks() -> None:
    rows = np.eye(4, dtype=int).tolist()
    assert masks(SyncVectorEnv([Told])) == [*rows, rows[0], rows[1]]
    assert masks(lambda num_envs: SyncVectorEnv([Told] * num_envs), 1) == rows[:2]


NO_ROW = r"must be an array of 4 numbers, one per action, or .* takes, got shape"


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (np.ones(3), rf"{NO_ROW} \(3,\)"),
        (np.ones((2, 2)), rf"{NO_ROW} \(2, 2\)"),
        (np.array(["a"] * 4), rf"{NO_ROW} \(4,\), dtype <U"),
        (np.array([np.nan, 1, 0, 1]), "must hold only 0 and 1, got nan"),
        (np.array([0, -1e9, -2e9, 0]), r"got -2e\+09, -1e\+09; if .* give mask == 0"),
        ({}, rf"{NO_ROW} \(\), dtype obj"),
    ],
)
def test_a_wrong_mask_is_a_fault_of_the_environment(mask: Any, says: str) -> None:
    env = make_vector_env(lambda: Told(mask=mask), 1, mask_from_info=True)
    with pytest.raises(EnvironmentFault, match=says):
        record(env, [1], np.zeros((1, 1), np.int64))


class Named(Told):
    def info(self) -> dict[str, Any]:
        return {"action_masks": super().info()[ACTION_MASK]}


def test_the_key_may_have_the_name_of_the_method() -> None:
    rows = np.eye(4, dtype=int).tolist()
    assert masks(Named) == [*rows, rows[0], rows[1]]
    assert is_in(Named().reset()[1], spaces.Discrete(4))


def test_a_method_that_returns_nothing_is_a_fault_of_the_environment() -> None:
    class Forgets(Told):
        def action_masks(self) -> Any:
            return self.mask

    env = make_vector_env(Forgets, 1)
    with pytest.raises(EnvironmentFault, match=r"must be an array of 4 .*, got None; if it is no"):
        record(env, [1], np.zeros((1, 1), np.int64))


def test_a_missing_mask_is_a_fault_of_the_environment() -> None:
    env = make_vector_env("CartPole-v1", 1, backend="gymnasium", mask_from_info=True)
    with pytest.raises(
        EnvironmentFault, match=r"step must have info\['action_mask'\].*, got info with \[\]: add"
    ):
        record(env, [1], np.zeros((1, 1), np.int64))
