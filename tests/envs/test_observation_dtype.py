"""In which dtype observations of float64 are stored, and who decides it."""

import random
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from quintet.envs.config import EnvConfig
from quintet.envs.make import make_group_env
from quintet.envs.public import make_vector_env
from quintet.envs.resolved import resolve_env
from quintet.envs.settled import with_observation_dtype
from quintet.envs.vector import allocate_row, coarse
from quintet.spaces import float64_leaves


class Clock(gymnasium.Env):
    """A time that runs, from an offset on."""

    action_space = spaces.Discrete(2)
    made = stepped = 0

    def __init__(self, offset=1.7e9, pace=1.0, dtype=np.float64, fault="") -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), dtype)
        if np.dtype(dtype).kind != "f":
            self.observation_space = spaces.Box(0, 2**31 - 1, (2,), dtype)
        self.offset, self.pace, self.fault = offset, pace, fault
        Clock.made += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = random.random() + np.random.random()
        return self._show(), {}

    def step(self, action):
        Clock.stepped += 1
        if self.fault == "step":
            raise ValueError("the spring broke")
        self.time += self.pace
        return self._show(), 0.0, self.time > 30, False, {}

    def _show(self):
        if self.fault == "reset":
            raise ValueError("the spring broke")
        return np.full(2, self.offset + self.time).astype(self.observation_space.dtype)


def resolved(env, **options) -> str:
    asked = resolve_env(EnvConfig(id="clock", **options), env)
    made = make_group_env(asked, 1)
    found = with_observation_dtype(asked, made.spaces)
    made.close()
    return found.config.observation_dtype


@pytest.mark.parametrize(
    ("offset", "pace", "dtype", "expected"),
    [
        (1.7e9, 1.0, np.float64, "float64"),
        (-1.7e9, 1.0, np.float64, "float64"),
        (5e6, 1.0, np.float64, "float64"),
        (5e6, 1e3, np.float64, "float32"),  # changes by much
        (1e3, 1.0, np.float64, "float32"),
        (0.0, 1e9, np.float64, "float32"),
        (1.7e9, 1.0, np.float32, "float32"),  # what is lost is lost
        (1.7e9, 1.0, np.int64, "float32"),
    ],
)
def test_auto_keeps_float64_where_float32_loses_differences(offset, pace, dtype, expected):
    env = partial(Clock, offset, pace, dtype)
    assert resolved(env) == resolved(env) == resolved(env, frame_stack=2) == expected
    assert resolved(env, observation_dtype="float64") == "float64"
    assert resolved(env, observation_dtype="float32") == "float32"


@pytest.mark.parametrize(("offset", "dtype"), [(1.7e9, np.float64), (5.0, np.float32)])
def test_make_vector_env_finds_the_dtype(offset, dtype):
    made = []

    class Watched(Clock):
        def __init__(self) -> None:
            super().__init__(offset)
            made.append(self)

        def close(self) -> None:
            made.remove(self)

    env = make_vector_env(Watched, 2, observation_dtype="auto")
    assert env.spaces.observation.dtype == dtype
    assert len(made) == 2  # those of the other dtype are closed
    env.close()


def test_asking_is_cheap_and_leaves_no_trace():
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    Clock.made = Clock.stepped = 0
    assert resolved(partial(Clock, 1.7e9)) == "float64"
    assert (Clock.made, Clock.stepped) == (2, 64 - 64 // 32)  # the second is the one asked
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    Clock.made = Clock.stepped = 0
    assert resolved(partial(Clock, 5.0)) == "float32"
    assert (Clock.made, Clock.stepped) == (2, 0)
    Clock.made = 0
    assert resolved(partial(Clock, 5.0, 1.0, np.float32)) == "float32"
    assert Clock.made == 1


@pytest.mark.parametrize("fault", ["reset", "step"])
def test_a_fault_while_asking_is_left_to_the_run(fault):
    assert resolved(partial(Clock, fault=fault)) == "float32"


def test_a_given_vector_environment_is_not_touched_before_the_run():
    class Ours(gymnasium.vector.SyncVectorEnv):
        """Not a plain one, of which others are made."""

        def reset(self, **options):
            raise AssertionError("it was reset")

    env = Ours([Clock] * 2)
    found = with_observation_dtype(resolve_env(EnvConfig(id="x", num_streams=2), env), _of(env))
    assert found.config.observation_dtype == "float32"


def _of(env):
    made = make_group_env(resolve_env(EnvConfig(id="x", num_streams=2), env), 2)
    return made.spaces


def _single(make):
    return make


def _vector(make):
    return lambda num_envs: gymnasium.vector.SyncVectorEnv([make] * num_envs)


def _same_step(make):
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return lambda num_envs: gymnasium.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=mode)


@pytest.mark.parametrize("form", [_single, _vector, _same_step])
@pytest.mark.parametrize("stack", [1, 2])
def test_rows_hold_what_the_environment_gave(form, stack):
    options = {"observation_dtype": "float64", "frame_stack": stack}
    env = make_group_env(resolve_env(EnvConfig(id="clock", **options), form(Clock)), 2)
    row = allocate_row(env.spaces.observation, 2)
    assert row.obs["obs"].dtype == np.float64
    env.restart([1, 2], row.obs)
    for _ in range(70):
        before, ended = row.obs["obs"].copy(), row.terminated | row.truncated
        env.send(np.zeros(2, np.int64))
        env.recv(row)
        newest, last = (x if stack == 1 else x[:, -1] for x in (row.obs["obs"], before))
        going = ~ended & row.valid
        np.testing.assert_array_equal((newest - last)[going], 1.0)
        assert (newest < 1.7e9 + 33).all()
        assert (newest >= 1.7e9).all()
    env.close()


def test_masks_and_integers_stay_as_they_are():
    box = partial(spaces.Box, 0, 1, (2,))
    space = spaces.Dict(action_mask=box(np.float64), a=box(np.float64), b=box(np.float32),
                        c=spaces.Box(0, 9, (2,), np.int64))  # fmt: skip
    assert float64_leaves(space) == {"a"}


@pytest.mark.parametrize(
    ("dtype", "normalized", "cure"),
    [
        ("float32", True, "use env.observation_dtype=float64, so that"),
        ("float32", False, "use normalize_observations=true and env.observation_dtype=float64"),
        ("float64", False, "use normalize_observations=true, so that"),
        ("float64", True, None),
    ],
)
def test_what_is_lost_names_its_cure(dtype, normalized, cure):
    env = make_group_env(resolve_env(EnvConfig(id="c", observation_dtype=dtype), Clock), 1)
    low = np.full(2, 1.7e9).astype(dtype)
    told = coarse("obs", low, low + low.dtype.type(3), env.spaces, normalized=normalized)
    env.close()
    assert told is None if cure is None else cure in told


def test_no_cure_is_named_where_none_helps():
    env = make_group_env(resolve_env(EnvConfig(id="c"), partial(Clock, dtype=np.int64)), 1)
    low = np.full(2, 1_700_000_000)
    told = coarse("obs", low, low + 3, env.spaces, normalized=False)
    assert told is not None
    assert "; subtract a fixed offset" in told
    env.close()
