"""Atari: three backends, one preprocessing."""

import sys
from importlib import metadata

import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from envs_helpers import record
from gymnasium.vector import AutoresetMode

from quintet.envs.atari import AtariConfig
from quintet.envs.public import make_vector_env
from quintet.errors import ConfigError

BACKENDS = ("envpool", "ale", "gymnasium")

SAME_STEP = pytest.param(
    AutoresetMode.SAME_STEP,
    marks=pytest.mark.skipif(
        metadata.version("ale-py") == "0.12.0", reason="resets of some streams never end in it"
    ),
)


def play(game: str, backend: str, actions: np.ndarray, **kwargs):
    env = make_vector_env(
        game, actions.shape[1], backend=backend, kwargs={"noop_max": 1, **kwargs}, num_threads=1
    )
    assert env.description.backend == backend
    got = record(env, list(range(5, 5 + actions.shape[1])), actions)
    env.close()
    return env, got


def test_defaults_are_those_of_envpool():
    import envpool

    spec = envpool.make_spec("Pong-v5")
    theirs = dict(zip(spec._config_keys, spec._config_values, strict=True))
    assert {name: theirs[name] for name in AtariConfig.model_fields} == AtariConfig().model_dump()
    assert theirs["reward_clip"] is False
    assert (theirs["img_height"], theirs["img_width"], theirs["gray_scale"]) == (84, 84, True)


@pytest.mark.parametrize(
    ("game", "kwargs"),
    [
        pytest.param("Pong-v5", {"max_episode_steps": 70}, marks=pytest.mark.slow),
        ("ALE/Breakout-v5", {"stack_num": 2, "frame_skip": 3, "max_episode_steps": 150}),
        ("Breakout-v5", {"full_action_space": True}),
    ],
)
def test_backends_agree_bit_by_bit_from_the_same_start(game, kwargs):
    """Also over endings, at a time limit or with the last life."""
    n = 18 if "full_action_space" in kwargs else 4
    actions = np.random.default_rng(1).integers(0, n, (180, 1))
    if n == 18:
        actions[:] = 1  # FIRE alone loses every life
    results = {backend: play(game, backend, actions, **kwargs) for backend in BACKENDS}
    env, wanted = results["envpool"]
    repeat, stack = kwargs.get("frame_skip", 4), kwargs.get("stack_num", 4)
    assert env.spaces.observation.shape == (stack, 84, 84)
    assert env.spaces.action.n == (n if "full" in str(kwargs) else {"P": 6}.get(game[0], 4))
    assert (wanted.terminated | wanted.truncated).sum() >= 1
    assert (wanted.reward != 0).any() or n == 18
    for backend in ("ale", "gymnasium"):
        other, got = results[backend]
        assert other.spaces[:2] == env.spaces[:2]
        assert other.description.action_repeat == env.description.action_repeat == repeat
        for name in ("reward", "raw_reward", "terminated", "truncated", "valid"):
            np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name), err_msg=name)
        # Neither sees every frame of a step that ends an episode.
        blind = wanted.terminated if backend == "gymnasium" else wanted.truncated
        np.testing.assert_array_equal(got.obs["obs"][1:][~blind], wanted.obs["obs"][1:][~blind])
        differ = got.obs["obs"][1:][blind] != wanted.obs["obs"][1:][blind]
        assert differ.sum() <= 0.01 * differ.size
        np.testing.assert_array_equal(got.obs["obs"][0], wanted.obs["obs"][0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_sticky_actions_and_fire(backend):
    """What always sticks is no action at all, not even the FIRE at the start."""
    actions = np.full((24, 1), 2)

    def newest(action: int, **kwargs):
        return play("Breakout-v5", backend, actions * 0 + action, **kwargs)[1].obs["obs"][:, 0, -1]

    stuck, unlit = newest(2, repeat_action_probability=1.0), newest(0, use_fire_reset=False)
    np.testing.assert_array_equal(stuck[8:], np.broadcast_to(unlit[8], stuck[8:].shape))
    np.testing.assert_array_equal(unlit[8:], stuck[8:])
    ball = newest(0)
    assert (ball[8:] != unlit[8:]).any()
    assert (newest(2)[8:] != ball[8:]).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_lost_life_ends_the_episode_and_not_the_game(backend):
    actions = np.full((150, 1), 1)
    whole = play("Breakout-v5", backend, actions)[1]
    lives = play("Breakout-v5", backend, actions, episodic_life=True)[1]
    first = int(np.argmax(lives.terminated[:, 0]))
    assert 5 < first < 100
    assert not whole.terminated[: first + 1].any()
    np.testing.assert_array_equal(lives.reward[: first + 1], whole.reward[: first + 1])
    # The score and the lives that are left stand in the topmost rows.
    shown = lives.obs["obs"][:, 0, -1, :8]
    np.testing.assert_array_equal(shown[first + 6], whole.obs["obs"][first + 6, 0, -1, :8])
    assert (shown[first + 6] != shown[0]).any()
    assert lives.terminated.sum() > whole.terminated.sum()
    # Nobody presses FIRE here, yet the next ball comes, and is lost as well.
    idle = play("Breakout-v5", backend, actions * 0, episodic_life=True)[1]
    assert idle.terminated.sum() >= 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_rewards_are_scores_unless_clipped_for_learning(backend):
    actions = np.random.default_rng(0).integers(0, 9, (120, 1))
    got = play("MsPacman-v5", backend, actions)[1]
    assert got.reward.max() >= 10
    env = make_vector_env(
        "MsPacman-v5", 1, backend=backend, kwargs={"noop_max": 1}, reward_clip="abs_one"
    )
    clipped = record(env, [5], actions)
    env.close()
    assert clipped.reward.max() == 1
    np.testing.assert_array_equal(clipped.raw_reward, got.raw_reward)


def test_restart_of_ale_gives_the_same_bytes_for_the_same_seeds():
    env = make_vector_env("Pong-v5", 2, backend="ale", kwargs={"repeat_action_probability": 0.25})
    actions = np.random.default_rng(0).integers(0, 6, (60, 2))
    first = record(env, [1, 2], actions)
    other = record(env, [3, 4], actions)
    env.send(actions[0])
    again = record(env, [1, 2], actions)
    assert first.as_bytes() == again.as_bytes() != other.as_bytes()
    moved = record(env, [2, 1], actions[:, ::-1])
    np.testing.assert_array_equal(moved.obs["obs"][:, 0], first.obs["obs"][:, 1])
    env.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, SAME_STEP])
def test_an_instance_of_ales_vector_environment(mode):
    """The same frames as from the backend; with SAME_STEP too, until an episode is given up."""
    options = {"num_threads": 1, "noop_max": 1, "stack_num": 1, "reward_clipping": False}
    options |= {"max_num_frames_per_episode": 80, "autoreset_mode": mode}
    given = AtariVectorEnv("breakout", 2, **options)
    actions = np.random.default_rng(1).integers(0, 4, (60, 2))
    env = make_vector_env(given)
    got = record(env, [5, 6], actions)
    assert env.num_streams == 2
    own = play("Breakout-v5", "ale", actions, stack_num=1, max_episode_steps=20)[1]
    assert own.truncated.sum() == 4
    np.testing.assert_array_equal(got.obs["obs"], own.obs["obs"])
    for name in ("reward", "terminated", "truncated", "valid"):
        np.testing.assert_array_equal(getattr(got, name), getattr(own, name), err_msg=name)
    env.close()
    given.reset()  # it is the caller's, and was not closed


@pytest.mark.parametrize("mode", [SAME_STEP])
def test_ale_that_gives_up_episodes_keeps_the_others(mode):
    """Lives are lost at different times, so a stream is reset while the other one plays on."""
    options = {"num_threads": 1, "noop_max": 1, "stack_num": 1, "reward_clipping": False}
    options |= {"episodic_life": True, "autoreset_mode": mode}
    env = make_vector_env(AtariVectorEnv("breakout", 2, **options))
    actions = np.stack([np.full(150, 1), np.random.default_rng(1).integers(0, 4, 150)], 1)
    got = record(env, [5, 6], actions)
    ended = got.terminated | got.truncated
    assert (ended[:, 0] != ended[:, 1]).any()
    np.testing.assert_array_equal(got.valid[1:], ~ended[:-1])
    assert not (got.reward[~got.valid]).any()


def test_resets_of_some_streams_that_never_end_are_refused(monkeypatch):
    """As in ale-py 0.12.0."""
    monkeypatch.setattr(metadata, "version", lambda name: "0.12.0")
    given = AtariVectorEnv("breakout", 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ConfigError, match=r"must have .*NEXT_STEP, got SAME_STEP: install ale-py"):
        make_vector_env(given)
    for mode, streams in ((AutoresetMode.NEXT_STEP, 2), (AutoresetMode.SAME_STEP, 1)):
        make_vector_env(AtariVectorEnv("breakout", streams, autoreset_mode=mode)).close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_options_are_told(backend):
    def refused(match: str, **kwargs):
        with pytest.raises(ConfigError, match=match):
            make_vector_env("Pong-v5", 2, backend=backend, **kwargs)

    # EnvPool would end the process at the first reset.
    refused("noop_max: .* got 0", kwargs={"noop_max": 0})
    refused("repeat_action_probability", kwargs={"repeat_action_probability": 1.5})
    refused("did you mean .*'frame_skip'", kwargs={"frameskip": 4})
    refused("already stacks 4 frames", frame_stack=4)


def test_opencv_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ConfigError, match=r'opencv.*run: pip install "quintet-rl\[atari\]"'):
        make_vector_env("Pong-v5", 1, backend="gymnasium")


def test_the_bare_environment_is_still_there():
    env = make_vector_env("ale_py:ALE/Pong-v5", 1)
    assert env.spaces.observation.shape == (210, 160, 3)
    env.close()
    assert "ALE/Pong-v5" in gymnasium.registry
    with pytest.raises(
        ConfigError, match="backend 'ale' knows; got 'Pung-v5'; nearest are ALE/Pong-v5"
    ):
        make_vector_env("Pung-v5", 1, backend="ale")
