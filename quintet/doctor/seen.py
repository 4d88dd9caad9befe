"""Everything that was measured of an environment, for the findings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from quintet.algorithms.registry import DEFAULT
from quintet.doctor.fits import Fits
from quintet.doctor.pairs import Pairs
from quintet.doctor.play import Play
from quintet.envs.check import EnvCheck
from quintet.findings.engine import Again
from quintet.findings.record import Finding

AGAIN = Again(f"quintet train {DEFAULT} --env ID", f"runs/{DEFAULT}-ID-", "quintet check-env ID")


@final
@dataclass(frozen=True)
class Options:
    """The options that findings about an environment depend on.

    again: beginnings of the commands of findings.
    memory: whether the network has a memory, or sees several observations.
    remember: the options that give the network a memory, or several observations where the
        learner has no network with memory.
    normalizes: whether floats in observations are normalised.
    shows_last: whether observations have the last action and reward.
    known: findings that the user knows.
    """

    again: Again = AGAIN
    gamma: float | None = 0.99
    memory: bool = False
    remember: str = "--model.core lstm"
    normalizes: bool = True
    shows_last: bool = False
    total_env_steps: int = 1_000_000
    known: tuple[str, ...] = ()

    @property
    def by_memory(self) -> str:
        """The words that give the network a memory; "": it has one."""
        return "" if self.memory else self.remember


@final
@dataclass
class Seen:
    """Measurements; None: not made.

    choices: doubtful ones by the evidence of the check, or of random play where it has more rows.
    threshold: return at which the environment's registration calls it solved; wrapped: that of an
        environment inside, whose rewards wrappers may change.
    remembers: the difference of a second episode with the same seed, in one environment.
    unmade: measurements that could not be made, with the reason.
    """

    options: Options = field(default_factory=Options)
    check: EnvCheck | None = None
    choices: Sequence[Finding] = ()
    played: Play | None = None
    pairs: Pairs | None = None
    fits: Fits | None = None
    remembers: str | None = None
    threshold: float | None = None
    wrapped: bool = False
    unmade: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return 0 if self.played is None else self.played.rows

    @property
    def step_s(self) -> float:
        return 0.0 if self.check is None else self.check.step_s
