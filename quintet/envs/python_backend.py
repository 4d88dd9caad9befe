"""The backend ``gymnasium``: environments made in Python, from Gymnasium's ids, import strings and
objects that a user passes.
"""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv as GymVectorEnv

from quintet.envs import atari, masks, other_apis
from quintet.envs.backends import BACKENDS, Backend, Group, Identity
from quintet.envs.config import EnvConfig
from quintet.envs.env_source import (
    GIVEN,
    GivenTensors,
    MakeEnv,
    call_maker,
    is_plain_sync,
    limits_itself,
    makes_groups,
)
from quintet.envs.gymnasium import GymnasiumVectorEnv, time_limit
from quintet.envs.ids import versions_of
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.tensor import gives_tensors, size_of
from quintet.envs.vector import VectorEnv
from quintet.envs.wrappers import FrameStack, shaped
from quintet.errors import ConfigError
from quintet.spaces import is_fixed


def _ids() -> list[str]:
    roms = atari.list_roms()  # first, since ale-py adds its games to the registry
    return [*roms, *(known for known in gymnasium.registry if not atari.is_ales(known))]


def _knows(env_id: str) -> bool:
    """Whether Gymnasium or ale-py knows the id."""
    registered = env_id in gymnasium.registry and not atari.is_ales(env_id)
    return registered or atari.rom_of(env_id) is not None


def _hint(env_id: str) -> str:
    newer = versions_of(env_id, gymnasium.registry)
    version = f"which versions there are depends on Gymnasium's, {gymnasium.__version__} here"
    return "; ".join(filter(None, [version if newer else "", atari.hint(env_id)]))


def _identify(config: EnvConfig) -> Identity:
    """A game of ale-py, unless a user has registered an id like ``Pong-v5``."""
    registered = config.id in gymnasium.registry and not config.id.startswith("ALE/")
    rom = None if registered else atari.rom_of(config.id)
    if rom is None:
        return Identity()
    return Identity(rom, atari=atari.read_config(config.id, config.arguments))


def _make(env: ResolvedEnv, group: Group) -> VectorEnv:
    """The group's environments, from whatever the user gave; raises ConfigError."""
    config, source = env.config, env.source
    if isinstance(source, GIVEN):
        if source.num_envs != group.num_streams:
            raise ConfigError(
                f"a vector environment is one group of streams; got {source.num_envs} environments "
                f"for {group.num_streams} streams; leave num_streams and streams_per_group out"
            )
        if isinstance(source, GivenTensors):
            return _hosted(env, source.env, closes=False)
        return _adapt(env, source, None, group)
    if env.atari is not None:
        return _make_atari(env, env.atari, group)
    maker = env.maker
    if limits_itself(maker):
        kwargs = config.arguments
        config = config.model_copy(update={"max_episode_steps": None})
        env = replace(env, config=config)
    else:
        kwargs = config.kwargs
    if makes_groups(maker):
        several = env.numbers.arguments(maker, kwargs, config.num_streams, group.first_stream)
        make = partial(_make_several, maker, config.id, several, group.num_streams)
        made = make()
        if gives_tensors(made):
            return _hosted(env, made, closes=True)
        return _adapt(env, made, make, group)
    make_one = partial(call_maker, maker, config.id)
    arguments = partial(env.numbers.arguments, maker, kwargs, config.num_streams)
    return _step_singles(env, make_one, group, arguments)


def _make_atari(env: ResolvedEnv, game: atari.AtariConfig, group: Group) -> FrameStack:
    atari.require_one_stack(env.config, game.stack_num)
    render_mode = "rgb_array" if group.drawn else None
    options = {"rom": env.name, "config": game, "render_mode": render_mode}
    make_one = partial(call_maker, atari.make_single, env.config.id)
    return FrameStack(_step_singles(env, make_one, group, lambda _: options), game.stack_num)


def _step_singles(
    env: ResolvedEnv,
    make_one: Callable[[dict[str, Any]], Any],
    group: Group,
    arguments: Callable[[int], dict[str, Any]] = lambda _: {},
) -> GymnasiumVectorEnv:
    """arguments: returns those of a stream's environment, from which `make_one` makes it."""
    config = env.config

    def make(stream: int) -> Any:
        given = arguments(stream)
        made = make_one(given) if env.atari is not None else _fitted(make_one, given, config)
        return shaped(made, config.reward_shaping, config.id) if config.reward_shaping else made

    return GymnasiumVectorEnv(env, group, make)


def _fitted(
    make_one: Callable[[dict[str, Any]], Any], kwargs: dict[str, Any], config: EnvConfig
) -> Any:
    """An environment of Gymnasium's interface without strings and sequences, with its action mask
    in the leaf ``action_mask``, and with the limit of ``env.max_episode_steps``; other objects
    unchanged.
    """
    env = make_one(kwargs)
    if other_apis.is_old(env):
        from quintet.envs.old_gym import adapt

        seeded = "seed" in kwargs and "seed" not in config.kwargs
        env = adapt(env, (lambda seed: make_one(kwargs | {"seed": seed})) if seeded else None)
    if not isinstance(env, gymnasium.Env) or isinstance(env, GymVectorEnv):
        return env
    other_apis.require_spaces(env, config.id)
    if config.max_episode_steps is not None:
        env = _limited(env, config.max_episode_steps, config.id)
    if not is_fixed(env.observation_space):
        from quintet.envs.fixed_shape import FixedShape

        env = FixedShape(env)
    return masks.masked(env, config.id, config.mask_from_info)


def _limited(
    env: gymnasium.Env[Any, Any], limit: int, env_id: str
) -> gymnasium.wrappers.TimeLimit[Any, Any]:
    """The environment with a limit of steps; raises ConfigError if it has a shorter one."""
    own = time_limit(env)
    if own is not None and own < limit:
        env.close()
        raise ConfigError(
            f"env.max_episode_steps must be at most the limit that {env_id} has itself, {own} "
            f"(Gymnasium's wrapper TimeLimit), got {limit}: raise its own limit"
        )
    return gymnasium.wrappers.TimeLimit(env, limit)


def _require_no_limit(env: ResolvedEnv, made: Any, *, closes: bool) -> None:
    """Refuses ``env.max_episode_steps`` for what resets its streams itself."""
    if env.config.max_episode_steps is None:
        return
    if closes:
        made.close()
    raise ConfigError(
        f"env.max_episode_steps={env.config.max_episode_steps} can't be set from outside for "
        f"{env.config.id}, a vector environment that resets its streams itself: set the limit in "
        "it, or add a parameter max_episode_steps to the function that makes it"
    )


def _adapt(
    env: ResolvedEnv,
    made: GymVectorEnv[Any, Any, Any],
    make: Callable[[], GymVectorEnv[Any, Any, Any]] | None,
    group: Group,
) -> VectorEnv:
    """Adapts a vector environment; `make` makes another environment like it."""
    config = env.config
    for name, backend in BACKENDS.usable():
        if backend.settle(made.unwrapped) is not None:
            made.close()
            raise ConfigError(
                f"{config.id} must make vector environments that can be given seeds; "
                f"{backend.title}'s can't; give the pool itself, or its id with backend {name!r}"
            )
    # Gymnasium 1.1 keeps an iterator of makers as it was given, used up.
    if is_plain_sync(made) and (given := [*made.env_fns]):  # type: ignore[attr-defined]
        makers = itertools.cycle(given)
        if make is not None:
            made.close()  # only its makers are used
        return _step_singles(
            env, lambda _: next(makers)(), group._replace(num_streams=made.num_envs)
        )
    _require_no_limit(env, made, closes=make is not None)
    from quintet.envs.given_vector import AdaptedVectorEnv

    return AdaptedVectorEnv(env, group, made, make)


def _hosted(env: ResolvedEnv, made: Any, *, closes: bool) -> VectorEnv:
    """Environments of tensors."""
    from quintet.envs.given_tensors import adapted  # imports PyTorch
    from quintet.envs.tensors_as_arrays import HostedEnv

    _require_no_limit(env, made, closes=closes)
    config = env.config
    tensors = adapted(made, config.id, config.success, config.mask_from_info)
    assert tensors is not None
    described = replace(tensors.description, id=config.id, backend=config.backend)
    owned = made if closes else None
    return HostedEnv(tensors, described, closes=closes, made=owned, terms=env.terms)


def _make_several(maker: MakeEnv, env_id: str, kwargs: Mapping[str, Any], num_streams: int) -> Any:
    env: Any = call_maker(maker, env_id, {**kwargs, "num_envs": num_streams})
    if gives_tensors(env) and size_of(env) == num_streams:
        return env
    if not isinstance(env, GymVectorEnv) or env.num_envs != num_streams:
        raise ConfigError(
            f"{env_id} has a parameter num_envs, so it must make a vector environment of that "
            f"size; asked for {num_streams}, got {env!r}; return one, or rename the parameter if "
            "the function makes single environments"
        )
    return env


def _gives_mask(made: VectorEnv) -> bool:
    if not isinstance(made, GymnasiumVectorEnv):
        return False
    first = made.envs[0]
    return masks.is_in(first.reset(seed=0)[1], first.action_space)


BACKEND = Backend(
    title="Gymnasium",
    limits_steps=True,
    make=_make,
    ids=_ids,
    knows=_knows,
    claims=lambda _: True,
    identify=_identify,
    hint=_hint,
    in_python=True,
    singles=lambda made: made.envs if isinstance(made, GymnasiumVectorEnv) else (),
    gives_mask=_gives_mask,
    packages={"ale_py": "ale-py", "cv2": "opencv-python", "mujoco": "mujoco"},
)
