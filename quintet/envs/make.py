"""Makes quintet's vector environments of an id, a callable or a vector environment."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from quintet.envs.adapted import AdaptedVectorEnv
from quintet.envs.backends import Group
from quintet.envs.config import EnvConfig, RewardClip
from quintet.envs.given import GivenEnv, settle
from quintet.envs.gymnasium import GymnasiumVectorEnv
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.reward_shaping import ShapedMaker, ShapedRewards
from quintet.envs.success import read_rule
from quintet.envs.vector import VectorEnv
from quintet.envs.wrappers import FrameStack, FromRewards, ObserveLast
from quintet.errors import ConfigError
from quintet.spaces import in_float64, observation_leaves
from quintet.types import ACTION_MASK


def make_vector_env(
    env: GivenEnv,
    num_streams: int | None = None,
    *,
    backend: str = "auto",
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
    """Makes `num_streams` environments that step together; call `restart(seeds, out)` first.

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
        num_streams: None: the number of a given vector environment, else 8.

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
        first_stream: number of the group's first stream in the run, for error messages.
        drawn: whether environments of EnvPool and Atari games must be able to `render`; for others
            `env.config.kwargs` decides that.

    Raises:
        ConfigError: they can't be made, or not with these options.
    """
    config = env.config
    base: Any = env.backend.make(env, Group(num_streams, first_stream, drawn))
    if config.observation_dtype == "float64":  # "auto" is resolved in `observation_dtype`
        base.spaces = in_float64(base.spaces)
    made: VectorEnv = base
    masked = ACTION_MASK in observation_leaves(made.spaces.observation)
    # In other kinds of environments a mask in the observation is their own.
    if config.mask_from_info and not (masked and isinstance(made, GymnasiumVectorEnv)):
        made.close()
        given = isinstance(made, AdaptedVectorEnv)
        kind = "a vector environment" if given else made.description.backend
        raise ConfigError(
            "env.mask_from_info requires single Gymnasium environments, which have the mask in "
            f"info; {config.id} is of another kind ({kind}); leave it out, or "
            f"{env.backend.mask_hint}"
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
