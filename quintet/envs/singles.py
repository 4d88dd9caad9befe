"""The backend ``gymnasium``: environments made in Python, from Gymnasium's ids, import strings and
objects that a user passes.
"""

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv as ForeignVectorEnv

from quintet.envs import atari, foreign
from quintet.envs.adapted import AdaptedVectorEnv
from quintet.envs.backends import BACKENDS, Backend, Group, Identity
from quintet.envs.calling import call_maker
from quintet.envs.config import EnvConfig
from quintet.envs.fixed_shape import FixedShape, is_fixed
from quintet.envs.given import MakeEnv, is_plain_sync, makes_groups
from quintet.envs.gymnasium import GymnasiumVectorEnv
from quintet.envs.info_mask import MaskFromInfo
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.reward_shaping import ShapedMaker
from quintet.envs.success import key_of
from quintet.envs.vector import VectorEnv
from quintet.envs.versions import is_ales, versions_of
from quintet.envs.wrappers import FrameStack
from quintet.errors import ConfigError


def _ids() -> list[str]:
    roms = atari.list_roms()  # before the registry is read: ale-py adds its games to it
    return [*roms, *(known for known in gymnasium.registry if not is_ales(known))]


def _knows(env_id: str) -> bool:
    """Whether Gymnasium or ale-py knows the id."""
    theirs = env_id in gymnasium.registry and not is_ales(env_id)
    return theirs or atari.rom_of(env_id) is not None


def _hint(env_id: str) -> str:
    newer = versions_of(env_id, gymnasium.registry)
    version = f"which versions there are depends on Gymnasium's, {gymnasium.__version__} here"
    return "; ".join(filter(None, [version if newer else "", atari.hint(env_id)]))


def _identify(config: EnvConfig) -> Identity:
    """A game of ale-py, unless a user has registered an id like ``Pong-v5``."""
    theirs = config.id in gymnasium.registry and not config.id.startswith("ALE/")
    rom = None if theirs else atari.rom_of(config.id)
    if rom is None:
        return Identity()
    return Identity(rom, atari=atari.read_config(config.id, config.kwargs))


def _make(env: ResolvedEnv, group: Group) -> VectorEnv:
    config, source = env.config, env.source
    if isinstance(source, ForeignVectorEnv):
        if source.num_envs != group.num_streams:
            raise ConfigError(
                f"a vector environment is one group of streams; got {source.num_envs} environments "
                f"for {group.num_streams} streams; leave num_streams and streams_per_group out"
            )
        return _adapt(env, source, None, group)
    if env.atari is not None:
        return _make_atari(env, env.atari, group)
    maker = env.maker
    if makes_groups(maker):
        make = partial(_make_several, maker, config.id, config.kwargs, group.num_streams)
        return _adapt(env, make(), make, group)
    return _step_singles(env, partial(call_maker, maker, config.id, config.kwargs), group)


def _make_atari(env: ResolvedEnv, game: atari.AtariConfig, group: Group) -> FrameStack:
    """Single environments of ale-py."""
    atari.require_one_stack(env.config, game.stack_num)
    render_mode = "rgb_array" if group.drawn else None
    options = {"rom": env.name, "config": game, "render_mode": render_mode}
    make_one = partial(call_maker, atari.make_single, env.config.id, options)
    return FrameStack(_step_singles(env, make_one, group), game.stack_num)


def _step_singles(
    env: ResolvedEnv, make_one: Callable[[], Any], group: Group
) -> GymnasiumVectorEnv:
    config, num_streams = env.config, group.num_streams
    if env.atari is None:
        make_one = partial(_with_fixed_shape, make_one, config.id)
    if config.mask_from_info and env.atari is None:
        make_one = partial(_masked, make_one, config.id)
    if config.reward_shaping:
        make_one = ShapedMaker(make_one, config.reward_shaping, num_streams, config.id)
    return GymnasiumVectorEnv(
        make_one, num_streams, env_id=config.id, first_stream=group.first_stream,
        action_repeat=1 if env.atari is None else env.atari.frame_skip,
        success_key=key_of(config.success),
    )  # fmt: skip


def _adapt(
    env: ResolvedEnv,
    made: ForeignVectorEnv[Any, Any, Any],
    make: Callable[[], ForeignVectorEnv[Any, Any, Any]] | None,
    group: Group,
) -> AdaptedVectorEnv | GymnasiumVectorEnv:
    """Adapts a vector environment; `make` makes another one like it."""
    config = env.config
    for name, backend in BACKENDS.usable():
        if backend.owns(made.unwrapped):
            made.close()
            raise ConfigError(
                f"{config.id} must make vector environments that can be given seeds; "
                f"{backend.title}'s can't; give the pool itself, or its id with backend {name!r}"
            )
    if is_plain_sync(made):
        makers = itertools.cycle(made.env_fns)  # type: ignore[attr-defined]
        return _step_singles(env, lambda: next(makers)(), group._replace(num_streams=made.num_envs))
    return AdaptedVectorEnv(
        made, env_id=config.id, first_stream=group.first_stream, make=make,
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


def _bare_step(env_id: str, num_envs: int, cores: int) -> Callable[[], object]:  # noqa: ARG001
    """A step of each environment in turn, on one core."""
    env: Any = gymnasium.make(env_id)
    env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(num_envs)]

    def step() -> None:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


BACKEND = Backend(
    title="Gymnasium",
    make=_make,
    ids=_ids,
    knows=_knows,
    claims=lambda _: True,
    identify=_identify,
    hint=_hint,
    in_python=True,
    single=True,
    mask_hint="give what makes its single environments",
    packages={"ale_py": "ale-py", "cv2": "opencv-python", "mujoco": "mujoco"},
    bare_step=_bare_step,
)
