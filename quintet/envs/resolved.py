"""An environment resolved: what an `EnvConfig` and a given source mean on this machine."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, final

import gymnasium
from gymnasium.vector import VectorEnv as ForeignVectorEnv

from quintet.envs import ale, envpool
from quintet.envs.atari import AtariConfig, read_config
from quintet.envs.config import EnvConfig
from quintet.envs.given import EnvSource, MakeEnv, makes_groups
from quintet.envs.ids import envpool_id, resolve_backend
from quintet.errors import ConfigError
from quintet.system.importing import import_module


@final
@dataclass(frozen=True)
class ResolvedEnv:
    """What environments are made of, in this process, in workers and in evaluations.

    config: its options, with the backend that makes it.
    source: the callable or vector environment that was given, for which `config.id` is only a
        name; None: the id, or the import string, says what makes it.
    name: what the backend calls it: EnvPool's id, or the game of ale-py; else empty.
    family: of EnvPool, whose numbers of groups and threads are taken; ``"atari"`` with backend
        ``ale`` too, and empty with ``gymnasium``.
    atari: the options of an Atari game with our preprocessing; None: it is no such game.
    """

    config: EnvConfig
    source: EnvSource | None = None
    name: str = ""
    family: str = ""
    atari: AtariConfig | None = None

    @property
    def kind(self) -> Literal["id", "maker", "group maker", "vector environment"]:
        """What it comes from: an id that a backend knows, what makes single environments, what
        makes groups of them (it has a parameter ``num_envs``), or a vector environment itself.

        Imports what an import string names.
        """
        if isinstance(self.source, ForeignVectorEnv):
            return "vector environment"
        if self.source is None and ":" not in self.config.id:
            return "id"
        return "group maker" if makes_groups(self.maker) else "maker"

    @property
    def maker(self) -> MakeEnv:
        """What makes environments of backend ``gymnasium``, unless a vector environment was given.

        Raises:
            ConfigError: an import string names nothing.
        """
        assert not isinstance(self.source, ForeignVectorEnv)
        return self.source if self.source is not None else _find_maker(self.config.id)

    @property
    def auto_num_groups(self) -> int:
        """Groups where the configuration leaves them open: one, where this process takes the steps,
        as more would only double the number of acts; else as is best for the family.
        """
        groups = envpool.default_num_groups(self.family) if self.family else 1
        return groups if self.config.num_streams % groups == 0 else 1

    @property
    def group_size(self) -> int:
        """Streams that step and act together, as configured or by `auto_num_groups`."""
        return self.config.streams_per_group or self.config.num_streams // self.auto_num_groups

    def auto_num_threads(self, num_streams: int) -> int:
        """Threads of a group of so many streams, where the configuration leaves them open: the
        cores are shared with the other groups.
        """
        groups = max(1, self.config.num_streams // num_streams)
        return envpool.default_num_threads(self.family, num_streams, groups) if self.family else 1

    def num_threads(self, num_streams: int) -> int:
        """Threads that step a group of so many streams, as configured or by `auto_num_threads`."""
        return self.config.num_threads or self.auto_num_threads(num_streams)

    def streams_of(self, wanted: int) -> int:
        """Streams of a group of which so many are wanted: a given vector environment is one."""
        return self.source.num_envs if isinstance(self.source, ForeignVectorEnv) else wanted

    def with_options(self, options: Mapping[str, Any]) -> "ResolvedEnv":
        """The same with other options in its configuration, and its other fields as they are."""
        return replace(self, config=self.config.model_copy(update=options))


def resolve_env(config: EnvConfig, source: EnvSource | None = None) -> ResolvedEnv:
    """Says who makes an environment and how; imports nothing of the user's, and makes nothing.

    Args:
        source: what it comes from if not from `config.id`, which then is only a name; callables
            are given `config.kwargs`.

    Raises:
        ConfigError: nobody knows the id, the backend is missing, or the options of an Atari game
            can't be used.
    """
    backend = "gymnasium" if source is not None else resolve_backend(config.id, config.backend)
    config = config.model_copy(update={"backend": backend})
    if source is not None:
        return ResolvedEnv(config, source)
    if backend == "envpool":
        name = envpool_id(config.id)
        assert name is not None
        family = envpool.family_of(name)
        if family != "atari":
            return ResolvedEnv(config, name=name, family=family)
        known = AtariConfig.model_fields  # EnvPool checks the others
        ours = {key: value for key, value in config.kwargs.items() if key in known}
        return ResolvedEnv(config, None, name, family, read_config(config.id, ours))
    # A user may have registered an id like "Pong-v5".
    theirs = backend == "gymnasium" and config.id in gymnasium.registry
    rom = None if theirs and not config.id.startswith("ALE/") else ale.rom_of(config.id)
    if rom is None:
        return ResolvedEnv(config)
    game = read_config(config.id, config.kwargs)
    return ResolvedEnv(config, None, rom, "atari" if backend == "ale" else "", game)


def _find_maker(name: str) -> MakeEnv:
    """What makes the environments of a Gymnasium id, ``"module:Id-v0"`` or an import string."""
    module_name, colon, attribute = name.partition(":")
    if colon:
        module = import_module(module_name, name)
        if hasattr(module, attribute):
            maker: MakeEnv = getattr(module, attribute)
            if not callable(maker):
                raise ConfigError(
                    f"{name!r} must name a function or class that makes an environment; "
                    f"got {maker!r}; correct the name"
                )
            return maker
        if attribute not in gymnasium.registry:  # importing the module may have registered it
            near = difflib.get_close_matches(attribute, dir(module), n=3, cutoff=0.5)
            raise ConfigError(
                f"{name!r} must name something in module {module_name!r} or an id that it "
                f"registers; found neither; {f'did you mean {near}?' if near else 'correct it'}"
            )
        name = attribute
    # Its checker repeats at every step what the adapter checks more cheaply.
    return partial(gymnasium.make, name, disable_env_checker=True)
