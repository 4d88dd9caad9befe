"""Curricula: what environments get as ``reset(options=...)``, which changes while the agent learns.

A curriculum of the user's own is an object with these methods, or a class or function that makes
one:

- ``options(stream, rng)`` returns the options of a stream's next episode, a dict; every process
  that resets environments has a copy, so they depend on the state and the arguments alone;
- ``ended(episode)`` receives every episode that was learned from, an `Ended`, in the run's process;
- ``state()`` returns all that `options` and `ended` depend on: dicts, lists, numbers, texts, None,
  NumPy arrays, and tensors, which ``load(state)`` gets as arrays.  It is in every checkpoint.

It may have ``at(env_steps)``, called after every iteration, and ``metrics()``, numbers by name that
reports have as ``curriculum/NAME``.
"""

import json
import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Annotated, Any, Literal, NamedTuple, Self, final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from quintet.errors import ConfigError
from quintet.options.declaration import Options, faults
from quintet.system.importing import CodeName, Given, code_of, named
from quintet.system.signals import STOPS
from quintet.system.user_code import raised, traced

RESET_SEED = "reset_seed"
"""Name of an option that is taken out, and is the seed of the reset."""

_METHODS = ("options", "ended", "state", "load")

Chosen = Mapping[str, Any]
"""Options of a reset."""


class Ended(NamedTuple):
    """An episode that has ended.

    options: those of its reset; None if it had none.
    return_: sum of its raw rewards; length: in env_steps.
    success: None without ``env.success``.
    env_steps: of the run, when it was learned from.
    score: see `Levels.score_of`, mean over its rows; None if it is not known.
    metrics: the environment's own numbers, by the name after ``env/``.
    """

    options: Chosen | None
    return_: float
    length: int
    success: bool | None
    env_steps: int
    score: float | None = None
    metrics: Mapping[str, float] = {}

    def metric(self, name: str) -> float | None:
        """A metric; None if it has none.  ``-NAME`` is its negative."""
        own = {"return": self.return_, "length": float(self.length), "success": self.success}
        plain, sign = name.removeprefix("-"), -1.0 if name.startswith("-") else 1.0
        value = own.get(plain, self.metrics.get(plain.removeprefix("env/")))
        return None if value is None else sign * float(value)


class Kind(Options):
    """A curriculum as a run uses it, and its options."""

    kind: str
    """name of the kind"""

    @property
    def said(self) -> str:
        """The stage, for the user; "" without stages."""
        return ""

    def options(self, stream: int, rng: Generator, *, final: bool = False) -> Chosen:
        """The options of an episode; final: of an evaluation, at the end of the curriculum."""
        raise NotImplementedError

    def ended(self, episode: Ended) -> None: ...

    def at(self, env_steps: int) -> None: ...

    def state(self) -> Any: ...

    def load(self, state: Any) -> None: ...

    def metrics(self) -> Mapping[str, float]:
        return {}


@final
class Stages(Kind):
    """Stages that follow each other as soon as the agent is good enough.

    stages: the options of each; bar: the metric's mean, over a stage's last `episodes`, with which
        the next one begins, or one for each stage but the last.
    metric: success, return, length or env/NAME; -NAME: less is better.
    back: mean below which the stage before begins again.
    """

    stages: list[dict[str, Any]] = Field(min_length=1)
    bar: float | list[float] = 0.8
    metric: str = Field("success", pattern=r"^-?(success|return|length|env/.+)$")
    episodes: int = Field(100, ge=1)
    back: float | None = None
    _bars: list[float] = PrivateAttr(default_factory=list)
    _stage: int = 0
    _recent: list[float] = PrivateAttr(default_factory=list)  # metrics of the stage's last episodes
    _lacking: int = 0  # episodes without the metric

    @model_validator(mode="after")
    def _fits(self) -> Self:
        count = len(self.stages)
        bars = self._bars = self.bar if isinstance(self.bar, list) else [self.bar] * (count - 1)
        if len(bars) != count - 1:
            raise ValueError(
                f"bar must be one number, or {count - 1} numbers for {count} stages (the last "
                f"stage has no bar), got {len(bars)} numbers: give {count - 1}"
            )
        if self.back is not None and any(self.back >= bar for bar in bars):
            raise ValueError(f"back must be less than bar, got {self.back} and {min(bars)}")
        return self

    @property
    def said(self) -> str:
        now = json.dumps(self.stages[self._stage])
        return f"stage {self._stage + 1} of {len(self.stages)}, {now}"

    def options(self, stream: int, rng: Generator, *, final: bool = False) -> Chosen:  # noqa: ARG002
        return self.stages[-1 if final else self._stage]

    def ended(self, episode: Ended) -> None:
        if episode.options != self.stages[self._stage]:  # another stage's
            return
        value = episode.metric(self.metric)
        if value is None:
            self._lacking += 1
            if self._lacking >= self.episodes and not self._recent:
                raise ConfigError(
                    f"env.curriculum must have a metric that episodes report, got {self.metric!r}, "
                    f"which none of {self._lacking} episodes reported: name another metric"
                )
            return
        self._recent = [*self._recent, value][-self.episodes :]
        if len(self._recent) < self.episodes:
            return
        mean = self._mean
        on = self._stage + 1 < len(self.stages) and mean >= self._bars[self._stage]
        if on or (self._stage and self.back is not None and mean < self.back):
            self._stage, self._recent = self._stage + (1 if on else -1), []

    @property
    def _mean(self) -> float:
        return math.fsum(self._recent) / len(self._recent)

    def state(self) -> Any:
        return self._stage, self._recent, self._lacking

    def load(self, state: Any) -> None:
        self._stage, self._recent, self._lacking = state

    def metrics(self) -> Mapping[str, float]:
        found = {"stage": self._stage + 1.0, "stages": float(len(self.stages))}
        return found | ({"metric_mean": self._mean} if self._recent else {})


@final
class Schedule(Kind):
    """Options that change with the env_steps of the run.

    values: by option, its value at some env_steps; between two it is interpolated, and rounded if
        all are whole numbers.
    """

    values: dict[str, Annotated[dict[int, int | float], Field(min_length=1)]]
    _env_steps: int = 0

    def _values_at(self, env_steps: float) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, given in self.values.items():
            steps, values = zip(*sorted(given.items()), strict=True)
            value = float(np.interp(env_steps, np.array(steps), np.array(values)))
            found[name] = round(value) if all(isinstance(y, int) for y in values) else value
        return found

    def options(self, stream: int, rng: Generator, *, final: bool = False) -> Chosen:  # noqa: ARG002
        return self._values_at(math.inf if final else self._env_steps)

    def at(self, env_steps: int) -> None:
        self._env_steps = env_steps

    def state(self) -> Any:
        return self._env_steps

    def load(self, state: Any) -> None:
        self._env_steps = state

    def metrics(self) -> Mapping[str, float]:
        return {name: float(x) for name, x in self._values_at(self._env_steps).items()}


@final
class Levels(Kind):
    """Prioritised level replay, Jiang et al., arXiv 2010.03934: a level that was not played yet
    comes with a probability of their share, else ``(1 - staleness) * P_score + staleness *
    P_stale`` of those that were, where ``P_score ~ rank ** (-1 / temperature)`` and
    ``P_stale ~ episodes since it was played``.

    levels: the options of each; a number N: the levels are the seeds 0 to N - 1 of resets.
    score: of an episode: its mean \\|advantage\\| (value_loss), or mean of its positive advantages,
        0 for others (regret); none: levels are drawn evenly.
    """

    levels: Annotated[int, Field(ge=1)] | Annotated[list[dict[str, Any]], Field(min_length=1)]
    score: Literal["value_loss", "regret", "none"] = "value_loss"
    temperature: float = Field(0.1, gt=0.0)
    staleness: float = Field(0.1, ge=0.0, le=1.0)
    _all: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _places: dict[str, int] = PrivateAttr(default_factory=dict)
    _scores: Any = None
    _stamps: Any = None  # number of each level's last episode, from 1; 0: none
    _weights: Any = None  # made when they are needed

    @model_validator(mode="after")
    def _several(self) -> Self:
        given = self.levels
        self._all = [{RESET_SEED: i} for i in range(given)] if isinstance(given, int) else given
        self._places = {json.dumps(level, sort_keys=True): i for i, level in enumerate(self._all)}
        self._scores = np.zeros(len(self._all))
        self._stamps = np.zeros(len(self._all), np.int64)
        return self

    @property
    def scored(self) -> bool:
        """Whether it needs scores of episodes."""
        return self.score != "none"

    def score_of(self, advantage: NDArray[np.float64]) -> NDArray[np.float64]:
        """The score of each row by its advantage."""
        return np.abs(advantage) if self.score == "value_loss" else np.maximum(advantage, 0.0)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Probability of each level ``[N]``."""
        found: NDArray[np.float64] = np.full(len(self._all), 1.0 / len(self._all))
        seen = self._stamps > 0
        if self.scored and seen.any():  # together the others keep their share
            rank = np.empty(seen.sum())
            rank[np.argsort(-self._scores[seen], kind="stable")] = np.arange(1, len(rank) + 1)
            by_score = rank ** (-1.0 / self.temperature)
            by_score /= by_score.sum()
            stale = (self._stamps.max() - self._stamps[seen]).astype(np.float64)
            stale = stale / stale.sum() if stale.any() else by_score
            mixed = (1.0 - self.staleness) * by_score + self.staleness * stale
            found[seen] = mixed * seen.mean()
            found /= found.sum()
        return found

    def options(self, stream: int, rng: Generator, *, final: bool = False) -> Chosen:  # noqa: ARG002
        if self._weights is None:
            self._weights = self.weights
        return self._all[rng.choice(len(self._all), p=None if final else self._weights)]

    def ended(self, episode: Ended) -> None:
        place = self._places.get(json.dumps(episode.options, sort_keys=True))
        if place is not None and (episode.score is not None or not self.scored):
            self._stamps[place] = self._stamps.max() + 1
            self._scores[place], self._weights = episode.score or 0.0, None

    def state(self) -> Any:
        return self._scores, self._stamps

    def load(self, state: Any) -> None:
        self._scores, self._stamps = (x.copy() for x in state)
        self._weights = None

    def metrics(self) -> Mapping[str, float]:
        seen = self._stamps > 0
        found = {"levels_seen_frac": float(seen.mean())}
        return found | ({"score_mean": float(self._scores[seen].mean())} if seen.any() else {})


@final
class OfUser(Kind):
    """A curriculum of the user's own; each fault of it is a ConfigError."""

    model_config = ConfigDict(extra="allow")
    kind: CodeName
    _made: Any = None

    @model_validator(mode="after")
    def _make(self) -> Self:
        self._made = code_of("env.curriculum", self.kind, "curriculum")
        if callable(self._made):
            self._made = self._call("__call__", **(self.model_extra or {}))
        lacks = [name for name in _METHODS if not self._has(name)]
        if lacks:
            raise ConfigError(
                f"env.curriculum={self.kind} must have the methods {', '.join(_METHODS)}, got "
                f"{type(self._made).__name__} without {', '.join(lacks)}: add them"
            )
        return self

    def _has(self, method: str) -> bool:
        return callable(getattr(self._made, method, None))

    def _call(self, method: str, *given: Any, **others: Any) -> Any:
        try:
            called = self._made if method == "__call__" else getattr(self._made, method)
            return called(*given, **others)
        except STOPS:
            raise
        except BaseException as error:
            text = f"env.curriculum={self.kind} {raised(error, method)}; mend the curriculum"
            raise traced(ConfigError(text), error) from error

    def options(self, stream: int, rng: Generator, *, final: bool = False) -> Chosen:  # noqa: ARG002
        found = self._call("options", stream, rng)
        if not isinstance(found, dict):
            raise ConfigError(
                f"the method options of env.curriculum={self.kind} must return a dict, got "
                f"{type(found).__name__}: return {{}} for no options"
            )
        return found

    def ended(self, episode: Ended) -> None:
        self._call("ended", episode)

    def at(self, env_steps: int) -> None:
        if self._has("at"):
            self._call("at", env_steps)

    def state(self) -> Any:
        return self._call("state")

    def load(self, state: Any) -> None:
        self._call("load", state)

    def metrics(self) -> Mapping[str, float]:
        found = self._call("metrics") if self._has("metrics") else {}
        return {str(name): float(x) for name, x in found.items()}


_OURS: Mapping[Any, type[Kind]] = {"stages": Stages, "schedule": Schedule, "levels": Levels}


def read_record(given: Any) -> dict[str, Any]:
    """The record of ``env.curriculum``, checked; text is its kind.  Raises ValueError."""
    record = {"kind": given} if isinstance(given, str) else given
    kind = record.get("kind") if isinstance(record, Mapping) else None
    if not isinstance(kind, str) or (kind not in _OURS and ":" not in kind):
        raise ValueError(
            f"must have a kind, {', '.join(_OURS)} or an import string 'pkg.module:name'"
        )
    try:
        plain = json.loads(json.dumps(record, allow_nan=False))
        if kind in _OURS:
            make_curriculum(plain)
    except ValidationError as error:
        raise ValueError("; ".join(faults(error))) from None
    except TypeError as error:
        raise ValueError(f"must hold only what JSON can store ({error})") from None
    return {**plain, "kind": kind}


def record_of(given: Any) -> Any:
    """The record, unchecked, of a curriculum that a user gives in Python: an object, a class or
    function that makes one, an import string, or a record.
    """
    if isinstance(given, str | Mapping):
        return given
    made = not isinstance(given, type) and all(hasattr(given, name) for name in _METHODS)
    if callable(given) and not made:
        return {"kind": named("curriculum", given)}
    if not made:
        raise ConfigError(
            f"curriculum must be an object with the methods {', '.join(_METHODS)}, or a class that "
            f"makes one, got {given!r:.100}: add the methods"
        )

    def copies() -> Any:
        return deepcopy(given)

    copies.__module__, copies.__qualname__ = type(given).__module__, f"<{type(given).__name__}>"
    return {"kind": Given(copies)}


def make_curriculum(record: Mapping[str, Any]) -> Kind:
    """The curriculum of a record; raises ConfigError if its code can't make one."""
    return _OURS.get(record["kind"], OfUser).model_validate(record)


def final_said(record: Mapping[str, Any]) -> str:
    """The episodes of evaluations, as the end of a sentence."""
    if record["kind"] not in _OURS:
        return "without options of the curriculum"
    alike = record["kind"] == "levels"
    return f"at {'all levels' if alike else 'the end'} of the curriculum{' alike' * alike}"
