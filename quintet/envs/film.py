"""Makes environments that can be filmed.

The first of these that returns a picture is filmed:

1. The environment itself. Backends in C++ draw by themselves, if at all; environments in Python
   draw with ``render_mode="rgb_array"``, which their makers are given if they take it.
2. Its twin in Gymnasium, if a fast backend can't draw: the same id, or its nearest version, with
   the same options if it is an Atari game. A twin must have the same spaces.
3. A picture in the observation, the newest of a stack.
"""

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from quintet.envs.atari import AtariConfig
from quintet.envs.backends import BACKENDS
from quintet.envs.env_source import GIVEN
from quintet.envs.ids import nearest_version
from quintet.envs.make import make_group_env
from quintet.envs.owners import made_for
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.vector import CannotRender, ObsArrays, VectorEnv, allocate_obs
from quintet.errors import ConfigError, EnvironmentFault, QuintetError
from quintet.spaces import Space, observation_leaves
from quintet.system import forks
from quintet.system.signals import STOPS
from quintet.system.user_code import described, raised

Check = Callable[[VectorEnv], None]

STEPS_PER_S = 30.0
"""Steps per second of environments that don't declare them."""

_SMALLEST = 8  # least height and width of a uint8 array that counts as a picture
_SAYS_OPENGL = re.compile("opengl|glfw|glx|libgl|egl|osmesa|mjr_", re.IGNORECASE)
_OPENGL = (
    "MuJoCo draws with OpenGL, which needs a driver even without a display; on Debian or Ubuntu: "
    "apt install libegl1 libgl1-mesa-dri"
)


@final
@dataclass(frozen=True)
class FilmedEnv:
    """An environment whose stream 0 is filmed.

    steps_per_s: steps per second at the right speed.
    remark: how it differs from the evaluated environment, for messages; empty if the environment
        draws itself.
    seen: the observation leaf that is filmed; None: the environment is drawn.
    stacked: whether that leaf is a stack of frames made by quintet.
    """

    env: VectorEnv
    steps_per_s: float
    remark: str = ""
    seen: str | None = None
    stacked: bool = False

    def picture(self, obs: ObsArrays) -> NDArray[np.uint8]:
        """Stream 0 as it looks now, ``[H, W, 3]``; raises EnvironmentFault if it can't be drawn.

        obs: the observations that the last `restart` or `recv` of `env` wrote.
        """
        if self.seen is not None:
            return _observed_picture(obs[self.seen][0], self.stacked)
        try:
            with _quiet(), forks.kept_out(self.env.description.id):
                return _rgb(self.env.render(0).picture)
        except STOPS:
            raise
        except BaseException as error:
            about = self.env.description
            raise EnvironmentFault(
                f"{about.id} ({about.backend}) must draw a picture after every step of a video, "
                f"got none: {_why(error)}; mend its render(), or leave the video out"
            ) from error


def make_filmed_env(env: ResolvedEnv, seed: int, check: Check) -> FilmedEnv:
    """Makes the environment that is filmed, and tests whether it returns a picture.

    Args:
        seed: seed of stream 0; the others follow.
        check: raises ConfigError if a twin's spaces differ from the policy's.

    Raises:
        ConfigError: it can't be filmed; the message has the reason for each way.
    """
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        # MuJoCo tries a window first, which fails only when it draws.
        os.environ.setdefault("MUJOCO_GL", "egl")
    faults: list[str] = []
    for candidate in filter(None, (env, _twin(env))):
        try:
            with _quiet(), made_for("a video"):
                made, rate = _drawn(candidate, seed, check)
            return FilmedEnv(made, rate, f"in its place, since {faults[0]}" if faults else "")
        except STOPS:
            raise
        except BaseException as error:
            name = f"{candidate.config.id} ({candidate.config.backend})"
            faults.append(f"{name} can't be drawn: {_why(error)}")
    filmed = _observed(env)
    if filmed is not None:
        return filmed
    opengl = f"; {_OPENGL}" if _SAYS_OPENGL.search("; ".join(faults)) else ""
    raise ConfigError(
        "the environment of a video must draw itself or have a uint8 picture in its observation, "
        f"got neither: {'; '.join(faults)}{opengl}; give it a render() that returns [H, W, 3] "
        "uint8 with render_mode 'rgb_array', or leave the video out"
    )


def _drawn(env: ResolvedEnv, seed: int, check: Check) -> tuple[VectorEnv, float]:
    """An environment that has drawn a picture, and its steps per second; raises its errors."""
    num_streams, faults = env.streams_of(1), list[BaseException]()
    for kwargs in _arguments(env):
        try:
            made = make_group_env(env.with_options({"kwargs": kwargs}), num_streams, drawn=True)
            with ExitStack() as failed:
                failed.callback(made.close)
                check(made)
                seeds = [seed + i for i in range(num_streams)]
                made.restart(seeds, allocate_obs(made.spaces.observation, (num_streams,)))
                rendered = made.render(0)
                _rgb(rendered.picture)
                failed.pop_all()
            return made, rendered.steps_per_s or STEPS_PER_S
        except STOPS:
            raise
        except BaseException as error:
            faults.append(error)
    raise faults[-1]


def _arguments(env: ResolvedEnv) -> list[dict[str, Any]]:
    """Arguments to try with the environment's maker: with ``render_mode`` if it may take that."""
    kwargs, source = env.config.kwargs, env.source
    plain = [dict(kwargs)]
    drawn = [kwargs | {"render_mode": "rgb_array"}, *plain]
    if source is None:
        return drawn if env.backend.in_python else plain
    if isinstance(source, GIVEN):
        return plain
    try:
        parameters = inspect.signature(source).parameters
    except (TypeError, ValueError):  # some built-in callables don't tell
        return plain
    any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return drawn if any_name or "render_mode" in parameters else plain


def _twin(env: ResolvedEnv) -> ResolvedEnv | None:
    """The environment of the same name in Gymnasium; None if there is none."""
    config = env.config
    if env.backend.in_python:
        return None
    kwargs = dict(config.kwargs)
    if env.atari is not None:
        kwargs = {name: x for name, x in kwargs.items() if name in AtariConfig.model_fields}
    known = BACKENDS.find("gymnasium").knows(config.id)
    twin_id = config.id if known else nearest_version(config.id, gymnasium.registry)
    if twin_id is None:
        return None
    twin = config.model_copy(update={"id": twin_id, "backend": "gymnasium", "kwargs": kwargs})
    return resolve_env(twin)


def _observed(env: ResolvedEnv) -> FilmedEnv | None:
    """The environment as the policy sees it; None if its observation holds no picture."""
    made, stacked = make_group_env(env, env.streams_of(1)), env.config.frame_stack > 1
    for path, leaf in observation_leaves(made.spaces.observation).items():
        if _is_picture(leaf, stacked):
            remark = f"its observation {path!r}, since it draws nothing itself"
            repeat = made.description.action_repeat
            rate = 60.0 / repeat if repeat > 1 else STEPS_PER_S
            return FilmedEnv(made, rate, remark, path, stacked)
    made.close()
    return None


def _is_picture(leaf: Space, stacked: bool) -> bool:
    dims = len(leaf.shape or ()) - stacked
    if not isinstance(leaf, spaces.Box) or leaf.dtype != np.uint8 or dims not in (2, 3, 4):
        return False
    picture = _observed_picture(np.zeros(leaf.shape, np.uint8), stacked)
    return bool(min(picture.shape[:2]) >= _SMALLEST)


def _observed_picture(x: NDArray[Any], stacked: bool) -> NDArray[np.uint8]:
    """An observed picture as ``[H, W, 3]``, by the encoders' rule: channels are last if the last
    axis is at most 4, else first; a further axis is a stack.
    """
    x = x[-1] if stacked else x
    x = x[-1] if x.ndim == 4 else x
    if x.ndim == 3 and x.shape[-1] > 4:
        x = np.moveaxis(x, 0, -1)
    if x.ndim == 3 and x.shape[-1] not in (1, 3):
        x = x[..., -1]  # grey frames, stacked
    return _rgb(x)


def _rgb(picture: Any) -> NDArray[np.uint8]:
    """A picture, perhaps grey or with transparency, as ``[H, W, 3]``; raises CannotRender."""
    if isinstance(picture, list) and picture:  # render_mode "rgb_array_list": all since the last
        picture = picture[-1]
    if not isinstance(picture, np.ndarray):
        raise CannotRender(f"render() gave {picture!r:.60}, not an array")
    if picture.dtype != np.uint8:
        raise CannotRender(f"render() gave {picture.dtype}, not uint8")
    grey = picture[..., None] if picture.ndim == 2 else picture
    if grey.ndim != 3 or grey.shape[-1] not in (1, 3, 4) or 0 in grey.shape:
        raise CannotRender(f"render() gave shape {picture.shape}, not [H, W, 3]")
    return np.array(np.broadcast_to(grey[..., :3], (*grey.shape[:2], 3)))  # a copy


def _why(error: BaseException) -> str:
    if isinstance(error, QuintetError | CannotRender):
        return str(error)
    return raised(error) if isinstance(error, SystemExit) else described(error)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides Gymnasium's warnings about missing render modes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*render.*")
        yield
