"""From what a user gives - a name, a callable, a vector environment - to our vector environment."""

import difflib
import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

import gymnasium
from gymnasium.vector import VectorEnv as ForeignVectorEnv
from pydantic import ValidationError

from quintet.envs import ale, atari, envpool
from quintet.envs.adapted import AdaptedVectorEnv
from quintet.envs.config import Backend, EnvConfig, RewardClip
from quintet.envs.envpool import EnvPoolVectorEnv
from quintet.envs.given import EnvSource, GivenEnv, MakeEnv, is_plain_sync, makes_groups, settle
from quintet.envs.gymnasium import GymnasiumVectorEnv
from quintet.envs.ids import atari_rom, envpool_id, resolve_backend
from quintet.envs.info_mask import MaskFromInfo
from quintet.envs.success import key_of, read_rule
from quintet.envs.vector import VectorEnv
from quintet.envs.wrappers import ClipReward, FrameStack, ObserveLast, SuccessByReward
from quintet.errors import ConfigError
from quintet.spaces import observation_leaves
from quintet.system.blame import raised, traced
from quintet.system.importing import import_module
from quintet.types import ACTION_MASK


def make_vector_env(
    env: GivenEnv,
    num_streams: int | None = None,
    *,
    backend: Backend = "auto",
    kwargs: Mapping[str, Any] | None = None,
    frame_stack: int = 1,
    reward_clip: RewardClip = "none",
    success: str | None = None,
    observe_last: bool = False,
    mask_from_info: bool = False,
    num_threads: int | None = None,
) -> VectorEnv:
    """Makes `num_streams` environments that step together; `restart(seeds, out)` begins.

    Args:
        env: one of

            - an id, or an import string ``"pkg.module:make_env"`` of a callable;
            - a callable that makes one Gymnasium environment;
            - a callable with a parameter ``num_envs`` that makes a vector environment of so many:
              ``functools.partial(gymnasium.make_vec, "CartPole-v1")``;
            - a Gymnasium or ALE vector environment with any autoreset mode (what is lost with
              SAME_STEP and DISABLED: `quintet.envs.adapted`). It stays the caller's: it isn't
              closed, and restarts only reset it. A plain SyncVectorEnv is only read: its
              environments are made by its ``env_fns``;
            - a pool of EnvPool with ``env_type="gymnasium"``, which is only read: pools like
              it are made.

            Callables are given `kwargs`.
        num_streams: None: as many as a given vector environment has, else 8.

    Raises:
        ConfigError: an option is out of range, nothing has that id, or a package is missing.
    """
    options: dict[str, Any] = {
        "backend": backend,
        "kwargs": {} if kwargs is None else kwargs,
        "frame_stack": frame_stack,
        "reward_clip": reward_clip,
        "success": success,
        "observe_last": observe_last,
        "mask_from_info": mask_from_info,
        "num_threads": num_threads,
    }
    if num_streams is not None:
        options["num_streams"] = num_streams
    says, source = settle(env)
    defaults: dict[str, Any] = {"backend": "auto", "kwargs": {}, "num_threads": None}
    for name, value in says.items():
        if name in options and options[name] not in (value, defaults.get(name, value)):
            raise ConfigError(
                f"{name} must be left to the environment that is given, which says {value!r}; got "
                f"{options[name]!r}; leave it out"
            )
    try:
        config = EnvConfig(**(options | says))
    except ValidationError as error:
        faults = "; ".join(f"{e['loc'][0]}: {e['msg']}, got {e['input']!r}" for e in error.errors())
        raise ConfigError(f"make_vector_env can't use these options: {faults}") from error
    return make_group_env(config, config.num_streams, source)


def make_group_env(
    config: EnvConfig,
    num_streams: int,
    source: EnvSource | None = None,
    *,
    first_stream: int = 0,
    drawn: bool = False,
) -> VectorEnv:
    """Makes the environments of one group.

    Args:
        num_streams: streams of this group, whatever `config.num_streams` says of the run.
        source: where they come from if not from `config.id`, which then is only a name; callables
            are given `config.kwargs`.
        first_stream: number in the run of the group's first stream, for error messages.
        drawn: EnvPool's and Atari games are made such that they `render`; others are by what
            `config.kwargs` says to their makers.
    """
    env = _make_base(config, num_streams, source, first_stream, drawn)
    masked = ACTION_MASK in observation_leaves(env.spaces.observation)
    # Of another kind a mask in the observation is the environment's own.
    if config.mask_from_info and not (masked and isinstance(env, GymnasiumVectorEnv)):
        env.close()
        kind, way_out = env.description.backend, "choose backend 'gymnasium'"
        if kind == "gymnasium":
            kind, way_out = "a vector environment", "give what makes its single environments"
        raise ConfigError(
            "env.mask_from_info requires single Gymnasium environments, which have the mask in "
            f"info; {config.id} is of another kind ({kind}); leave it out, or {way_out}"
        )
    above = None if config.success is None else read_rule(config.success).above
    if above is not None:
        assert config.success is not None
        env = SuccessByReward(env, config.success, above)
    if config.frame_stack > 1:
        env = FrameStack(env, config.frame_stack)
    if config.observe_last:
        env = _observing_last(env)
    if config.reward_clip != "none":
        env = ClipReward(env, config.reward_clip)
    return env


def _observing_last(env: VectorEnv) -> VectorEnv:
    try:
        return ObserveLast(env)
    except ConfigError:
        env.close()
        raise


def group_size(config: EnvConfig) -> int:
    """Streams that step and act together: as configured, else by who steps them.

    With two groups one steps while the other's actions are computed; they also double the number of
    acts, which is all that they do where steps are cheap or taken by this very process.
    """
    if config.streams_per_group is not None:
        return config.streams_per_group
    groups = 1
    if ":" not in config.id:
        backend = resolve_backend(config.id, config.backend)
        pool = envpool_id(config.id)
        if backend == "ale":
            groups = envpool.default_num_groups("atari")
        elif backend == "envpool" and pool is not None:
            groups = envpool.default_num_groups(envpool.family_of(pool))
    return config.num_streams // (groups if config.num_streams % groups == 0 else 1)


def source_kind(
    config: EnvConfig, source: EnvSource | None
) -> Literal["id", "maker", "group maker", "vector environment"]:
    """What environments come from: an id that a backend knows, what makes single ones, what makes
    groups of them (it has a parameter ``num_envs``), or a vector environment itself.
    """
    if isinstance(source, ForeignVectorEnv):
        return "vector environment"
    if source is None and ":" not in config.id:
        return "id"
    maker = source if source is not None else _find_maker(config.id)
    return "group maker" if makes_groups(maker) else "maker"


def _make_base(
    config: EnvConfig, num_streams: int, source: EnvSource | None, first_stream: int, drawn: bool
) -> VectorEnv:
    if isinstance(source, ForeignVectorEnv):
        if source.num_envs != num_streams:
            raise ConfigError(
                f"a vector environment is one group of streams; got {source.num_envs} environments "
                f"for {num_streams} streams; leave num_streams and streams_per_group out"
            )
        return _adapt(config, source, None, first_stream)
    if source is None:
        backend = resolve_backend(config.id, config.backend)
        if backend == "envpool":
            return _make_pool(config, num_streams, drawn)
        rom = atari_rom(config.id, backend)
        if rom is not None:
            return _make_atari(config, num_streams, rom, first_stream, drawn)
    maker = source if source is not None else _find_maker(config.id)
    if makes_groups(maker):
        make = partial(_make_several, maker, config.id, config.kwargs, num_streams)
        return _adapt(config, make(), make, first_stream)
    return GymnasiumVectorEnv(
        _single_maker(config, partial(_make_one, maker, config.id, config.kwargs)),
        num_streams,
        env_id=config.id,
        first_stream=first_stream,
        success_key=key_of(config.success),
    )


def _make_pool(config: EnvConfig, num_streams: int, drawn: bool) -> VectorEnv:
    name = envpool_id(config.id)
    assert name is not None
    if envpool.family_of(name) == "atari":
        known = atari.AtariConfig.model_fields.keys()
        atari.read_config(config.id, {k: v for k, v in config.kwargs.items() if k in known})
    pool = EnvPoolVectorEnv(
        name, num_streams, kwargs=config.kwargs,
        num_threads=_threads(config, envpool.family_of(name), num_streams), drawn=drawn,
        success_key=key_of(config.success),
    )  # fmt: skip
    if config.frame_stack > 1 and pool.stacked_frames > 1:
        raise _stacked_already(config, pool.stacked_frames)
    return pool


def _threads(config: EnvConfig, family: str, num_streams: int) -> int:
    """Of one group's pool: the cores are shared with the pools of the other groups."""
    pools = max(1, config.num_streams // num_streams)
    return config.num_threads or envpool.default_num_threads(family, num_streams, pools)


def _make_atari(
    config: EnvConfig, num_streams: int, rom: str, first_stream: int, drawn: bool
) -> VectorEnv:
    """ALE's vector environment, or single environments of ale-py in our stepping."""
    game = atari.read_config(config.id, config.kwargs)
    if config.frame_stack > 1 and game.stack_num > 1:
        raise _stacked_already(config, game.stack_num)
    frames: VectorEnv
    if resolve_backend(config.id, config.backend) == "ale":
        threads = _threads(config, "atari", num_streams)
        frames = ale.AleVectorEnv(
            config.id, num_streams, game, threads, success_key=key_of(config.success)
        )
    else:
        options = {"rom": rom, "config": game, "render_mode": "rgb_array" if drawn else None}
        frames = GymnasiumVectorEnv(
            partial(_make_one, atari.make_single, config.id, options),
            num_streams,
            env_id=config.id,
            first_stream=first_stream,
            action_repeat=game.frame_skip,
            success_key=key_of(config.success),
        )
    return FrameStack(frames, game.stack_num)


def _stacked_already(config: EnvConfig, frames: int) -> ConfigError:
    return ConfigError(
        f"{config.id} already stacks {frames} frames; leave frame_stack at 1 and set "
        f"kwargs.stack_num, or set kwargs.stack_num to 1"
    )


def _adapt(
    config: EnvConfig,
    env: ForeignVectorEnv[Any, Any, Any],
    make: Callable[[], ForeignVectorEnv[Any, Any, Any]] | None,
    first_stream: int,
) -> VectorEnv:
    """A vector environment as ours; `make` makes another like it."""
    if envpool.is_pool(env.unwrapped):
        env.close()
        raise ConfigError(
            f"{config.id} must make vector environments that can be given seeds; EnvPool's can't; "
            f"give the pool itself, or its id with backend 'envpool'"
        )
    if is_plain_sync(env):
        return GymnasiumVectorEnv(
            _single_maker(config, partial(_call_next, itertools.cycle(env.env_fns))),  # type: ignore[attr-defined]
            env.num_envs,
            env_id=config.id,
            first_stream=first_stream,
            success_key=key_of(config.success),
        )
    return AdaptedVectorEnv(
        env, env_id=config.id, first_stream=first_stream, make=make,
        success_key=key_of(config.success),
    )  # fmt: skip


def _call_next(makers: Iterable[Callable[[], gymnasium.Env[Any, Any]]]) -> Any:
    return next(iter(makers))()


def _make_several(
    maker: MakeEnv, env_id: str, kwargs: Mapping[str, Any], num_streams: int
) -> ForeignVectorEnv[Any, Any, Any]:
    """A vector environment of `num_streams`."""
    env: Any = _make_one(maker, env_id, {**kwargs, "num_envs": num_streams})
    if not isinstance(env, ForeignVectorEnv) or env.num_envs != num_streams:
        raise ConfigError(
            f"{env_id} has a parameter num_envs, so must make a vector environment of so many; "
            f"asked for {num_streams}, got {env!r}; return one, or rename the parameter of what "
            f"makes single environments"
        )
    return env


def _single_maker(config: EnvConfig, make_one: Callable[[], Any]) -> Callable[[], Any]:
    return partial(_masked, make_one, config.id) if config.mask_from_info else make_one


def _masked(make_one: Callable[[], Any], env_id: str) -> Any:
    """One environment with its action mask in the observation; what is none is left as it is."""
    env = make_one()
    return MaskFromInfo(env, env_id) if isinstance(env, gymnasium.Env) else env


def _make_one(maker: Callable[..., Any], env_id: str, kwargs: Mapping[str, Any]) -> Any:
    """What `maker` makes; what goes wrong is told with the way out."""
    try:
        return maker(**kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            f"{env_id} (gymnasium) needs a package that is not installed: {error}; "
            f"run: {_install_line(env_id)}"
        ) from error
    except Exception as error:
        fault = ConfigError(
            f"{env_id} (gymnasium) must be made with env.kwargs {dict(kwargs)}; it "
            f"{raised(error)}; correct env.kwargs or the environment"
        )
        raise traced(fault, error) from error


def _find_maker(name: str) -> MakeEnv:
    """What makes the environments of a Gymnasium id, ``"module:Id-v0"`` or an import string."""
    module_name, colon, attribute = name.partition(":")
    if colon:
        module = import_module(module_name, name)
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


def _install_line(env_id: str) -> str:
    """What to install for a Gymnasium id whose package is missing."""
    if ale.rom_of(env_id) is not None:
        return ale.INSTALL_LINE
    spec = gymnasium.registry.get(env_id.partition(":")[2] or env_id)
    entry = str(spec.entry_point) if spec is not None else ""
    for extra in ("mujoco", "box2d"):
        if extra in entry:
            return f'pip install "quintet[{extra}]"'
    for extra in ("classic_control", "toy_text"):
        if extra in entry:
            return f'pip install "gymnasium[{extra.replace("_", "-")}]"'
    return "the installation that the environment's own documentation names"
