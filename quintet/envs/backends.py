"""The backends, which implement environments: quintet's own, and those of installed packages.

A package adds a backend by an entry point of the group ``quintet.environments`` that names its
record, a `Backend`.  To find the backend of an id the record's module is imported, so that should
not import the simulator.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

from quintet.system.cpus import usable_cores
from quintet.system.plugins import Catalog

if TYPE_CHECKING:
    import gymnasium

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
    device: device of their tensors, for backends that can choose it.
    """

    num_streams: int
    first_stream: int = 0
    drawn: bool = False
    device: str = "cpu"


Cost = Literal["cheap", "simulator", "pictures"]
"""cheap: a step takes less than passing it to another thread. pictures: observations are pictures,
for which networks take threads too.
"""


@final
@dataclass(frozen=True, kw_only=True)
class Backend:
    """One backend.

    title: its name in messages.
    make: makes the environments of a group.
    ids: returns the ids that it knows, for lists and suggestions; None: it takes no ids.
    knows: whether it knows an id; backends are tried in their order where ``env.backend=auto``.
    claims: whether it takes a maker of environments, named ``module:name``, where
        ``env.backend=auto``; None: it takes no makers.
    identify: returns the environment of an id that it knows.
    needs: description of its input, if it takes no ids.
    hint: a sentence for users who give an id that no backend knows, or "".
    install: the command that installs it.
    in_python: whether its environments are stepped in Python one after another.
    on_device: whether its environments are of tensors, on the device that their group names.
    singles: the single environments of a group, empty where it steps them otherwise; other
        processes can make and step them one by one.  None: it has none.
    gives_mask: whether a reset of environments that are made for it gives a fitting action mask in
        info; None: it takes no masks from info.
    cost: the cost of a step of a family, where threads step; None: Python steps one by one.
    num_agents: returns the number of agents of an environment, each of which is a stream.
    warnings: returns sentences about known faults of an environment.
    limits_steps: whether it follows ``env.max_episode_steps``.
    settle: returns the options of `EnvConfig` that its kind of vector environment, given by a user,
        determines; None for another kind.
    tells_spaces: whether the spaces of an id are known without making environments.
    packages: packages whose versions affect observations, by their modules; only imported ones
        count.
    """

    title: str
    make: "Callable[[ResolvedEnv, Group], VectorEnv]"
    ids: Callable[[], Iterable[str]] | None = None
    knows: Callable[[str], bool] = lambda _: False
    claims: Callable[[str], bool] | None = None
    identify: "Callable[[EnvConfig], Identity]" = lambda _: Identity()
    needs: str = ""
    hint: Callable[[str], str] = lambda _: ""
    install: str = ""
    is_installed: Callable[[], bool] = lambda: True
    in_python: bool = False
    on_device: bool = False
    singles: "Callable[[VectorEnv], Sequence[gymnasium.Env]] | None" = None
    gives_mask: "Callable[[VectorEnv], bool] | None" = None
    cost: Callable[[str], Cost] | None = None
    num_agents: "Callable[[ResolvedEnv], int]" = lambda _: 1
    warnings: "Callable[[ResolvedEnv], list[str]]" = lambda _: []
    settle: Callable[[object], dict[str, Any] | None] = lambda _: None
    limits_steps: bool = False
    tells_spaces: bool = False
    packages: Mapping[str, str] = field(default_factory=dict)


BACKENDS = Catalog(
    "quintet.environments",
    "environment backend",
    Backend,
    {
        "envpool": "quintet.envs.envpool:BACKEND",
        "ale": "quintet.envs.ale:BACKEND",
        "pytorch": "quintet.envs.torch_backend:BACKEND",
        "pettingzoo": "quintet.envs.pettingzoo_backend:BACKEND",
        "gymnasium": "quintet.envs.python_backend:BACKEND",
    },
    "quintet.jobs.imports:import_apart",
)
"""All backends, in the order in which they are tried where ``env.backend=auto``."""


def num_groups(cost: Cost) -> int:
    """Default number of pools that take turns: one steps while the others' actions are computed.

    Simulators get two.  Cheap environments get one, since passing a step to another thread costs
    more than the step.  So do pictures on fewer than four cores, where the threads of networks and
    pools hinder each other (measured: 370 us per env_step with one pool of Pong, 490 with two).
    """
    return 1 if cost == "cheap" or (cost == "pictures" and usable_cores() < 4) else 2


def num_threads(cost: Cost, num_streams: int, pools: int = 1, cores: int | None = None) -> int:
    """Default number of threads of each of `pools` pools; the number does not change results.

    Cheap environments get one thread. Pools of simulators and pictures get the cores divided by
    `pools`, at most one thread per stream. On two cores with two pools of 4, 8 or 32 streams, one
    thread was faster than two, or as fast within the noise, for every family measured.
    """
    if cost == "cheap":
        return 1
    return max(1, min((cores or usable_cores()) // pools, num_streams))
