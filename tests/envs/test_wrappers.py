"""Frame stacks and reward clipping."""

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from envs_helpers import Custom, record
from gymnasium import spaces
from scripted_helpers import Scripted

from quintet.envs.public import make_vector_env
from quintet.envs.wrappers import clip_reward
from quintet.errors import ConfigError

GOLDEN = Path(__file__).parents[1] / "golden" / "returns.json"


def test_frame_stack_equals_gymnasiums():
    """Stream 0 over several episodes, against Gymnasium's own wrapper reset at the same rows."""
    k = 3
    env = make_vector_env("CartPole-v1", 2, backend="gymnasium", frame_stack=k)
    actions = np.random.default_rng(0).integers(0, 2, (120, 2))
    got = record(env, [1, 2], actions)
    plain = gymnasium.wrappers.FrameStackObservation(gymnasium.make("CartPole-v1"), k)
    expected, over = [plain.reset(seed=1)[0]], False
    for action in actions[:, 0]:
        if over:
            obs, over = plain.reset()[0], False
        else:
            obs, _, terminated, truncated, _ = plain.step(action)
            over = terminated or truncated
        expected.append(obs)
    assert (~got.valid[:, 0]).sum() >= 3
    np.testing.assert_array_equal(got.obs["obs"][:, 0], np.stack(expected))
    assert env.spaces.observation == plain.observation_space


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_no_stack_spans_two_episodes(backend):
    k = 4
    bare = make_vector_env("CartPole-v1", 3, backend=backend)
    env = make_vector_env("CartPole-v1", 3, backend=backend, frame_stack=k)
    actions = np.random.default_rng(0).integers(0, 2, (100, 3))
    for seeds in ([1, 2, 3], [4, 5, 6]):  # the second restart must forget the first
        plain = record(bare, seeds, actions)
        got = record(env, seeds, actions)
        for b in range(3):
            start = 0
            for t in range(101):
                if t > 0 and not plain.valid[t - 1, b]:
                    start = t
                rows = [max(start, t - k + 1 + i) for i in range(k)]
                np.testing.assert_array_equal(got.obs["obs"][t, b], plain.obs["obs"][rows, b])
        np.testing.assert_array_equal(got.valid, plain.valid)


def test_only_box_leaves_are_stacked_and_never_the_mask():
    space = spaces.Dict(
        {
            "action_mask": spaces.Box(0, 1, (2,), np.int8),
            "image": spaces.Box(0, 255, (4, 4), np.uint8),
            "kind": spaces.Discrete(3),
            "deep": spaces.Dict({"x": spaces.Box(-np.inf, np.inf, (), np.float64)}),
        }
    )
    value = {
        "action_mask": np.ones(2, np.int8),
        "image": np.full((4, 4), 9, np.uint8),
        "kind": 2,
        "deep": {"x": np.float64(0.5)},
    }
    env = make_vector_env(lambda: Custom(space, value), 2, frame_stack=3)
    got = record(env, [1, 2], np.zeros((2, 2), np.int64))
    shapes = {path: leaf.shape[2:] for path, leaf in got.obs.items()}
    assert shapes == {"action_mask": (2,), "deep/x": (3,), "image": (3, 4, 4), "kind": ()}
    declared = env.spaces.observation
    assert declared["image"].shape == (3, 4, 4)
    assert declared["image"].dtype == np.uint8
    assert declared["deep"]["x"].shape == (3,)
    assert declared["action_mask"].shape == (2,)
    assert (got.obs["image"] == 9).all()
    assert (got.obs["kind"] == 2).all()


def test_what_can_not_be_stacked_is_refused():
    make = lambda: Custom(spaces.Discrete(3), 2)  # noqa: E731
    with pytest.raises(ConfigError, match=r"frame_stack=3 must have a Box in"):
        make_vector_env(make, 2, frame_stack=3)
    make_vector_env(make, 2).close()


def test_reward_clipping_golden():
    cases = json.loads(GOLDEN.read_text())["cases"]
    (case,) = [case for case in cases if case["kind"] == "reward_clipping"]
    for kind, expected in case["expected"].items():
        for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-6)):
            reward = np.array(case["inputs"]["reward"], dtype)
            clip_reward(reward, kind)
            np.testing.assert_allclose(reward, expected, rtol=tolerance, atol=tolerance)


def test_clipping_leaves_the_raw_reward():
    """The second stream of rewards is 1, 2, 3, then the reset row's 0."""
    actions = np.zeros((4, 1), np.int64)
    got = record(make_vector_env(Scripted, 1, reward_clip="abs_one"), [1], actions)
    np.testing.assert_array_equal(got.raw_reward[:, 0], [1, 2, 3, 0])
    np.testing.assert_array_equal(got.reward[:, 0], [1, 1, 1, 0])
    soft = record(make_vector_env(Scripted, 1, reward_clip="soft_asymmetric"), [1], actions)
    np.testing.assert_array_equal(soft.raw_reward[:, 0], [1, 2, 3, 0])
    np.testing.assert_allclose(soft.reward[:, 0], 5 * np.tanh(soft.raw_reward[:, 0] / 5), rtol=1e-6)


def test_stacks_that_memory_has_no_room_for_are_refused(monkeypatch):
    monkeypatch.setattr("quintet.system.memory.free_bytes", lambda: 10_000.0)
    with pytest.raises(ConfigError, match=r"env.frame_stack=1000 of 4 streams must have"):
        make_vector_env("quintet.envs.toy:Target", 4, frame_stack=1000)
