"""The kind of a run's environment, which chooses its preset if it has none of its own."""

from collections.abc import Mapping
from typing import Any, Literal

from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv as ForeignVectorEnv

from quintet.config.load import absent
from quintet.envs.config import EnvConfig
from quintet.envs.given import EnvSource
from quintet.envs.make import make_group_env
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.models.leaves import is_grid_with_mission, is_image
from quintet.spaces import action_leaves, action_space_of, observation_leaves
from quintet.types import Spaces

EnvKind = Literal["atari", "pixels", "grid", "vector_discrete", "vector_continuous"]
"""atari: a game with our preprocessing. pixels: a picture among the observations. grid: ids of
cells with a mission, as in MiniGrid and BabyAI. vector_continuous: any other with at least one
continuous action. vector_discrete: all others.
"""


def kind_of(env: ResolvedEnv) -> EnvKind:
    """The kind of a resolved environment. Unless it is an Atari game or a vector environment, one
    environment is made for its spaces, and closed.  Raises ConfigError if the environment can't be
    made.
    """
    source = env.source
    if env.atari is not None:
        return "atari"
    if isinstance(source, ForeignVectorEnv):
        action = action_space_of(source.single_action_space, env.config.id)
        return _kind_by_spaces(Spaces(source.single_observation_space, action))
    probe = make_group_env(env, env.streams_of(1))
    try:
        return _kind_by_spaces(probe.spaces)
    finally:
        probe.close()


def kind_asked_for(asked: Mapping[str, Any], source: EnvSource | None = None) -> EnvKind:
    """The kind of the environment that options, by dotted name, ask for.

    Raises:
        ConfigError: the environment can't be made.
        pydantic.ValidationError: one of its options is out of range.
    """
    options = {
        name: absent(asked[f"env.{name}"], info)
        for name, info in EnvConfig.model_fields.items()
        if f"env.{name}" in asked
    }
    return kind_of(resolve_env(EnvConfig(**options), source))


def _kind_by_spaces(spaces: Spaces) -> EnvKind:
    leaves = observation_leaves(spaces.observation)
    if any(is_image(leaf) for leaf in leaves.values()):
        return "pixels"
    if is_grid_with_mission(leaves):
        return "grid"
    if any(isinstance(leaf, Box) for leaf in action_leaves(spaces.action)):
        return "vector_continuous"
    return "vector_discrete"
