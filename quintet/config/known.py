"""Findings that the user knows, and wants to hear no more of."""

from difflib import get_close_matches
from typing import final

from pydantic import field_validator

from quintet.errors import ConfigError
from quintet.options import Options, option

NAMES = frozenset(
    {
        "action-ignored", "action-inconsistent", "action-mask", "action-pays", "action-saturated",
        "actions", "actions-saturated", "best-long-ago", "budget-short", "check-fault",
        "data-discarded", "dead-units", "dies", "encoder", "ends-at-once", "entropy-gone",
        "entropy-stuck", "evaluation-differs", "few-updates", "gamma", "gamma-one",
        "gradient-clipped", "gradient-spikes", "hangs", "health-normalizers", "health-part",
        "health-policy", "health-value-function", "hidden-clock", "lag-high", "layout",
        "never-ends", "no-episode", "not-finite", "not-learning", "not-repeatable",
        "observation-constant", "observation-dead", "observation-duplicate", "observation-late",
        "observation-memory", "observation-noise", "observation-scale", "option-far",
        "option-other", "plateau", "policy-still", "raises", "remembers", "replay-small",
        "replay-use", "returns-equal", "reward-constant", "reward-exploited", "reward-hidden",
        "reward-ignores-action", "reward-late", "reward-memory", "reward-never-seen",
        "reward-noise", "reward-rare", "reward-sign", "reward-size", "run-failed", "run-unreadable",
        "same-start", "seeds-differ", "slow", "slow-step", "time-limit", "values-scale",
    }
)  # fmt: skip
"""The names of all findings."""


@final
class DoctorConfig(Options):
    """Options of what is said about a run that may not learn."""

    known: tuple[str, ...] = option((), on_resume="free")
    """findings that are not told, since you know them: names, as time-limit, or NAME:OPTION for
    one option, as option-far:gamma
    """

    @field_validator("known", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("known")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if faults := [each for each in map(fault, value) if each]:
            raise ValueError(faults[0])
        return value


def fault(name: str) -> str:
    """A reason why a name names no finding, with the nearest one; "" if it does."""
    own = name.partition(":")[0]
    if own in NAMES:
        return ""
    near = get_close_matches(own.replace("_", "-"), NAMES, 1, 0.5)
    way = f"did you mean {near[0]}?" if near else "docs/not-learning.md lists them"
    return f"must name findings, got {name}: {way}"


def require_names(option: str, names: list[str]) -> None:
    """Raises ConfigError for the first name that names no finding."""
    for each in names:
        if said := fault(each):
            raise ConfigError(f"{option} {said}")


def is_known(known: object, name: str, subject: str = "") -> bool:
    """Whether a finding is among the known ones, which may be from a file of others."""
    held = known if isinstance(known, list | tuple | set | frozenset) else ()
    return name in held or (bool(subject) and f"{name}:{subject}" in held)
