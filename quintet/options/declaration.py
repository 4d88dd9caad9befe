"""Declaration of options: a field holds everything about an option.

`option` adds to a pydantic field the condition under which the option has an effect, the rule by
which it may change during a run, and its names in other libraries.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple, Self, final, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from quintet.errors import ConfigError


class Options(BaseModel):
    """Base class of configurations: frozen; refuses unknown names, infinities and NaN.

    The text below a field is its meaning, with its unit, which --help shows.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for info in cls.model_fields.values():
            info.description = " ".join((info.description or "").split())

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses true and false for numbers, which would be 1 and 0, and functions for numbers
        that have a schedule."""
        name = info.field_name
        if name is not None and (isinstance(value, bool) or callable(value)):
            able = {*kinds(cls.model_fields[name])}
            schedule = cls.model_fields.get(f"{name.partition('_')[0]}_schedule")
            if isinstance(value, bool) and able & {int, float} and bool not in able:
                raise ValueError("input should be a number")
            if callable(value) and schedule is not None and float in able:
                words = " or ".join(map(str, get_args(schedule.annotation)))
                raise ValueError(
                    f"must be a number, the first value; {name.partition('_')[0]}_schedule "
                    f"({words}) says how it changes"
                )
        return value

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for name, info in type(self).model_fields.items():
            if not (other := about(info).at_most) or idle(self, Facts()).keys() & {name, other}:
                continue
            low, high = getattr(self, name), getattr(self, other)
            if high is not None and (low is None or low > high):
                raise ValueError(
                    f"{name} must be at most {other}={high}, got {str(low).lower()}; lower it, or "
                    f"raise {other}"
                )
        return self


def kinds(info: FieldInfo) -> tuple[Any, ...]:
    """The annotation of a field or the members of its union, without bounds."""
    parts = (info.annotation, *get_args(info.annotation))
    return tuple(get_args(x)[0] if get_origin(x) is Annotated else x for x in parts)


def _stored(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"must hold only what JSON can store ({error}); set other values in a function"
        ) from error
    return value


Kwargs = Annotated[dict[str, Any], AfterValidator(_stored)]
"""Keyword arguments of the user's own code."""


class Unknown(Exception):
    """A fact is used before it is known."""


@final
class Facts(SimpleNamespace):
    """Facts besides the options of one part: other parts, spaces, environments and more.

    A condition that uses a fact is checked when that fact is known.
    """

    def __getattr__(self, name: str) -> Any:
        raise Unknown(name)


class Needs(NamedTuple):
    """Condition under which an option has an effect.

    what: completes the sentence "NAME=VALUE has no effect without ..."; may contain ``{o.NAME}`` of
        the options and ``{f.NAME}`` of the facts.
    met: returns whether (options, facts) meet it; None: `what` is the condition, see `holds`.
    rest: the option's value if it is not met; ...: its default.
    value: the only value of the option to which it applies; "": all values.
    """

    what: str
    met: Callable[[Any, Any], bool] | None = None
    rest: Any = ...
    value: str = ""


def holds(condition: str, options: BaseModel, facts: Facts, prefix: str = "") -> bool:
    """Whether a condition is true: ``NAME`` (not 0, false, empty or none), ``NAME > 0`` or
    ``NAME=VALUE``, or several of these with `and` and `or`.

    prefix: prefix of the names of `options`; other names are PART.NAME of a part in the facts.
    """
    each_of = _terms(condition)
    return any(all(_true(*term, options, facts, prefix) for term in all_of) for all_of in each_of)


@cache
def _terms(condition: str) -> list[list[tuple[str, str, str]]]:
    """Terms of a condition, (name, sign, value): all of one list must be true."""
    form = re.compile(r"([\w.]+)(?:( > |=)(\S+))?")
    either = (each.split(" and ") for each in condition.split(" or "))
    return [[form.fullmatch(term).groups() for term in each] for each in either]  # type: ignore[union-attr,misc]


def _true(name: str, sign: str, value: str, options: BaseModel, facts: Facts, prefix: str) -> bool:
    part, _, last = name.removeprefix(prefix).rpartition(".")
    x = getattr(getattr(facts, part) if part else options, last)
    if sign == " > ":
        return bool(x > float(value))
    return str(x).lower() == value if sign else bool(x) and x != "none"


class Tune(NamedTuple):
    """Rule by which an option may change during a run.

    by: the quantity that a mutation multiplies: the value, its distance to 1, or a cap of ratios
        (by a small factor).
    usual: whether a population tunes it by default.
    at_most: see `option`, which sets it.
    """

    by: Literal["factor", "distance_to_1", "cap"] = "factor"
    usual: bool = False
    at_most: str = ""


AROUND = "around"
"""Value of `search` in `option`: a range around the option's value."""

FACTOR, USUAL, NEAR_1, CAP = Tune(), Tune(usual=True), Tune("distance_to_1"), Tune("cap")


class About(NamedTuple):
    """Metadata of a field besides type, default, bounds and meaning; see `option`."""

    needs: tuple[Needs, ...] = ()
    tune: Tune | None = None
    at_most: str = ""
    faster: Literal["", "lower", "higher"] = ""
    also: tuple[str, ...] = ()
    auto: bool = False
    on_resume: Literal["kept", "free", "rounds"] = "kept"
    tensors: str = ""
    search: str = ""


def option(
    default: Any = ...,
    *,
    doc: str | None = None,
    needs: str | Needs | tuple[str | Needs, ...] = (),
    tune: Tune | None = None,
    at_most: str = "",
    faster: Literal["", "lower", "higher"] = "",
    also: str = "",
    auto: bool = False,
    on_resume: Literal["kept", "free", "rounds"] = "kept",
    tensors: str = "",
    search: str = "",
    **limits: Any,
) -> Any:
    """A field of a configuration, as the value of an attribute or, without a default, in Annotated.

    doc: its meaning, with its unit; None: taken from the text below the attribute.
    needs: conditions under which it has an effect, as strings or `Needs`; all must be met.
    tune: rule by which it may change during a run; None: it may not change.
    at_most: another option that it may not exceed, of the same class; none means infinity.
    faster: the direction in which it makes updates faster, for advice on speed.
    also: names of the same option in other libraries, separated by blanks.
    auto: whether its default stands for a value that is found when a run begins, which a resumed
        run keeps.
    on_resume: whether a resumed run may change it; rounds: that changes the rounding of numbers.
    tensors: prefix of the names of tensors that are of something else with another value.
    search: what a sweep searches by default, though populations don't tune it: a range LOW..HIGH
        where its value is 0, `AROUND` where it is not.
    limits: other arguments of `pydantic.Field`.
    """
    several = needs if isinstance(needs, tuple) and not isinstance(needs, Needs) else (needs,)
    each = tuple(Needs(need) if isinstance(need, str) else need for need in several)
    if default is not ...:
        limits["default"] = default
    tune = tune and tune._replace(at_most=at_most)
    info: FieldInfo = Field(description=doc, **limits)
    others = tuple(also.split())
    found = About(each, tune, at_most, faster, others, auto, on_resume, tensors, search)
    info.metadata.append(found)
    return info


def about(info: FieldInfo) -> About:
    """Metadata of a field."""
    return next((each for each in info.metadata if isinstance(each, About)), About())


def default_of(options: type[BaseModel], name: str) -> Any:
    return options.model_fields[name].get_default(call_default_factory=True)


class Idle(NamedTuple):
    """An option without effect: the value that it then has, and the condition that is not met."""

    rest: Any
    needs: str


def idle(
    options: BaseModel, facts: Facts, prefix: str = "", others: Mapping[str, Needs] | None = None
) -> dict[str, Idle]:
    """Options of one part that have no effect, whatever their value: because their condition is not
    met, or because another option of the part has no effect.

    prefix: prefix of their names.
    others: further conditions of options, by name without prefix.
    """
    found: dict[str, Idle] = {}
    conditions = _needs(type(options))
    if others:
        conditions = {
            name: (*own, others[name]) if name in others else own
            for name, own in conditions.items()
        }
    while True:
        lacking: dict[str, Idle] = {}
        for name, needs in conditions.items():
            values = "", getattr(options, name)
            needs = tuple(need for need in needs if need.value in values)
            unmet = [need for need in needs if not _met(need, options, facts, prefix)]
            if unmet and name not in found:
                rest = default_of(type(options), name) if unmet[0].rest is ... else unmet[0].rest
                lacking[name] = Idle(rest, unmet[0].what.format(o=options, f=facts))
        if not lacking:
            return found
        found |= lacking
        options = options.model_copy(update={name: one.rest for name, one in found.items()})


@cache
def _needs(options: type[BaseModel]) -> dict[str, tuple[Needs, ...]]:
    """The conditions of every option."""
    return {name: about(info).needs for name, info in options.model_fields.items()}


def _met(need: Needs, options: BaseModel, facts: Facts, prefix: str) -> bool:
    try:
        if need.met is None:
            return holds(need.what, options, facts, prefix)
        return need.met(options, facts)
    except Unknown:
        return True


def tunable(options: type[BaseModel]) -> dict[str, Tune]:
    """Options that may change during a run, each with its rule."""
    fields = options.model_fields.items()
    return {name: tune for name, info in fields if (tune := about(info).tune) is not None}


def require_tunable(old: BaseModel, new: BaseModel) -> None:
    """Requires that only tunable options differ, and that none changes to or from 0 or none, which
    would change the loss.

    Raises:
        ConfigError: names the options.
    """
    before, after, able = old.model_dump(), new.model_dump(), tunable(type(old))
    fixed = {
        name
        for name in before
        if before[name] != after[name]
        and (name not in able or bool(before[name]) != bool(after[name]))
    }
    if fixed:
        raise ConfigError(
            f"during a run only numbers of {', '.join(sorted(able))} can change, neither from nor "
            f"to 0 or none; got a change of {', '.join(sorted(fixed))}; begin a new run"
        )


def bounds_of(options: BaseModel, tuned: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Smallest and largest values of tuned options.  If one option may not exceed another and only
    one of them is tuned, the other is its bound.
    """
    found = {name: bounds(type(options).model_fields[name]) for name in tuned}
    for lower, info in type(options).model_fields.items():
        if not (upper := about(info).at_most):
            continue
        least, most = getattr(options, lower), getattr(options, upper)
        if lower in tuned and upper not in tuned and most is not None:
            found[lower] = found[lower][0], min(found[lower][1], most)
        if upper in tuned and lower not in tuned and least is not None:
            found[upper] = max(found[upper][0], least), found[upper][1]
    return found


def bounds(info: FieldInfo) -> tuple[float, float]:
    """The smallest and largest value that a field admits."""
    low, high = -math.inf, math.inf
    parts = get_args(info.annotation)
    within = (limit for part in parts for limit in getattr(part, "__metadata__", ()))
    for limit in (*info.metadata, *within):
        match limit:
            case Ge(ge=x):
                low = float(x)  # type: ignore[arg-type]
            case Gt(gt=x):
                low = math.nextafter(float(x), math.inf)  # type: ignore[arg-type]
            case Le(le=x):
                high = float(x)  # type: ignore[arg-type]
            case Lt(lt=x):
                high = math.nextafter(float(x), -math.inf)  # type: ignore[arg-type]
    return low, high


def faults(error: ValidationError, prefix: str = "") -> list[str]:
    """Faults of options, one sentence each: what its values may be, the value, and what to do.

    prefix: prefix of their names.
    """
    found: dict[tuple[str, str], list[ErrorDetails]] = {}
    for item in error.errors():
        name = f"{prefix}{item['loc'][0]}" if item["loc"] else ""
        found.setdefault((name, shown(item["input"]) if name else item["msg"]), []).append(item)
    return [_sentence(name, given, items) for (name, given), items in found.items()]


def _sentence(name: str, given: str, items: list[ErrorDetails]) -> str:
    """The sentence about an option's faults."""
    first, *others = (_in_our_words(item["msg"]).partition(", unable")[0] for item in items)
    if not name:
        return first
    fault = f"{name}: {first}{''.join(f' or {x.removeprefix(_SHOULD_BE)}' for x in others)}"
    fault += f", got {given}"
    if not first.startswith(_SHOULD_BE):
        return fault
    mapping = any(item["type"] == "dict_type" for item in items)
    return f"{fault}; {_AS_JSON if mapping else 'give such a value, or leave it out'}"


def _in_our_words(message: str) -> str:
    """pydantic's own messages in lower case; messages of quintet's validators unchanged."""
    own = message.removeprefix("Value error, ")
    if "exceeded maximum size" in message:  # integers that pydantic reads
        return f"{_SHOULD_BE}a whole number of far fewer digits"
    # Bounds of floats, which pydantic writes with all their digits.
    return own if own != message else _DIGITS.sub(lambda n: f"{float(n[0]):g}", message.lower())


def shown(value: Any) -> str:
    """A value for a message, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no longer numbers
        return "a number of more than 4,300 digits"
    return text if len(text) <= _LONG else f"{text[:_LONG]}... ({len(text):,} characters)"


_SHOULD_BE, _LONG, _DIGITS = "input should be ", 200, re.compile(r"\d{20,}")
_AS_JSON = """write it as JSON, with names in double quotes, as in '{"length": 1}'"""
