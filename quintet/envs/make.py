"""From a name or a callable to a vector environment."""

import difflib
import fnmatch
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium
from pydantic import ValidationError

from quintet.envs import envpool
from quintet.envs.config import Backend, EnvConfig, RewardClip
from quintet.envs.envpool import EnvPoolVectorEnv
from quintet.envs.gymnasium import GymnasiumVectorEnv
from quintet.envs.vector import VectorEnv
from quintet.envs.wrappers import ClipReward, FrameStack
from quintet.errors import ConfigError

MakeEnv = Callable[..., gymnasium.Env]


def make_vector_env(
    env: str | MakeEnv,
    num_streams: int = 8,
    *,
    backend: Backend = "auto",
    kwargs: Mapping[str, Any] | None = None,
    frame_stack: int = 1,
    reward_clip: RewardClip = "none",
    num_threads: int | None = None,
) -> VectorEnv:
    """Makes `num_streams` environments that step together; `restart(seeds, out)` begins.

    Args:
        env: an id, an import string ``"pkg.module:make_env"``, or a callable that makes one
            Gymnasium environment; the last two are given `kwargs`.

    Raises:
        ConfigError: an option is out of range, nothing has that id, or a package is missing.
    """
    try:
        config = EnvConfig(
            id=env if isinstance(env, str) else _name_of(env),
            backend=backend,
            kwargs=dict(kwargs or {}),
            num_streams=num_streams,
            frame_stack=frame_stack,
            reward_clip=reward_clip,
            num_threads=num_threads,
        )
    except ValidationError as error:
        faults = "; ".join(f"{e['loc'][0]}: {e['msg']}, got {e['input']!r}" for e in error.errors())
        raise ConfigError(f"make_vector_env can't use these options: {faults}") from error
    return make_group_env(config, num_streams, None if isinstance(env, str) else env)


def make_group_env(
    config: EnvConfig,
    num_streams: int,
    make_env: MakeEnv | None = None,
    *,
    first_stream: int = 0,
) -> VectorEnv:
    """Makes the environments of one group.

    Args:
        num_streams: streams of this group, whatever `config.num_streams` says of the run.
        make_env: makes one environment from `config.kwargs`; then `config.id` is only a name.
        first_stream: number in the run of the group's first stream, for error messages.
    """
    env = _make_base(config, num_streams, make_env, first_stream)
    if config.frame_stack > 1:
        env = FrameStack(env, config.frame_stack)
    if config.reward_clip != "none":
        env = ClipReward(env, config.reward_clip)
    return env


def resolve_backend(env_id: str, backend: str = "auto") -> Literal["envpool", "gymnasium"]:
    """Who will implement an id: EnvPool where it is installed and knows the id, else Gymnasium.

    Raises:
        ConfigError: nobody knows the id (with the nearest names), or the backend is missing.
    """
    if ":" in env_id:
        if backend == "envpool":
            raise ConfigError(
                f"backend 'envpool' needs one of EnvPool's ids; got the import string {env_id!r}; "
                f"use backend 'gymnasium'"
            )
        return "gymnasium"
    if backend == "envpool" and not envpool.is_installed():
        raise ConfigError(
            f"env.backend 'envpool' needs EnvPool, which is not installed; run: "
            f"{envpool.INSTALL_LINE}"
        )
    in_envpool = backend != "gymnasium" and env_id in envpool.list_ids()
    if in_envpool:
        return "envpool"
    if backend != "envpool" and env_id in gymnasium.registry:
        return "gymnasium"
    raise _unknown_id(env_id, backend)


def list_envs(pattern: str = "") -> list[tuple[str, str]]:
    """Every ``(id, backend)`` whose id contains `pattern`, or matches its ``*``, ``?`` and ``[]``.

    Upper and lower case are the same. An id that two backends have comes twice, EnvPool first.
    """
    wanted = pattern.lower()
    if not any(sign in wanted for sign in "*?["):
        wanted = f"*{wanted}*"
    pairs = [(env_id, "envpool") for env_id in envpool.list_ids()]
    pairs += [(env_id, "gymnasium") for env_id in gymnasium.registry]
    return sorted(pair for pair in pairs if fnmatch.fnmatchcase(pair[0].lower(), wanted))


def _make_base(
    config: EnvConfig, num_streams: int, make_env: MakeEnv | None, first_stream: int
) -> VectorEnv:
    if make_env is None and resolve_backend(config.id, config.backend) == "envpool":
        pool = EnvPoolVectorEnv(
            config.id, num_streams, kwargs=config.kwargs, num_threads=config.num_threads
        )
        if config.frame_stack > 1 and pool.stacked_frames > 1:
            raise ConfigError(
                f"{config.id} (envpool) already stacks {pool.stacked_frames} frames; leave "
                f"frame_stack at 1 and set kwargs.stack_num, or set kwargs.stack_num to 1"
            )
        return pool
    maker = make_env if make_env is not None else _find_maker(config.id)
    return GymnasiumVectorEnv(
        partial(_make_one, maker, config.id, config.kwargs),
        num_streams,
        env_id=config.id,
        first_stream=first_stream,
    )


def _make_one(maker: MakeEnv, env_id: str, kwargs: Mapping[str, Any]) -> gymnasium.Env:
    """One environment; what goes wrong is told with the way out."""
    try:
        return maker(**kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            f"{env_id} (gymnasium) needs a package that is not installed: {error}; "
            f"run: {_install_line(env_id)}"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"{env_id} (gymnasium) must be made with env.kwargs {dict(kwargs)}; it raised "
            f"{type(error).__name__}: {error}; correct env.kwargs or the environment"
        ) from error


def _find_maker(name: str) -> MakeEnv:
    """What makes the environments of a Gymnasium id, ``"module:Id-v0"`` or an import string."""
    module_name, colon, attribute = name.partition(":")
    if colon:
        module = _import(module_name, name)
        if hasattr(module, attribute):
            maker: MakeEnv = getattr(module, attribute)
            if not callable(maker):
                raise ConfigError(
                    f"{name!r} must name a function or class that makes an environment; "
                    f"got {maker!r}; correct the name"
                )
            return maker
        if attribute not in gymnasium.registry:  # importing the module may have registered it
            near = difflib.get_close_matches(attribute, dir(module), n=3, cutoff=0.5)
            raise ConfigError(
                f"{name!r} must name something in module {module_name!r} or an id that it "
                f"registers; found neither; {f'did you mean {near}?' if near else 'correct it'}"
            )
        name = attribute
    # Its checker repeats at every step what the adapter checks more cheaply.
    return partial(gymnasium.make, name, disable_env_checker=True)


def _import(module_name: str, name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if error.name != module_name.partition(".")[0] or here in sys.path:
            raise _no_module(module_name, name, error) from error
    sys.path.append(here)  # a console script doesn't look into the working folder by itself
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise _no_module(module_name, name, error) from error


def _no_module(module_name: str, name: str, error: ModuleNotFoundError) -> ConfigError:
    return ConfigError(
        f"{name!r} needs module {module_name!r}, which can't be imported: {error}; start in the "
        f"folder that holds it, install it, or correct the name"
    )


def _unknown_id(env_id: str, backend: str) -> ConfigError:
    names: dict[str, str] = {}
    if backend != "envpool":
        names |= {known.lower(): known for known in gymnasium.registry}
    if backend != "gymnasium":
        names |= {known.lower(): known for known in envpool.list_ids()}
    near = [names[hit] for hit in difflib.get_close_matches(env_id.lower(), names, n=5)]
    parts = [f"env must be an id that backend {backend!r} knows; got {env_id!r}"]
    parts.append(f"nearest are {', '.join(near)}" if near else "nothing is near")
    if backend == "auto" and not envpool.is_installed():
        parts.append(f"EnvPool, not installed, has 1600 more: {envpool.INSTALL_LINE}")
    if env_id.startswith("ALE/"):
        parts.append(f"or run: pip install ale-py, and write 'ale_py:{env_id}'")
    parts.append("see them all with: quintet envs")
    return ConfigError("; ".join(parts))


def _install_line(env_id: str) -> str:
    """What to install for a Gymnasium id whose package is missing."""
    spec = gymnasium.registry.get(env_id.partition(":")[2] or env_id)
    entry = str(spec.entry_point) if spec is not None else ""
    for extra in ("mujoco", "box2d"):
        if extra in entry:
            return f'pip install "quintet[{extra}]"'
    for extra in ("classic_control", "toy_text"):
        if extra in entry:
            return f'pip install "gymnasium[{extra.replace("_", "-")}]"'
    return "the installation that the environment's own documentation names"


def _name_of(make_env: MakeEnv) -> str:
    module = getattr(make_env, "__module__", None)
    name = getattr(make_env, "__qualname__", None)
    return f"{module}:{name}" if module and name else repr(make_env)
