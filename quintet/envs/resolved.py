"""Resolves an `EnvConfig` and its source on this machine."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal, cast, final

import gymnasium
from gymnasium.vector import VectorEnv as GymVectorEnv

from quintet.envs import backends
from quintet.envs.atari import AtariConfig
from quintet.envs.backends import BACKENDS, Backend
from quintet.envs.config import EnvConfig
from quintet.envs.env_source import (
    GIVEN,
    EnvSource,
    GivenTensors,
    MakeEnv,
    Numbers,
    can_be_made_again,
    makes_groups,
)
from quintet.envs.ids import resolve_backend
from quintet.envs.success import key_of
from quintet.envs.vector import InfoReader, VectorEnv
from quintet.errors import ConfigError
from quintet.system.importing import import_module, name_of, origin_of

if TYPE_CHECKING:
    from quintet.envs.info_metrics import Term


@final
@dataclass(frozen=True)
class ResolvedEnv:
    """Everything needed to make an environment, in this process, in workers and in evaluations.

    config: its options, with the resolved backend.
    source: the given callable or vector environment, for which `config.id` is only a name; None:
        the id or import string makes it.
    name, family, atari: see `quintet.envs.backends.Identity`.
    remarks, notes: warnings and notes about what was seen when its options were settled.
    look: looks at the infos while ``env.metrics`` is settled.
    numbers: for its makers.
    """

    config: EnvConfig
    source: EnvSource | None = None
    name: str = ""
    family: str = ""
    atari: AtariConfig | None = None
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    look: InfoReader | None = None
    numbers: Numbers = field(default_factory=Numbers)

    @property
    def kind(self) -> Literal["id", "maker", "group maker", "vector environment"]:
        """The kind of its source: an id of a backend, a maker of single environments, a maker of
        groups (with a parameter ``num_envs``), or a vector environment.

        Imports the module of an import string.
        """
        if isinstance(self.source, GIVEN):
            return "vector environment"
        if self.source is None and ":" not in self.config.id:
            return "id"
        return "group maker" if makes_groups(self.maker) else "maker"

    @property
    def maker(self) -> MakeEnv:
        """The maker of environments that Python steps, unless a vector environment was given;
        raises ConfigError if an import string can't be resolved.
        """
        assert not isinstance(self.source, GIVEN)
        if self.source is not None:
            return self.source
        return _find_maker(self.config.id)

    @property
    def backend(self) -> Backend:
        """The record of its backend."""
        return BACKENDS.find(self.config.backend)

    @property
    def pools(self) -> str:
        """Names of quintet's own backends that step in threads, for messages."""
        return " or ".join(name for name in BACKENDS.own if BACKENDS.find(name).cost is not None)

    @property
    def of_tensors(self) -> bool:
        """Whether its environments are known to be of tensors before one is made."""
        return self.backend.on_device or isinstance(self.source, GivenTensors)

    @property
    def warnings(self) -> list[str]:
        """Sentences about its known faults."""
        return [*self.backend.warnings(self), *self.remarks]

    @property
    def auto_num_groups(self) -> int:
        """Default number of groups: one if Python steps, where more would only add acts; else the
        backend's.
        """
        cost = self.backend.cost
        groups = 1 if cost is None else backends.num_groups(cost(self.family))
        return groups if self.config.num_streams % groups == 0 else 1

    @property
    def group_size(self) -> int:
        """Number of streams in a group, as configured or by `auto_num_groups`."""
        return self.config.streams_per_group or self.config.num_streams // self.auto_num_groups

    def auto_num_threads(self, num_streams: int) -> int:
        """Default number of threads of a group of that size; groups share the cores."""
        cost, groups = self.backend.cost, max(1, self.config.num_streams // num_streams)
        return 1 if cost is None else backends.num_threads(cost(self.family), num_streams, groups)

    def num_threads(self, num_streams: int) -> int:
        """Threads of a group of that size, as configured or by `auto_num_threads`."""
        return self.config.num_threads or self.auto_num_threads(num_streams)

    @property
    def can_be_made_again(self) -> bool:
        """Whether further environments can be made."""
        return can_be_made_again(self.source)

    @property
    def can_be_spread(self) -> bool:
        """Whether other processes can make and step its environments one by one.

        Imports the module of an import string.
        """
        if self.backend.singles is None or not self.can_be_made_again:
            return False
        return isinstance(self.source, GymVectorEnv) or self.kind != "group maker"

    def singles(self, made: VectorEnv) -> Sequence[gymnasium.Env[Any, Any]]:
        """Single environments that a group of it steps; empty where it steps them otherwise."""
        return () if self.backend.singles is None else self.backend.singles(made)

    @cached_property
    def num_agents(self) -> int:
        """Number of agents of an environment, each of which is a stream; found by making one
        environment of a game.
        """
        return self.backend.num_agents(self)

    def streams_of(self, wanted: int) -> int:
        """Number of streams of a group: at least the wanted number, in whole games; all streams of
        a given vector environment.
        """
        if isinstance(self.source, GIVEN):
            return int(self.source.num_envs)
        return -(-wanted // self.num_agents) * self.num_agents

    @cached_property
    def terms(self) -> "tuple[Term, ...]":
        """The terms of ``env.metrics``; empty while it is not settled."""
        return () if self.look is not None else self.config.terms

    def info_reader(self, num_streams: int) -> InfoReader | None:
        """A reader of these numbers, and of success, in the infos of a group; None if there is
        nothing to read.
        """
        success = key_of(self.config.success)
        if self.look is not None or not (self.terms or success):
            return self.look
        from quintet.envs.info_metrics import InfoMetrics

        who = f"{self.config.id} ({self.config.backend})"
        return InfoMetrics(self.terms, num_streams, who, success)

    def numbered(self, **numbers: int) -> "ResolvedEnv":
        """The same environment with other `Numbers`."""
        return replace(self, numbers=self.numbers._replace(**numbers))

    def with_options(self, options: Mapping[str, Any]) -> "ResolvedEnv":
        """The same environment with other options in its configuration."""
        return replace(self, config=self.config.model_copy(update=options))


def resolve_env(config: EnvConfig, source: EnvSource | None = None) -> ResolvedEnv:
    """Resolves an environment, without making one or importing a user's module.

    Args:
        source: makes the environments in place of `config.id`, which then is only a name; callables
            receive `config.kwargs`.

    Raises:
        ConfigError: no backend knows the id, the backend is missing, or the options of an Atari
            game are invalid.
    """
    if source is None:
        backend = resolve_backend(config.id, config.backend)
    else:
        backend = resolve_backend(name_of(source), config.backend)
    config = config.model_copy(update={"backend": backend})
    if config.max_episode_steps is not None and not BACKENDS.find(backend).limits_steps:
        raise ConfigError(
            f"env.max_episode_steps must have a backend that limits steps, {backend!r} does not: "
            "leave it out, and set the limit in the environment"
        )
    if source is not None or ":" in config.id:
        return ResolvedEnv(config, source)
    return ResolvedEnv(config, None, *BACKENDS.find(backend).identify(config))


def _find_maker(name: str) -> MakeEnv:
    """The maker of a Gymnasium id, of ``"module:Id-v0"``, or of an import string."""
    module_name, colon, attribute = name.partition(":")
    if colon:
        module = import_module(module_name, name)
        maker: Any = getattr(module, attribute, None)
        if callable(maker):
            return cast(MakeEnv, maker)
        if hasattr(module, attribute):
            raise ConfigError(
                f"{name!r} must name a function or class that makes an environment; got {maker!r}; "
                "correct the name"
            )
        if attribute not in gymnasium.registry:  # importing the module may have registered it
            _register_envs_of(module_name.partition(".")[0])
        if attribute not in gymnasium.registry:
            from quintet.envs.old_gym import registered_maker

            if (made := registered_maker(attribute)) is not None:
                return made
        if attribute not in gymnasium.registry and module_name == "__main__":
            raise ConfigError(
                f"{name!r} must be in the script that runs, but {origin_of(module)} has no "
                f"{attribute!r}: it was defined in the script that trained; give its import string "
                "(the name of the script's module:name) as --env, or the class itself as env="
            )
        if attribute not in gymnasium.registry:
            near = difflib.get_close_matches(attribute, dir(module), n=3, cutoff=0.5)
            raise ConfigError(
                f"{name!r} must name something in module {module_name!r} or an id that it "
                f"registers, but {origin_of(module)} has neither; "
                f"{(f'did you mean {near}?' if near else 'correct it')}"
            )
    # Gymnasium's checker repeats at every step what the adapter checks more cheaply.
    return partial(gymnasium.make, attribute or name, disable_env_checker=True)


def _register_envs_of(package: str) -> None:
    """Runs what a package declares for Gymnasium to register its environments; since version 1.0
    Gymnasium does not do so itself.
    """
    for entry in entry_points(group="gymnasium.envs"):
        if entry.module.partition(".")[0] == package:
            register = entry.load()
            if callable(register):
                register()
