"""Settles the automatic options that need a look at an environment, once in a run."""

from contextlib import closing

from quintet.envs.env_source import can_be_made_again
from quintet.envs.make import make_group_env
from quintet.envs.observation_dtype import untouched, with_observation_dtype
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.reward_shaping import ShapedRewards
from quintet.envs.vector import VectorEnv
from quintet.envs.wrappers import FrameStack, FromRewards, ObserveLast
from quintet.errors import QuintetError
from quintet.spaces import mask_sizes, observation_leaves
from quintet.system.files import same_folder
from quintet.system.signals import STOPS
from quintet.types import ACTION_MASK, Spaces


def settled(env: ResolvedEnv, of: Spaces) -> ResolvedEnv:
    """The same with ``env.observation_dtype`` and ``env.mask_from_info`` settled; environments are
    made for that where the spaces leave it open.

    of: the environment's spaces.
    """
    return with_observation_dtype(_with_mask(env, of), of)


def made_otherwise(env: ResolvedEnv, settled: ResolvedEnv) -> bool:
    """Whether environments that were made for `env` differ from those of the settled one."""
    before, now = env.config, settled.config
    wide = now.observation_dtype == "float64" != before.observation_dtype
    return wide or (now.mask_from_info is True and before.mask_from_info is not True)


def _with_mask(env: ResolvedEnv, of: Spaces) -> ResolvedEnv:
    """``auto`` stays where the observation has a mask."""
    if env.config.mask_from_info != "auto" or ACTION_MASK in observation_leaves(of.observation):
        return env
    found = False
    if can_be_made_again(env.source) and _may_be_masked(env, of):
        try:
            with same_folder(), closing(make_group_env(env, env.streams_of(1))) as probe:
                found = masks_in_info(env, probe)
        except (QuintetError, OSError):  # which the run meets again, and says where
            found = False
    return env.with_options({"mask_from_info": found})


def _may_be_masked(env: ResolvedEnv, of: Spaces) -> bool:
    masked = ACTION_MASK in observation_leaves(of.observation)
    takes = env.backend.gives_mask is not None and env.atari is None
    return env.config.mask_from_info == "auto" and takes and bool(mask_sizes(of.action)) > masked


def masks_in_info(env: ResolvedEnv, made: VectorEnv) -> bool:
    """Whether ``env.mask_from_info=auto`` takes masks from info: whether environments that are only
    made for a look give a fitting one at a reset.
    """
    if not _may_be_masked(env, made.spaces):
        return False
    while isinstance(made, FrameStack | FromRewards | ObserveLast | ShapedRewards):
        made = made.env
    gives_mask = env.backend.gives_mask
    assert gives_mask is not None
    try:
        with untouched():
            return gives_mask(made)
    except STOPS:
        raise
    except BaseException:  # of the environment's code, which the run meets again
        return False
