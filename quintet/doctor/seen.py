"""Everything that was measured of an environment, for the findings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from quintet.algorithms.registry import DEFAULT
from quintet.config.choices import Doubt
from quintet.doctor.fits import Fits
from quintet.doctor.pairs import Pairs
from quintet.doctor.play import Play
from quintet.envs.check import EnvCheck


@final
@dataclass(frozen=True)
class Options:
    """The options that findings about an environment depend on.

    train: the beginning of a command that trains in this environment; folder: the beginning of the
        name of its run folder, so that it meets no run that is there.
    memory: whether the network has a memory, or sees several observations.
    remember: the words that give it one, in the learners that have no such network several
        observations.
    normalizes: whether floats in observations are normalised.
    shows_last: whether observations have the last action and reward.
    known: findings that the user knows.
    """

    algo: str = DEFAULT
    gamma: float | None = 0.99
    memory: bool = False
    remember: str = "--model.core lstm"
    normalizes: bool = True
    shows_last: bool = False
    total_env_steps: int = 1_000_000
    train: str = f"quintet train {DEFAULT} --env ID"
    folder: str = f"runs/{DEFAULT}-ID"
    check: str = "quintet check-env ID"
    known: tuple[str, ...] = ()


@final
@dataclass
class Seen:
    """Measurements; None: not made.

    doubts: doubtful choices by the evidence of the check, or of random play where it has more rows.
    threshold: return at which the environment's registration calls it solved; wrapped: that of an
        environment inside, whose rewards wrappers may change.
    remembers: what a second episode with the same seed had differently, in one environment.
    unmade: measurements that could not be made, with the reason.
    """

    options: Options = field(default_factory=Options)
    check: EnvCheck | None = None
    doubts: Sequence[Doubt] = ()
    played: Play | None = None
    pairs: Pairs | None = None
    fits: Fits | None = None
    remembers: str | None = None
    threshold: float | None = None
    wrapped: bool = False
    unmade: dict[str, str] = field(default_factory=dict)
