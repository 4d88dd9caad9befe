"""`quintet.make_vector_env`: vector environments from an id, a callable or a vector environment."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from quintet.envs.config import EnvConfig, RewardClip
from quintet.envs.env_source import EnvLike, settle
from quintet.envs.make import make_group_env
from quintet.envs.masks import Choice
from quintet.envs.resolved import resolve_env
from quintet.envs.settled import with_observation_dtype
from quintet.envs.vector import VectorEnv
from quintet.errors import ConfigError
from quintet.options.declaration import about, faults
from quintet.system.user_code import known_arguments

_ELSEWHERE = {
    theirs: name for name, info in EnvConfig.model_fields.items() for theirs in about(info).also
}


@known_arguments(_ELSEWHERE)
def make_vector_env(
    env: EnvLike,
    num_streams: int | None = None,
    *,
    backend: str = "auto",
    kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    frame_stack: int = 1,
    reward_clip: RewardClip = "none",
    reward_shaping: Mapping[str, float] | None = None,
    success: str | None = None,
    observe_last: bool = False,
    mask_from_info: Choice = "auto",
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
              DISABLED lose see `quintet.envs.given_vector`). It belongs to the caller: it isn't
              closed.  Of a plain SyncVectorEnv only the ``env_fns`` are used, to make its
              environments again, unless they give objects that exist already;
            - a pool of EnvPool with ``env_type="gymnasium"``, of which equal pools are made;
            - an environment of `gymnasium.make`, of which equal ones are made by its specification:
              what was changed in it afterwards is not in them.

            Callables are given `kwargs`.
        num_streams: None: the number of a given vector environment, else 8.
        mask_from_info: as ``env.mask_from_info``, but auto looks into no info.

    Raises:
        ConfigError: an option is out of range, the id is unknown, or a package is missing.
    """
    options: dict[str, Any] = {
        "backend": backend,
        "kwargs": kwargs or {},
        "max_episode_steps": max_episode_steps,
        "frame_stack": frame_stack,
        "reward_clip": reward_clip,
        "reward_shaping": reward_shaping or {},
        "success": success,
        "observe_last": observe_last,
        "mask_from_info": mask_from_info,
        "observation_dtype": observation_dtype,
        "num_threads": num_threads,
    } | ({} if num_streams is None else {"num_streams": num_streams})
    says, source = settle(env)
    defaults: dict[str, Any] = {"backend": "auto", "kwargs": {}, "num_threads": None}
    for name, value in says.items():
        if name in options and options[name] not in (value, defaults.get(name, value)):
            raise ConfigError(
                f"{name} must be what the given environment says, {value!r}; got "
                f"{options[name]!r}; leave it out"
            )
    try:
        config = EnvConfig(**(options | says))
    except ValidationError as error:
        found = "; ".join(faults(error, ""))
        raise ConfigError(f"make_vector_env can't use these options: {found}") from error
    resolved = resolve_env(config, source)
    made = make_group_env(resolved, config.num_streams)
    if config.observation_dtype == "auto":
        settled = with_observation_dtype(resolved, made.spaces)
        if settled.config.observation_dtype == "float64":
            made.close()
            return make_group_env(settled, config.num_streams)
    return made
