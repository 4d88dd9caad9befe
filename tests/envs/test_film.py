"""What is filmed: the environment itself, its twin, or its observation; and what is said of it."""

import ctypes
import importlib
import os
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from quintet.envs import envpool, envpool_library, film
from quintet.envs.config import EnvConfig
from quintet.envs.env_source import settle
from quintet.envs.film import make_filmed_env
from quintet.envs.ids import nearest_version
from quintet.envs.resolved import resolve_env
from quintet.envs.vector import allocate_row
from quintet.errors import ConfigError, EnvironmentFault


class Drawn(gymnasium.Env):
    """Draws its step in grey; `says` is its render_mode."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}

    def __init__(self, render_mode: str | None = None, shape=(9, 9), **space) -> None:
        self.observation_space = space.get("space", spaces.Box(-1, 1, (1,), np.float32))
        self.action_space = spaces.Discrete(2)
        self.render_mode, self.shape = render_mode, shape

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action):
        self.count += 1
        return self._obs(), 1.0, self.count == 5, False, {}

    def _obs(self):
        space = self.observation_space
        return np.full(space.shape, self.count if space.dtype == np.uint8 else 0, space.dtype)

    def render(self):
        if self.render_mode == "rgb_array":
            return np.full((*self.shape, 3), 10 * self.count, np.uint8)
        return None


class Always(Drawn):
    """Knows no render modes."""

    metadata = {}

    def __init__(self, picture=None) -> None:
        super().__init__()
        self.picture = np.zeros((9, 9, 3), np.uint8) if picture is None else picture

    def render(self):
        if isinstance(self.picture, Exception):
            raise self.picture
        return self.picture


def filmed(env, check=lambda _: None, **config):
    says, source = settle(env)
    return make_filmed_env(resolve_env(EnvConfig(**(says | config)), source), 5, check)


def play(made, steps):
    """Restarts and takes steps with action 0; the picture after each."""
    env = made.env
    row = allocate_row(env.spaces.observation, env.num_streams)
    env.restart(list(range(env.num_streams)), row.obs)
    pictures = [made.picture(row.obs)]
    action = np.zeros((env.num_streams, *(env.spaces.action.shape or ())), np.int64)
    for _ in range(steps):
        env.send(action)
        env.recv(row)
        pictures.append(made.picture(row.obs))
    env.close()
    return pictures


def strict():
    """Takes no render_mode, and its environment has one."""
    return Drawn()


def anything(**kwargs):
    return Drawn(**kwargs)


def refuses(render_mode="other"):
    if render_mode == "rgb_array":
        raise TypeError("no such thing")
    return Drawn("rgb_array")


@pytest.mark.parametrize(
    "env",
    [
        *(Drawn, strict, anything, refuses, partial(Drawn, shape=(9, 9)), f"{__name__}:Drawn"),
        gymnasium.vector.SyncVectorEnv([Drawn] * 2),
        gymnasium.vector.SyncVectorEnv(
            [partial(Drawn, "rgb_array")] * 2, observation_mode="different"
        ),
    ],
    ids=("class", "strict", "anything", "refuses", "partial", "import string", "sync", "different"),
)
def test_environments_in_python_draw_themselves(env):
    made = filmed(env)
    assert (made.steps_per_s, made.remark) == (7.0, "")
    pictures = play(made, 5)
    assert [int(x.mean()) for x in pictures] == [0, 10, 20, 30, 40, 50]  # the final one too
    assert all(x.shape == (9, 9, 3) and x.dtype == np.uint8 for x in pictures)


def test_frame_stacks_and_vector_makers_are_drawn():
    def several(num_envs, render_mode=None):
        makers = [partial(Drawn, render_mode)] * num_envs
        return gymnasium.vector.AsyncVectorEnv(makers) if num_envs > 9 else Sync(makers)

    class Sync(gymnasium.vector.SyncVectorEnv):
        """Not plain, so it is stepped as a whole."""

    assert [int(x.mean()) for x in play(filmed(several), 2)] == [0, 10, 20]
    assert [int(x.mean()) for x in play(filmed(Drawn, frame_stack=3), 2)] == [0, 10, 20]


def test_render_mode_of_the_configuration_gives_way():
    assert [int(x.mean()) for x in play(filmed(Drawn, kwargs={"render_mode": "human"}), 1)] == [
        0,
        10,
    ]


@pytest.mark.parametrize(
    ("given", "shape"), [((5, 6), (5, 6, 3)), ((5, 6, 1), (5, 6, 3)), ((5, 6, 4), (5, 6, 3))]
)
def test_grey_and_transparent_pictures(given, shape):
    picture = np.full(given, 9, np.uint8)
    if given[-1] == 4:
        picture[..., 3] = 77
    made = filmed(partial(Always, picture))
    assert made.steps_per_s == film.STEPS_PER_S  # it doesn't say
    got = play(made, 0)[0]
    assert got.shape == shape
    assert (got == 9).all()


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        ("text", r"render\(\) gave 'text', not an array"),
        (np.zeros((5, 5, 3)), r"render\(\) gave float64, not uint8"),
        (np.zeros((5, 5, 2), np.uint8), r"gave shape \(5, 5, 2\), not \[H, W, 3\]"),
        (ValueError("no brush"), r"Always>? \(gymnasium\) can't be drawn: ValueError: no brush"),
    ],
)
def test_what_can_not_be_filmed_is_told(picture, says):
    with pytest.raises(ConfigError, match=says) as caught:
        filmed(partial(Always, picture))
    assert "the environment of a video must draw itself or have a uint8" in str(caught.value)
    assert "give it a render() that returns [H, W, 3] uint8" in str(caught.value)
    assert "OpenGL" not in str(caught.value)


def test_a_missing_opengl_is_told_with_the_way_out():
    with pytest.raises(
        ConfigError, match=r"failed to initialize EGL; MuJoCo .*apt install libegl1"
    ):
        filmed(partial(Always, RuntimeError("failed to initialize EGL")))


def test_an_environment_that_stops_drawing_is_a_fault():
    class Stops(Always):
        def render(self):
            return self.picture if self.count < 2 else None

    with pytest.raises(
        EnvironmentFault,
        match=r"picture after every step of a video, got none: .*gave None, not an array",
    ):
        play(filmed(Stops), 3)


@pytest.mark.parametrize(
    ("shape", "stack"),
    [((12, 10), 1), ((12, 10), 3), ((12, 10, 1), 1), ((12, 10, 3), 3), ((3, 12, 10), 1)],
)
def test_pictures_in_the_observation_are_filmed_where_nothing_draws(shape, stack):
    class Seen(Drawn):
        metadata = {}

        def render(self):
            return None

    made = filmed(partial(Seen, space=spaces.Box(0, 255, shape, np.uint8)), frame_stack=stack)
    assert made.remark == "its observation 'obs', since it draws nothing itself"
    pictures = play(made, 3)
    assert [int(x.mean()) for x in pictures] == [0, 1, 2, 3]  # the newest of the stack
    assert all(x.shape == (12, 10, 3) for x in pictures)


def test_grey_frames_before_the_encoders_axes():
    """EnvPool's Atari and others give stacks of grey frames as ``[4, H, W]``."""
    stack = np.stack([np.full((12, 10), x, np.uint8) for x in (1, 2, 3, 4)])
    assert (film._observed_picture(stack, stacked=False) == 4).all()


def test_tiny_tables_are_no_pictures():
    class Table(Drawn):
        metadata = {}

        def render(self):
            return None

    with pytest.raises(ConfigError, match="the environment of a video must"):
        filmed(partial(Table, space=spaces.Box(0, 255, (3, 3), np.uint8)))


class TestEnvPool:
    """The fast backend draws most of its families; MuJoCo needs OpenGL, so it isn't asked here."""

    @pytest.mark.parametrize(
        ("env_id", "rate", "shape"),
        [
            ("CartPole-v1", 50.0, (400, 600, 3)),
            ("LunarLander-v3", 50.0, (400, 600, 3)),
            ("Pong-v5", 15.0, (210, 160, 3)),
            ("MiniGrid-Empty-5x5-v0", 10.0, (160, 160, 3)),
        ],
    )
    def test_it_draws_itself(self, env_id, rate, shape):
        made = filmed(env_id)
        assert (made.env.description.backend, made.remark) == ("envpool", "")
        assert made.steps_per_s == rate
        first, *_, last = play(made, 61)
        assert first.shape == shape
        assert (first != last).any()

    def test_a_twin_is_filmed_where_it_draws_nothing(self, monkeypatch):
        """Catch has no picture; here Gymnasium knows an environment of that name."""
        like = partial(Drawn, space=spaces.Box(0, 1, (10, 5), np.float32))
        monkeypatch.setitem(
            gymnasium.registry,
            "Catch-v3",
            gymnasium.envs.registration.EnvSpec("Catch-v3", like, max_episode_steps=9),
        )
        checked = []
        made = filmed("Catch-v0", check=checked.append)
        assert made.env.description.id == "Catch-v3"
        assert made.env.description.backend == "gymnasium"
        assert made.remark.startswith("in its place, since Catch-v0 (envpool) can't be drawn: ")
        assert made.env in checked
        assert [int(x.mean()) for x in play(made, 2)] == [0, 10, 20]

        def refuse(env):
            if env.description.backend == "gymnasium":
                raise ConfigError("other spaces")

        with pytest.raises(
            ConfigError, match=r"Catch-v3 \(gymnasium\) can't be drawn: other spaces"
        ):
            filmed("Catch-v0", check=refuse)

    def test_without_opengl_mujoco_is_not_asked(self, monkeypatch):
        """It would end the process."""

        def missing(*_, **__):
            raise OSError("libEGL.so.1: cannot open shared object file")

        envpool_library.load_opengl()
        importlib.import_module("envpool")
        load_opengl = envpool_library.load_opengl.__wrapped__
        monkeypatch.setattr(envpool, "load_opengl", load_opengl)
        monkeypatch.setattr(ctypes, "CDLL", missing)
        monkeypatch.setattr("sys.platform", "linux")
        monkeypatch.setenv("MUJOCO_GL", "disable")  # the twin draws nothing either
        with pytest.raises(ConfigError, match=r"imported before quintet could .*apt install"):
            filmed("HalfCheetah-v4")
        with monkeypatch.context() as context:
            context.delitem(sys.modules, "envpool")
            assert load_opengl().startswith("OpenGL could not be loaded (libEGL.so.1: can")


def test_nearest_versions():
    assert nearest_version("CartPole-v1", gymnasium.registry) == "CartPole-v1"
    assert nearest_version("LunarLander-v2", gymnasium.registry) == "LunarLander-v3"
    assert nearest_version("NoSuchThing-v0", gymnasium.registry) is None
    assert nearest_version("no version", gymnasium.registry) is None


def test_games_of_ale_are_filmed_by_a_single_one_of_ale_py():
    pytest.importorskip("ale_py")
    made = filmed("ALE/Pong-v5", backend="ale", kwargs={"frame_skip": 2, "stack_num": 2})
    assert made.env.description.backend == "gymnasium"
    assert made.env.spaces.observation.shape == (2, 84, 84)
    assert made.remark.endswith("ALE's vector environment can't draw")
    assert made.steps_per_s == 30.0
    first, *_, last = play(made, 61)
    assert first.shape == (210, 160, 3)
    assert (first != last).any()


def test_without_a_display_mujoco_gets_egl(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    filmed(Drawn).env.close()
    assert os.environ["MUJOCO_GL"] == "egl"
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    filmed(Drawn).env.close()
    assert os.environ["MUJOCO_GL"] == "osmesa"
