"""Models of ``meta.json`` of a checkpoint or a policy, which check the file when it is read.

Nothing is required here: a saved policy has less than a checkpoint, and who misses something says
so.  What belongs to one learner is checked beside its state, options where they are merged, and
the replay's part where its layout is known.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

_MOST = 2**53
"""The largest count: up to it a float holds every whole number."""

_MOST_SHOWN = 60  # characters of a wrong value


def _number(value: object) -> object:
    ours = isinstance(value, int | float) and not isinstance(value, bool)
    if not ours or value != value or (isinstance(value, int) and abs(value) > _MOST):
        raise ValueError("a number is required")
    return value


Count = Annotated[int, Field(ge=0, le=_MOST)]
Number = Annotated[Any, AfterValidator(_number)]
Word = Annotated[str, Field(max_length=200)]


class Checked(BaseModel):
    """The base of what a file holds: types are not converted, further entries are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class Description(Checked):
    """A policy, see `quintet.policy.describe`."""

    algo: Word
    learner: dict[str, Any]
    model: dict[str, Any]
    env: dict[str, Any]
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    own: dict[str, Any] = {}
    threads: Annotated[int, Field(ge=1, le=_MOST)] | None = None
    eval_max_steps: Annotated[int, Field(ge=1, le=_MOST)] = 1


class _Record(Checked):
    env_steps: Count
    since: Count
    sums: list[Annotated[list[Number], Field(min_length=6, max_length=6)]]


class _Policy(Checked):
    """A policy's part of a checkpoint."""

    version: Count = 0
    best: Number | None = None
    best_mark: Word | None = None
    learner: dict[str, Count | Number | bool | str | None] = {}
    policy: Description | None = None
    episodes: dict[str, Number] | None = None
    replay: dict[str, Any] | None = None
    counters: dict[str, Count] = {}
    record: _Record | None = None
    objective: Number | None = None
    reported_objective: Count = 0


class _Event(Checked):
    event: Word
    policy: Count
    objectives: list[Number | None] = []


class _Population(Checked):
    values: list[dict[str, Number]]
    considered: list[Count]
    events: list[_Event]
    generator: dict[str, Any]


class _SelfPlay(Checked):
    versions: list[Count]
    env_steps: Count


class Meta(_Policy):
    exact: bool = False
    milestone: bool = False
    total_env_steps: Count = 0
    iteration: Count | None = None
    env_steps: Count | None = None
    config: dict[str, Any] = {}
    system: dict[str, str] = {}
    wall_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    reports: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    population: _Population | None = None
    self_play: _SelfPlay | None = None
    policies: Annotated[list[_Policy], Field(min_length=2)] | None = None
    leader: Count = 0
    discarded_columns: list[Count] = []

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        for name in ("iteration", "env_steps"):
            own = getattr(self, name)
            if own is not None and self.counters.get(name, own) != own:
                raise ValueError(
                    f"{name} must be that of counters, {self.counters[name]}, got {own}"
                )
        if self.policies is not None and self.leader >= len(self.policies):
            raise ValueError(f"leader must be one of {len(self.policies)} policies")
        return self


def fault(model: type[BaseModel], held: Mapping[str, Any]) -> str | None:
    """Fault in a file's content, in a few words; None if there is none."""
    try:
        model.model_validate(held)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        said = first["msg"].removeprefix("Value error, ")
        said = said[:1].lower() + said[1:]
        if not place:
            return said
        shown = ascii(first["input"])
        if len(shown) > _MOST_SHOWN:
            shown = f"{shown[:_MOST_SHOWN]}..."
        return f"{place[:_MOST_SHOWN]}: {said}, got {shown}"
    return None
