"""The backends, which implement environments: quintet's own, and those of installed packages.

A package adds a backend by an entry point of the group ``quintet.environments`` that names its
record, a `Backend`.  Whoever asks which backend knows an id imports the record's module, so that
should not import the simulator.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, final

from quintet.system.catalog import Catalog

if TYPE_CHECKING:
    from quintet.envs.atari import AtariConfig
    from quintet.envs.config import EnvConfig
    from quintet.envs.resolved import ResolvedEnv
    from quintet.envs.vector import VectorEnv


class Identity(NamedTuple):
    """An environment as its backend knows it.

    name: the backend's name for it.
    family: part of the backend that implements it, which determines the numbers of groups and
        threads.
    atari: the options of an Atari game with our preprocessing; None: not such a game.
    """

    name: str = ""
    family: str = ""
    atari: "AtariConfig | None" = None


class Group(NamedTuple):
    """The environments to make.

    first_stream: number of their first stream in the run, for error messages.
    drawn: whether to make environments for `render`, for backends that must know it at that time.
    """

    num_streams: int
    first_stream: int = 0
    drawn: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Backend:
    """One backend.

    title: its name in messages.
    make: makes the environments of a group.
    ids: returns the ids that it knows, for lists and suggestions.
    knows: whether it knows an id; it is asked in the order of the backends where
        ``env.backend=auto``.
    claims: whether it takes what makes environments, of the name ``module:name``, where
        ``env.backend=auto``; None: it takes none, only ids.
    identify: the environment of an id that it knows.
    needs: what it takes, where it takes no ids.
    hint: a sentence for whoever gives an id that nobody knows, or "".
    package: what must be installed, and install: the command that installs it.
    in_python: whether Python steps its environments one after another.
    single: whether other processes can make and step single environments of it.
    num_groups: default number of groups, of the family.
    num_threads: default number of threads of a group, of (family, its streams, groups).
    num_agents: agents of an environment, each of which is a stream.
    warnings: sentences on what is known to be wrong with an environment.
    owns: whether an object is a vector environment of its own kind, which can't be given seeds.
    settle: the options of `EnvConfig` that such an object, given by a user, determines; None: it is
        another one.
    tells_spaces: whether the spaces of an id are known without making environments.
    mask_hint: what to do in place of ``env.mask_from_info``.
    packages: packages whose versions determine observations, by their modules; those that are
        imported count.
    bare_step: returns a bare step of environments, of (id, their number, cores), for the limit of
        `quintet bench`.
    """

    title: str
    make: "Callable[[ResolvedEnv, Group], VectorEnv]"
    ids: Callable[[], Iterable[str]] | None = None
    knows: Callable[[str], bool] = lambda _: False
    claims: Callable[[str], bool] | None = None
    identify: "Callable[[EnvConfig], Identity]" = lambda _: Identity()
    needs: str = ""
    hint: Callable[[str], str] = lambda _: ""
    package: str = ""
    install: str = ""
    is_installed: Callable[[], bool] = lambda: True
    in_python: bool = False
    single: bool = False
    num_groups: Callable[[str], int] = lambda _: 1
    num_threads: Callable[[str, int, int], int] = lambda *_: 1
    num_agents: "Callable[[ResolvedEnv], int]" = lambda _: 1
    warnings: "Callable[[ResolvedEnv], list[str]]" = lambda _: []
    owns: Callable[[object], bool] = lambda _: False
    settle: Callable[[object], dict[str, Any] | None] = lambda _: None
    tells_spaces: bool = False
    mask_hint: str = "choose backend 'gymnasium'"
    packages: Mapping[str, str] = field(default_factory=dict)
    bare_step: Callable[[str, int, int], Callable[[], object]] | None = None


BACKENDS = Catalog(
    "quintet.environments",
    "environment backend",
    Backend,
    {
        "envpool": "quintet.envs.envpool:BACKEND",
        "ale": "quintet.envs.ale:BACKEND",
        "pettingzoo": "quintet.envs.pettingzoo:BACKEND",
        "gymnasium": "quintet.envs.singles:BACKEND",
    },
)
"""All backends, in the order in which they are asked where ``env.backend=auto``."""
