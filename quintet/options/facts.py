"""Facts besides the options: the kind and the spaces of the environment, and inputs of the options'
conditions."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, final

from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv as GymVectorEnv

from quintet.algorithms import registry
from quintet.envs import other_apis
from quintet.envs.config import EnvConfig
from quintet.envs.env_source import EnvSource
from quintet.envs.make import make_group_env
from quintet.envs.own_state import own_state
from quintet.envs.owners import made_for, note_closed
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.settled import MasksInInfo, masks_in_info, with_masks
from quintet.models.config import network_facts
from quintet.models.leaves import has_small_picture, is_grid_with_mission, is_image
from quintet.options.declaration import Facts
from quintet.options.layers import canonical
from quintet.options.run import RunConfig
from quintet.spaces import action_leaves, action_space_of, float64_leaves, observation_leaves
from quintet.system.files import same_folder
from quintet.system.user_code import slow_notice
from quintet.types import ACTION_MASK, Spaces

EnvKind = Literal["atari", "pixels", "grid", "small_pixels", "vector_discrete", "vector_continuous"]
"""atari: a game with our preprocessing. pixels: a picture among the observations. grid: ids of
cells with a mission, as in MiniGrid and BabyAI. small_pixels: a picture that is too small for
nature_cnn or is not uint8, with channels. vector_continuous: any other with at least one
continuous action. vector_discrete: all others.
"""


_WITHOUT_EFFECT = {
    *("num_streams", "streams_per_group", "num_threads", "num_processes"),
    *("reward_clip", "success", "curriculum"),
}
"""Options of environments on which their spaces do not depend."""


_Seen = tuple[ResolvedEnv, Spaces, MasksInInfo]
"""An environment, its spaces, and whether a mask in info is to be taken."""

_kept: list[tuple[EnvSource | None, _Seen]] | None = None


@contextmanager
def looks_kept() -> Iterator[None]:
    """Makes environments with the same options only once to read their spaces, for the time of a
    search whose many configurations have them.
    """
    global _kept
    before, _kept = _kept, []
    try:
        yield
    finally:
        _kept = before


@final
class KindProbe:
    """Finds the environment's kind from options by dotted name, once."""

    def __init__(self, asked: Mapping[str, Any], source: EnvSource | None = None) -> None:
        self._asked, self._source = asked, source
        self._made: _Seen | None = None

    @cached_property
    def kind(self) -> EnvKind:
        """Except for Atari games and vector environments, one environment is made to read its
        spaces, and closed.

        Raises:
            ConfigError: the environment can't be made.
            pydantic.ValidationError: one of its options is out of range.
        """
        options = {
            name: canonical(self._asked[f"env.{name}"], info)
            for name, info in EnvConfig.model_fields.items()
            if f"env.{name}" in self._asked and name not in _WITHOUT_EFFECT
        }
        env, source = resolve_env(EnvConfig(**options), self._source), self._source
        if env.atari is not None:
            return "atari"
        if isinstance(source, GymVectorEnv):
            other_apis.require_spaces(source, env.config.id, "single_")
            action = action_space_of(source.single_action_space, env.config.id)
            return kind_by_spaces(Spaces(source.single_observation_space, action))
        for given, seen in _kept or ():
            if given is source and _of_spaces(seen[0]) == _of_spaces(env):
                self._made = seen
                return kind_by_spaces(seen[1])
        self._made = seen = env, *_look(env)
        if _kept is not None:
            _kept.append((source, seen))
        return kind_by_spaces(seen[1])

    def look(self, env: ResolvedEnv) -> tuple[ResolvedEnv, Spaces | None]:
        """`env` with ``env.mask_from_info`` settled, and its spaces, if an environment with its
        options was made to find the kind; without its spaces if it takes masks from info.
        """
        if self._made is None or _of_spaces(env) != _of_spaces(self._made[0]):
            return env, None
        _, spaces, masked = self._made
        if env.config.mask_from_info != "auto" or ACTION_MASK in observation_leaves(spaces[0]):
            return env, spaces
        return with_masks(env, masked), None if masked.at_reset else spaces


def _of_spaces(env: ResolvedEnv) -> dict[str, Any]:
    return env.config.model_dump(exclude=_WITHOUT_EFFECT)


def spaces_of(env: ResolvedEnv) -> Spaces:
    """The spaces of an environment, which is made to read them and closed; raises ConfigError if it
    can't be made.
    """
    return _look(env)[0]


def _look(env: ResolvedEnv) -> tuple[Spaces, MasksInInfo]:
    """The same, and what info has of masks."""
    doing = f"{env.config.id} is made for its spaces, and closed"
    with same_folder(), slow_notice(doing), made_for("its spaces"):
        probe = make_group_env(env, env.streams_of(1))
        try:
            return probe.spaces, masks_in_info(env, probe)
        finally:
            own = own_state(probe)
            seen = [] if own is None else [layers[-1] for layers in own.layers]
            probe.close()
            for each in seen:
                note_closed(each)


def kind_by_spaces(spaces: Spaces) -> EnvKind:
    """The kind of an environment, by which presets are chosen."""
    leaves = observation_leaves(spaces.observation)
    if any(is_image(leaf) for leaf in leaves.values()):
        return "pixels"
    if is_grid_with_mission(leaves):
        return "grid"
    if has_small_picture(leaves):
        return "small_pixels"
    if any(isinstance(leaf, Box) for leaf in action_leaves(spaces.action)):
        return "vector_continuous"
    return "vector_discrete"


def facts(
    config: RunConfig,
    env: ResolvedEnv | None = None,
    evaluated: ResolvedEnv | None = None,
    spaces: Spaces | None = None,
) -> Facts:
    """Facts of a run; without an environment and its spaces those that are known without them.

    evaluated: the environment of evaluations, if it differs.
    """
    parts = ("learner", "runtime", "eval", "population", "self_play", "cluster")
    known = {name: getattr(config, name) for name in parts} | network_facts(config.model, spaces)
    known["init_from"] = config.init_from
    known["shared"] = registry.find(config.algo).shared
    if env is None or spaces is None:
        return Facts(**known)
    stepped = [env] if config.runtime.kind == "serial" else []
    if config.eval.episodes > 0 and config.eval_env.num_processes is None:
        stepped.append(evaluated or env)
    return Facts(
        **known,
        env=env,
        evaluated=evaluated or env,
        stepped=stepped,
        float64=bool(float64_leaves((spaces.own or spaces).observation)),
    )
