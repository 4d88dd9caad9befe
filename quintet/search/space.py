"""Search spaces: what the user gives, or ranges around the options' own values."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from quintet.errors import ConfigError, FileFault
from quintet.options.declaration import AROUND, Facts, about, bounds, idle, kinds
from quintet.options.layers import flatten, hint, options
from quintet.options.population import tuned_options
from quintet.options.resolve import valid_values
from quintet.options.run import RunConfig
from quintet.system import files

_SPANS = {"factor": 10.0, "distance_to_1": 10.0, "cap": 2.0}
"""Factors up and down from an option's value, by its rule of change."""

_SPAN_OF_WHOLE = 4.0

_FIXED = ("algo", "seed", "run_dir", "resume", "total_env_steps", "env.id", "preset")
_FIXED_PARTS = ("eval.", "report.", "checkpoint.", "cluster.", "population.")

_RANGE = re.compile(r"(?P<low>[^,]+?)\.\.(?P<high>[^,]+?)(?P<log>:log)?")


class Dimension(NamedTuple):
    """The values of one option: a range with both ends, or choices.

    near_1: the distance to 1 is drawn, from a range of distances.
    """

    name: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    near_1: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def key(self) -> str:
        """Name of what is drawn."""
        return f"1 - {self.name}" if self.near_1 else self.name

    def value(self, drawn: Any) -> Any:
        """The option's value."""
        if self.choices:
            return self.choices[self.labels.index(drawn)]
        return 1.0 - drawn if self.near_1 else drawn

    def drawn(self, value: Any) -> Any:
        """The number or label that stands for a value; None if it is not in the space."""
        if self.choices:
            return self.labels[self.choices.index(value)] if value in self.choices else None
        if not files.is_number(value):
            return None
        found = 1.0 - value if self.near_1 else value
        return found if self.low <= found <= self.high else None

    def holds(self, drawn: Any) -> bool:
        """Whether this may have been drawn."""
        if self.choices:
            return any(type(x) is type(drawn) and x == drawn for x in self.labels)
        fits = type(drawn) is int if self.whole else files.is_number(drawn)
        return fits and self.low <= drawn <= self.high

    @property
    def labels(self) -> list[Any]:
        """The choices as Optuna can store them."""
        plain = (str, int, float, bool, type(None))
        return [x if isinstance(x, plain) else files.dump_yaml(x).strip() for x in self.choices]


def usual(config: RunConfig) -> list[Dimension]:
    """The options of a learner that populations tune by default, and those that sweeps search
    too, around their values; raises ConfigError if there is none.
    """
    known, idle_options = options(config.algo), idle(config.learner, Facts())
    tuned, found = tuned_options(config.learner, ()), list[Dimension]()
    for name, value in config.learner.model_dump().items():
        search = about(known[name]).search
        if name in idle_options or not (name in tuned or search) or not files.is_number(value):
            continue
        if value:
            found.append(around(name, config))
        elif search not in ("", AROUND):
            found.append(_dimension(name, search, known[name]))
    if not found:
        raise ConfigError(
            f"--search must be given for {config.algo}, which has no usual options to tune here: "
            "give --search NAME=LOW..HIGH"
        )
    return found


def around(name: str, config: RunConfig) -> Dimension:
    """The range around an option's value, within its bounds; raises ConfigError."""
    info, value = options(config.algo)[name], config.flat()[name]
    tune = about(info).tune
    if tune is None or not files.is_number(value) or not value:
        raise ConfigError(
            f"--search {name} must have a range or values, since no range follows from its value, "
            f"{value!r}: give --search {name}=LOW..HIGH or {name}=A,B"
        )
    low, high = bounds(info)
    if tune.by == "distance_to_1":
        distance = 1.0 - value or 0.01
        span = _SPANS[tune.by]
        return Dimension(
            name, distance / span, min(distance * span, 1.0 - low), log=True, near_1=True
        )
    whole = isinstance(value, int)
    span = _SPAN_OF_WHOLE if whole else _SPANS[tune.by]
    ends = max(value / span, low), min(value * span, high)
    if whole:
        ends = float(max(1, int(ends[0]))), float(int(ends[1]))
    return Dimension(name, *ends, log=True, whole=whole)


def parse(texts: Sequence[str], config: RunConfig, typed: Mapping[str, Any]) -> list[Dimension]:
    """The space of ``--search``: ``NAME=LOW..HIGH[:log]``, ``NAME=A,B``, ``NAME`` alone for the
    range around its value, or a YAML file of these.

    typed: options that are given, which can't be searched.

    Raises:
        ConfigError: an unknown option, a bad range, or values that the option does not take.
    """
    known = options(config.algo)
    ranges: dict[str, Any] = {}
    for text in texts:
        name, equals, given_range = text.partition("=")
        if not equals and text.endswith((".yaml", ".yml")):
            ranges |= flatten(_read(text), known)
        else:
            ranges |= flatten({name: given_range if equals else None}, known)
    space = []
    for name, given_range in ranges.items():
        if name not in known:
            raise ConfigError(f"--search must name options, got {name!r}{hint(config.algo, name)}")
        if name in _FIXED or name.startswith(_FIXED_PARTS):
            raise ConfigError(
                f"--search must name options of the learner, the network, the environment or the "
                f"runtime, got {name}, which is the same in all trials: leave it out"
            )
        if name in typed:
            raise ConfigError(
                f"{name} must be given or searched, got both (--search {name} and {typed[name]!r}):"
                " leave one of them out"
            )
        one = (
            around(name, config)
            if given_range is None
            else _dimension(name, given_range, known[name])
        )
        _check(one, config)
        space.append(one)
    return space


def _read(path: str) -> Mapping[str, Any]:
    """The options of a YAML file by name; raises ConfigError."""
    try:
        values = files.read_yaml(files.given_path(path))
    except FileFault as error:
        raise ConfigError(f"--search must be a readable YAML file, got none: {error}") from error
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise ConfigError(
            f"--search must be a YAML file of lines 'NAME: LOW..HIGH:log' or 'NAME: [A, B]', got "
            f"{path} with {type(values).__name__}: correct it"
        )
    return values


def _dimension(name: str, said: Any, info: FieldInfo) -> Dimension:
    """The range or the choices given for an option; raises ConfigError if they do not fit it."""
    found = _RANGE.fullmatch(said) if isinstance(said, str) else None
    if found is None:
        choices = said if isinstance(said, list) else [_plain(x) for x in str(said).split(",")]
        if len(choices) < 2 or any(choices.count(x) > 1 for x in choices):
            raise ConfigError(
                f"--search {name} must have a range LOW..HIGH or at least two different values, "
                f"got {said!r}: give {name}=A,B"
            )
        return Dimension(name, choices=tuple(choices))
    low, high, log = _plain(found["low"]), _plain(found["high"]), found["log"] is not None
    numbers = [x for x in (low, high) if files.is_number(x)]
    if (
        len(numbers) < 2
        or not low < high
        or (log and low <= 0)
        or not {int, float} & {*kinds(info)}
    ):
        raise ConfigError(
            f"--search {name} must have a range LOW..HIGH of numbers that the option takes, "
            f"with LOW below HIGH, and above 0 with :log, got {said!r}: correct it, or give "
            f"values {name}=A,B"
        )
    whole = float not in kinds(info)
    if whole and not (float(low).is_integer() and float(high).is_integer()):
        raise ConfigError(f"--search {name} must have whole numbers, got {said!r}: round them")
    return Dimension(name, float(low), float(high), log, whole)


def _plain(text: str) -> Any:
    """A number, truth value or null as written, else the text."""
    try:
        return files.parse_json(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _check(one: Dimension, config: RunConfig) -> None:
    """Raises ConfigError for a value that the option does not take, whatever the others are."""
    values = one.choices or tuple(
        int(x) if one.whole else one.value(x) for x in (one.low, one.high)
    )
    for value in values:
        if valid_values(config.algo, {"env.id": config.env.id, one.name: value}) is None:
            raise ConfigError(
                f"--search {one.name} must have values that the option takes, got {value!r}: "
                f"`quintet train {config.algo} --help all` shows them"
            )
