"""The learners by name: quintet's own, and those of installed packages.

A package adds a learner by an entry point of the group ``quintet.learners`` that names its record,
an `Algorithm`.  The record of one of quintet's own is ``ENTRY`` in ``quintet/algorithms/NAME``.
"""

from __future__ import annotations  # spares `quintet --help` the imports of what records hold

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, final

from quintet.errors import ConfigError, FileFault
from quintet.observe.metrics import declare
from quintet.protocols import UpdateAdvice
from quintet.system.files import read_yaml
from quintet.system.plugins import Catalog

if TYPE_CHECKING:
    from pathlib import Path

    from gymnasium import spaces as gym_spaces
    from pydantic import BaseModel

    from quintet.algorithms.parts.setup import Compute, Setup
    from quintet.models.config import ModelConfig
    from quintet.observe.metrics import Metric
    from quintet.options.declaration import Needs
    from quintet.protocols import Actor, Learner, Part
    from quintet.types import Spaces

    ActionKind = type[gym_spaces.Space[Any]]


@final
@dataclass(frozen=True)
class Late:
    """An object in a module, named by an import string.  The module and PyTorch are imported at
    the first use: wrong options are refused before.
    """

    name: str

    def get(self) -> Any:
        return resolve_name(self.name)

    def __call__(self, *args: Any) -> Any:
        return self.get()(*args)


@dataclass(frozen=True)
class Algorithm:
    """Record of a learner for the rest of quintet.

    config: its options; every field has a default.
    check: returns the faults that no single field shows, for (options, model, streams, budget).
    planned_updates: returns the number of optimizer steps for (options, streams, budget); 0:
        updates are never compiled.
    batch: options whose product is the number of env_steps of an iteration, which a budget must
        reach; none: it has no such bound.
    shared: option that sets the number of rows that several learners divide; it may be none for the
        whole batch; "": the learner does not use `Ranks`, so there can be only one.
    chunk: returns the number of these rows that stay together, for (options, model).
    fitted: whether the option `shared` is lowered until it fits the others, at most to half, if the
        user did not give it; not on a resume.
    for_many_streams: returns values of its options that suit so many streams, of (options,
        streams); used where the user gave none of them, and not on a resume.
    metrics: returns the names of `quintet.observe.metrics` that it may report.
    own_metrics: further metrics that it may report; `/` at the end of a name stands for every name
        with this prefix.
    judged: returns the parts of a learner for (options, spaces), each with the metrics that are
        evidence for its state in reports.
    symptoms: returns further parts with evidence that only `quintet doctor` looks at.
    actions: classes of action spaces that it supports; none: all.
    needs: conditions under which options of other parts have an effect with this learner, by dotted
        name.
    presets: a YAML file of presets; see `presets_of`.
    defaults: its own defaults of options under ``model.``, ``env.`` and ``runtime.``, by dotted
        name.
    reward_scaling: returns in words the option that scales rewards, for (options); "" if they are
        scaled already.
    reward_divisor: returns the least number by which these options divide rewards that are scaled;
        0: there is none.
    warnings: returns warnings about allowed but seldom wise options, for (options, resolved model),
        one sentence each.
    like: similar learners of other libraries, in lower case.
    """

    config: type[BaseModel]
    make_learner: Callable[[Any, ModelConfig, Spaces, Setup], Learner]
    make_actor: Callable[[Any, ModelConfig, Spaces, Compute], Actor]
    check: Callable[[Any, ModelConfig, int, int], list[str]] = lambda *_: []
    planned_updates: Callable[[Any, int, int], int] = lambda *_: 0
    batch: tuple[str, ...] = ()
    shared: str = ""
    chunk: Callable[[Any, ModelConfig], int] = lambda *_: 1
    fitted: bool = False
    for_many_streams: Callable[[Any, int], Mapping[str, Any]] = lambda *_: {}
    metrics: Callable[[], tuple[str, ...]] = tuple
    own_metrics: Mapping[str, Metric] = field(default_factory=dict)
    judged: Callable[[Any, Spaces], tuple[Part, ...]] = lambda *_: ()
    symptoms: Callable[[Any, Spaces], tuple[Part, ...]] = lambda *_: ()
    actions: tuple[ActionKind, ...] = ()
    needs: Mapping[str, Needs] = field(default_factory=dict)
    presets: Path | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    reward_scaling: Callable[[Any], str] = lambda _: ""
    reward_divisor: Callable[[Any], float] = lambda _: 0.0
    warnings: Callable[[Any, ModelConfig], list[str]] = lambda *_: []
    like: tuple[str, ...] = ()

    def reported(self) -> tuple[str, ...]:
        """All names that it may report."""
        return (*self.metrics(), *self.own_metrics)

    def advice(self, options: BaseModel, batch_steps: int) -> UpdateAdvice:
        """Advice on the speed of updates with batches of this many env_steps."""
        from quintet.options.declaration import Facts, about, bounds, idle

        work, less, larger = list[str](), list[str](), list[str]()
        idle_options = idle(options, Facts())
        for name, info in type(options).model_fields.items():
            way, x = about(info).faster, getattr(options, name)
            if not way or x is None or name in idle_options:
                continue
            work.append(f"{name}={x}")
            said = f"a {way} {name} than {x} (--{name.replace('_', '-')})"
            if name in self.batch:
                larger.append(said)
            elif x < batch_steps if way == "higher" else x > bounds(info)[0]:
                less.append(said)
        return UpdateAdvice(", ".join(work), tuple(less), tuple(larger))

    def acts_in(self, space: gym_spaces.Space[Any]) -> bool:
        """Whether it supports an action space."""
        return not self.actions or isinstance(space, self.actions)


LEARNERS = Catalog(
    "quintet.learners",
    "learner",
    Algorithm,
    {
        name: f"quintet.algorithms.{name}:ENTRY"
        for name in ("ppo", "impala", "appo", "ddpg", "acer")
    },
    "quintet.jobs.imports:import_apart",
)
"""All learners; `LEARNERS.register` adds one in this process only."""

PACKAGES = {"sac": "`pip install ./plugins/sac` in a checkout of quintet (docs/sac.md)"}
"""Packages of this repository with a learner each, by its name, and how to install them."""

DEFAULT = "ppo"
"""The learner whose options count where none is named, since it learns from most environments."""


def canonical(name: str) -> str:
    """A learner's name as registered, whatever its case; raises ConfigError if there is none."""
    plain = name.lower() if isinstance(name, str) else ""
    if plain in LEARNERS:
        return plain
    near = [repr(each) for each, one in LEARNERS.usable() if plain in one.like]
    close = get_close_matches(plain, LEARNERS.names(), 1, 0.7)
    if plain in PACKAGES:
        said = f"{plain} is a package that is not installed: {PACKAGES[plain]}"
    elif near or not close:
        from quintet.algorithms.elsewhere import LEARNERS_ELSEWHERE

        how = f", {LEARNERS_ELSEWHERE[plain]}" if plain in LEARNERS_ELSEWHERE else ""
        said = (f"nearest is {' or '.join(near)}{how}; " if near else "") + (
            "docs/coming-from.md says what replaces learners of other libraries"
        )
    else:
        said = f"did you mean {close[0]!r}?"
    raise ConfigError(
        f"the algorithm must be one of {', '.join(LEARNERS.names())}; got {name!r}; {said}"
    )


def find(name: str) -> Algorithm:
    """The learner of that name; its own metrics may be reported from then on. Raises ConfigError if
    there is none, or its package is broken.
    """
    name = canonical(name)
    learner = LEARNERS.find(name)
    declare(learner.own_metrics, f"learner {name!r}")
    return learner


_PARTS = ("environments", "kinds", "named", "race")
"""Parts of a file of presets."""


def presets_of(algo: str) -> dict[str, Mapping[str, Any]]:
    """The presets of a learner by part: `environments` by a pattern of ids, `kinds` by the kind of
    environment, `named` by name, and the entries of a race by name (see
    `quintet.search.portfolio`); empty parts where the learner has none.

    Raises:
        ConfigError: the file can't be read, or has an invalid form.
    """
    found: dict[str, Mapping[str, Any]] = {part: {} for part in _PARTS}
    file = find(algo).presets
    if file is None:
        return found
    try:
        seen = file.stat()
        content = _parsed(file, seen.st_mtime_ns, seen.st_size)
    except (OSError, FileFault) as error:
        raise _broken(algo, f"readable, got {error}") from error
    if not isinstance(content, Mapping) or not content.keys() <= {*_PARTS}:
        raise _broken(algo, f"a mapping of {', '.join(_PARTS)}, got {content!r:.100} in {file}")
    for part, presets in content.items():
        if not isinstance(presets, Mapping) or not all(
            isinstance(preset, Mapping) for preset in presets.values()
        ):
            raise _broken(algo, f"mappings of options, got {presets!r:.100} for {part} in {file}")
    return {**found, **content}


@cache
def _parsed(file: Path, changed_ns: int, size: int) -> Any:  # noqa: ARG001
    """The content of a file as it is now, parsed once: a run asks for it several times."""
    return read_yaml(file)


def _broken(algo: str, what: str) -> ConfigError:
    return ConfigError(f"the presets of {algo} must be {what}: mend the file, or use --preset none")


def declare_of(names: Iterable[str]) -> None:
    """Declares the metrics of learners, for reports of runs that another process has trained.
    Unknown ones and those of broken packages are skipped.
    """
    for name in {*names} & {*LEARNERS.names()}:
        with suppress(ConfigError):
            LEARNERS.find_safely(name)
            find(name)


def require_actions(name: str, space: gym_spaces.Space[Any]) -> None:
    """Refuses an action space that the learner of that name does not support.

    Raises:
        ConfigError: names the spaces that it supports, and the learners that support this space.
    """
    learner = find(name)
    if learner.acts_in(space):
        return
    able = [other for other, one in LEARNERS.usable() if one.acts_in(space)]
    raise ConfigError(
        f"{name} must have {' or '.join(kind.__name__ for kind in learner.actions)} actions, got "
        f"the action space {space}; use another environment"
        + (f" or algorithm ({', '.join(able)})" * bool(able))
    )
