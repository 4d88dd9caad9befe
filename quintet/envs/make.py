"""Makes the environments of a group, with their wrappers."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from quintet.envs.backends import Group
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.success import key_of, read_rule
from quintet.envs.vector import VectorEnv
from quintet.envs.wrappers import FrameStack, FromRewards, ObserveLast, ShapedRewards, innermost
from quintet.errors import ConfigError
from quintet.spaces import in_float64, observation_leaves
from quintet.types import ACTION_MASK


def make_group_env(
    env: ResolvedEnv,
    num_streams: int,
    *,
    first_stream: int = 0,
    drawn: bool = False,
    device: str = "cpu",
) -> VectorEnv:
    """Makes the environments of one group.

    Args:
        num_streams: streams of this group, not `env.config.num_streams`.
        first_stream: number of the group's first stream in the run, for error messages.
        drawn: whether environments of EnvPool and Atari games must be able to `render`; for others
            `env.config.kwargs` decides that.
        device: device of the tensors of environments with ids of the backend pytorch.

    Raises:
        ConfigError: they can't be made with these options.
    """
    base: Any = env.backend.make(env, Group(num_streams, first_stream, drawn, device))
    with ExitStack() as failed:
        failed.callback(base.close)
        if env.config.curriculum is not None:
            from quintet.envs.tasks import give_tasks

            give_tasks(env, base, first_stream)
        if env.config.observation_dtype == "float64":  # "auto" is resolved before
            base.spaces = in_float64(base.spaces)
        if env.terms and getattr(innermost(base), "infos", None) is None:
            raise ConfigError(
                "env.metrics must have environments with info, which backend "
                f"{env.config.backend!r} lacks, got {env.config.metrics!r}: leave it out"
            )
        if env.terms or env.notes:
            notes = (*base.description.notes, *env.notes)
            names = tuple(term.name for term in env.terms)
            base.description = replace(base.description, metrics=names, notes=notes)
        made = _wrapped(env, base)
        failed.pop_all()
    return made


def tell(env: VectorEnv, text: bytes) -> None:
    """Tells environments their task, see `quintet.envs.tasks`."""
    from quintet.envs.tasks import set_task  # few runs have one

    set_task(env, text)


def _wrapped(env: ResolvedEnv, base: VectorEnv) -> VectorEnv:
    """The environments with the options that are the same for all backends."""
    config, made, singles = env.config, base, partial(env.singles, base)
    masked = ACTION_MASK in observation_leaves(base.spaces.observation)
    # Other kinds of environments have a mask of their own in the observation.
    of_info = masked and bool(base.description.agents or singles())
    for name, kinds, lacks in (
        (
            "mask_from_info",
            " or games of PettingZoo",
            config.mask_from_info is True and not of_info,
        ),
        ("reward_shaping", "", bool(config.reward_shaping) and not singles()),
    ):
        if lacks:
            raise ConfigError(
                f"env.{name} must have single Gymnasium environments{kinds}, got {config.id} of "
                f"another kind ({env.kind}, {env.config.backend}); leave it out, or give a maker "
                "of single environments, with backend 'gymnasium'"
            )
    if base.description.turns and (config.frame_stack > 1 or config.observe_last):
        name = "frame_stack" if config.frame_stack > 1 else "observe_last"
        raise ConfigError(
            f"env.{name} must have agents that act at the same time; those of {config.id} act "
            "in turn: leave it out, and put what agents must remember into the observations"
        )
    if config.success is not None and key_of(config.success) and not base.description.success:
        raise ConfigError(
            f"env.success must be a rule about rewards with backend {config.backend!r}, which has "
            f"no info, got {config.success!r}: use 'reward>NUMBER', or leave it out"
        )
    if config.frame_stack > 1:
        made = FrameStack(made, config.frame_stack)
    if config.observe_last:
        made = ObserveLast(made)
    above = None if config.success is None else read_rule(config.success).above
    if above is not None or config.reward_clip != "none":
        made = FromRewards(made, config.reward_clip, config.success, above)
    if config.reward_shaping:
        made = ShapedRewards(made, singles, config.reward_shaping)
    return made
