"""Makes quintet's vector environments of an id, a callable or a vector environment."""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import gymnasium
from gymnasium.vector import VectorEnv as ForeignVectorEnv
from pydantic import ValidationError

from quintet.envs import envpool, foreign
from quintet.envs.adapted import AdaptedVectorEnv
from quintet.envs.ale import AleVectorEnv
from quintet.envs.atari import AtariConfig, make_single
from quintet.envs.calling import call_maker
from quintet.envs.config import Backend, EnvConfig, RewardClip
from quintet.envs.envpool import EnvPoolVectorEnv
from quintet.envs.fixed_shape import FixedShape, is_fixed
from quintet.envs.given import GivenEnv, MakeEnv, is_plain_sync, makes_groups, settle
from quintet.envs.gymnasium import GymnasiumVectorEnv
from quintet.envs.info_mask import MaskFromInfo
from quintet.envs.pettingzoo import ParallelVectorEnv
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.reward_shaping import ShapedMaker, ShapedRewards
from quintet.envs.success import key_of, read_rule
from quintet.envs.vector import VectorEnv
from quintet.envs.wrappers import FrameStack, FromRewards, ObserveLast
from quintet.errors import ConfigError
from quintet.spaces import in_float64, observation_leaves
from quintet.types import ACTION_MASK


def make_vector_env(
    env: GivenEnv,
    num_streams: int | None = None,
    *,
    backend: Backend = "auto",
    kwargs: Mapping[str, Any] | None = None,
    frame_stack: int = 1,
    reward_clip: RewardClip = "none",
    reward_shaping: Mapping[str, float] | None = None,
    success: str | None = None,
    observe_last: bool = False,
    mask_from_info: bool = False,
    observation_dtype: Literal["auto", "float32", "float64"] = "float32",
    num_threads: int | None = None,
) -> VectorEnv:
    """Makes `num_streams` environments that step together; begin with `restart(seeds, out)`.

    Args:
        env: one of

            - an id, or an import string ``"pkg.module:make_env"`` of a callable;
            - a callable that makes one Gymnasium environment;
            - a callable with a parameter ``num_envs`` that makes a vector environment of that size:
              ``functools.partial(gymnasium.make_vec, "CartPole-v1")``;
            - a Gymnasium or ALE vector environment with any autoreset mode (for what SAME_STEP and
              DISABLED lose see `quintet.envs.adapted`). It belongs to the caller: it isn't closed,
              and restarts only reset it. Of a plain SyncVectorEnv only the ``env_fns`` are used, to
              make its environments anew;
            - a pool of EnvPool with ``env_type="gymnasium"``, of which equal pools are made;
            - an environment of `gymnasium.make`, of which equal ones are made by its specification:
              what was changed in it afterwards is not in them.

            Callables are given `kwargs`.
        num_streams: None: as many as a given vector environment has, else 8.

    Raises:
        ConfigError: an option is out of range, the id is unknown, or a package is missing.
    """
    options: dict[str, Any] = {
        "backend": backend,
        "kwargs": {} if kwargs is None else kwargs,
        "frame_stack": frame_stack,
        "reward_clip": reward_clip,
        "reward_shaping": {} if reward_shaping is None else reward_shaping,
        "success": success,
        "observe_last": observe_last,
        "mask_from_info": mask_from_info,
        "observation_dtype": observation_dtype,
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
    return make_group_env(resolve_env(config, source), config.num_streams)


def make_group_env(
    env: ResolvedEnv, num_streams: int, *, first_stream: int = 0, drawn: bool = False
) -> VectorEnv:
    """Makes the environments of one group.

    Args:
        num_streams: streams of this group, whatever `env.config.num_streams` is.
        first_stream: number in the run of the group's first stream, for error messages.
        drawn: whether environments of EnvPool and Atari games must `render`; `env.config.kwargs`
            decides that for others.

    Raises:
        ConfigError: they can't be made, or not with these options.
    """
    config, base = env.config, _make_base(env, num_streams, first_stream, drawn)
    if config.observation_dtype == "float64":  # "auto" is resolved in `observation_dtype`
        base.spaces = in_float64(base.spaces)
    made: VectorEnv = base
    masked = ACTION_MASK in observation_leaves(made.spaces.observation)
    # In other kinds of environments a mask in the observation is their own.
    if config.mask_from_info and not (masked and isinstance(made, GymnasiumVectorEnv)):
        made.close()
        kind, way_out = made.description.backend, "choose backend 'gymnasium'"
        if kind == "pettingzoo":
            way_out = "have each agent's observation hold its mask"
        if kind == "gymnasium":
            kind, way_out = "a vector environment", "give what makes its single environments"
        raise ConfigError(
            "env.mask_from_info requires single Gymnasium environments, which have the mask in "
            f"info; {config.id} is of another kind ({kind}); leave it out, or {way_out}"
        )
    if made.description.turns and (config.frame_stack > 1 or config.observe_last):
        made.close()
        name = "frame_stack" if config.frame_stack > 1 else "observe_last"
        raise ConfigError(
            f"env.{name} requires agents that act at once, those of {config.id} act in turn; leave "
            "it out, and have observations hold what is needed"
        )
    if config.frame_stack > 1:
        made = FrameStack(made, config.frame_stack)
    if config.observe_last:
        try:
            made = ObserveLast(made)
        except ConfigError:
            made.close()
            raise
    above = None if config.success is None else read_rule(config.success).above
    if above is not None or config.reward_clip != "none":
        made = FromRewards(made, config.reward_clip, config.success, above)
    if config.reward_shaping:
        maker = base.make_env if isinstance(base, GymnasiumVectorEnv) else None
        if not isinstance(maker, ShapedMaker):
            made.close()
            raise ConfigError(
                f"env.reward_shaping requires single Gymnasium environments; {config.id} is of "
                f"another kind ({base.description.backend}); leave it out"
            )
        made = ShapedRewards(made, maker)
    return made


_Base = AdaptedVectorEnv | EnvPoolVectorEnv | FrameStack | GymnasiumVectorEnv | ParallelVectorEnv


def _make_base(env: ResolvedEnv, num_streams: int, first_stream: int, drawn: bool) -> _Base:
    config, source = env.config, env.source
    if isinstance(source, ForeignVectorEnv):
        if source.num_envs != num_streams:
            raise ConfigError(
                f"a vector environment is one group of streams; got {source.num_envs} environments "
                f"for {num_streams} streams; leave num_streams and streams_per_group out"
            )
        return _adapt(env, source, None, first_stream)
    if config.backend == "envpool":
        return _make_pool(env, num_streams, drawn)
    if env.atari is not None:
        return _make_atari(env, env.atari, num_streams, first_stream, drawn)
    maker = env.maker
    make_one = partial(call_maker, maker, config.id, config.kwargs)
    if config.backend == "pettingzoo":
        return ParallelVectorEnv(
            make_one, num_streams, env_id=config.id, first_stream=first_stream,
            success_key=key_of(config.success),
        )  # fmt: skip
    if makes_groups(maker):
        make = partial(_make_several, maker, config.id, config.kwargs, num_streams)
        return _adapt(env, make(), make, first_stream)
    return _step_singles(env, make_one, num_streams, first_stream)


def _make_pool(env: ResolvedEnv, num_streams: int, drawn: bool) -> EnvPoolVectorEnv:
    config = env.config
    pool = EnvPoolVectorEnv(
        env.name, num_streams, kwargs=config.kwargs, num_threads=env.num_threads(num_streams),
        drawn=drawn, success_key=key_of(config.success),
    )  # fmt: skip
    _require_one_stack(config, pool.stacked_frames)
    return pool


def _make_atari(
    env: ResolvedEnv, game: AtariConfig, num_streams: int, first_stream: int, drawn: bool
) -> FrameStack:
    """ALE's vector environment, or single environments of ale-py in our stepping."""
    config = env.config
    _require_one_stack(config, game.stack_num)
    frames: VectorEnv
    if config.backend == "ale":
        key, threads = key_of(config.success), env.num_threads(num_streams)
        frames = AleVectorEnv(config.id, env.name, num_streams, game, threads, key)
    else:
        options = {"rom": env.name, "config": game, "render_mode": "rgb_array" if drawn else None}
        make_one = partial(call_maker, make_single, config.id, options)
        frames = _step_singles(env, make_one, num_streams, first_stream)
    return FrameStack(frames, game.stack_num)


def _step_singles(
    env: ResolvedEnv, make_one: Callable[[], Any], num_streams: int, first_stream: int
) -> GymnasiumVectorEnv:
    config = env.config
    if env.atari is None:
        make_one = partial(_with_fixed_shape, make_one, config.id)
    if config.mask_from_info and env.atari is None:
        make_one = partial(_masked, make_one, config.id)
    if config.reward_shaping:
        make_one = ShapedMaker(make_one, config.reward_shaping, num_streams, config.id)
    return GymnasiumVectorEnv(
        make_one, num_streams, env_id=config.id, first_stream=first_stream,
        action_repeat=1 if env.atari is None else env.atari.frame_skip,
        success_key=key_of(config.success),
    )  # fmt: skip


def _require_one_stack(config: EnvConfig, frames: int) -> None:
    if config.frame_stack > 1 and frames > 1:
        raise ConfigError(
            f"{config.id} already stacks {frames} frames; leave frame_stack at 1 and set "
            f"kwargs.stack_num, or set kwargs.stack_num to 1"
        )


def _adapt(
    env: ResolvedEnv,
    made: ForeignVectorEnv[Any, Any, Any],
    make: Callable[[], ForeignVectorEnv[Any, Any, Any]] | None,
    first_stream: int,
) -> AdaptedVectorEnv | GymnasiumVectorEnv:
    """Adapts a vector environment; `make` makes another one like it."""
    config = env.config
    if envpool.is_pool(made.unwrapped):
        made.close()
        raise ConfigError(
            f"{config.id} must make vector environments that can be given seeds; EnvPool's can't; "
            f"give the pool itself, or its id with backend 'envpool'"
        )
    if is_plain_sync(made):
        makers = itertools.cycle(made.env_fns)  # type: ignore[attr-defined]
        return _step_singles(env, lambda: next(makers)(), made.num_envs, first_stream)
    return AdaptedVectorEnv(
        made, env_id=config.id, first_stream=first_stream, make=make,
        success_key=key_of(config.success),
    )  # fmt: skip


def _make_several(
    maker: MakeEnv, env_id: str, kwargs: Mapping[str, Any], num_streams: int
) -> ForeignVectorEnv[Any, Any, Any]:
    env: Any = call_maker(maker, env_id, {**kwargs, "num_envs": num_streams})
    if not isinstance(env, ForeignVectorEnv) or env.num_envs != num_streams:
        raise ConfigError(
            f"{env_id} has a parameter num_envs, so it must make a vector environment of that "
            f"size; asked for {num_streams}, got {env!r}; return one, or rename the parameter of a "
            "function that makes single environments"
        )
    return env


def _with_fixed_shape(make_one: Callable[[], Any], env_id: str) -> Any:
    """An environment without texts and sequences; other objects stay as they are."""
    env = make_one()
    if not isinstance(env, gymnasium.Env) or isinstance(env, ForeignVectorEnv):
        return env
    foreign.require_spaces(env, env_id)
    return env if is_fixed(env.observation_space) else FixedShape(env)


def _masked(make_one: Callable[[], Any], env_id: str) -> Any:
    """An environment with its action mask in the observation; other objects stay as they are."""
    env = make_one()
    return MaskFromInfo(env, env_id) if isinstance(env, gymnasium.Env) else env
