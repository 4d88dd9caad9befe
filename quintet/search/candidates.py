"""The entries that run in a race on an environment, and the configurations of their runs."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from quintet.algorithms import registry
from quintet.envs.env_source import EnvSource
from quintet.errors import ConfigError
from quintet.jobs import user_state
from quintet.options.layers import Layer
from quintet.options.resolve import Loaded, batch_steps, resolved
from quintet.options.saved import load_config
from quintet.run.time_budget import rounded
from quintet.runtime.processes.process import pickled
from quintet.search import portfolio
from quintet.search.minutes import with_total
from quintet.search.portfolio import Entry
from quintet.search.race_asked import Asked
from quintet.search.race_journal import FOLDER, Runner, damaged

_EXAMINED_SHARE, _LEAST_EXAMINED_S, _MOST_EXAMINED_S = 0.05, 15.0, 40.0
_TIME_WAS_SHORT = "hangs"  # the doctor's name; entries that really hang are killed
_COMPILES_FROM_S = 120.0  # seconds of the first leg; each leg compiles for up to 20 s
_SLOW = 2_000.0  # env_steps per second, by which it is decided whether compiling pays
_REPORTS, _CHECKPOINTS = 300, 30  # over the time of the race
_LEAST_UNROLL = 8


class Able(NamedTuple):
    """An entry that can run, its configuration, and the resolved options."""

    entry: Entry
    loaded: Loaded
    values: Mapping[str, Any]


def load(asked: Asked, entry: Entry, more: Mapping[str, Any], *, beside: bool = False) -> Loaded:
    """The configuration of an entry's run in the folder of the race; raises ConfigError.

    more: further options; beside: as of a new run, whatever is in the folder.
    """
    own = {
        "report.interval_s": max(1.0, asked.total_s / _REPORTS),
        "checkpoint.interval_s": max(5.0, min(60.0, asked.total_s / _CHECKPOINTS)),
        **entry.options,
    }
    command = asked.layers[-1]
    place: Path = asked.folder / FOLDER / entry.name
    return load_config(
        entry.algo,
        (Layer(f"preset {entry.name} of the race", own), *asked.layers[:-1]),
        Layer(command.source, {**command.values, "run_dir": str(place), **more}),
        asked.source,
        trust=asked.trust,
        beside=beside,
    )


def able(asked: Asked, listed: Sequence[Entry], say: Callable[[str], None]) -> list[Able]:
    """The entries that can run; raises ConfigError, with the first reason, if none can."""
    found, faults = _fitting(asked, listed)
    if not found:
        raise ConfigError(next(iter(faults.values()), "no learner has a candidate for a race"))
    for name, fault in faults.items():
        say(f"{name} is left out: {_first(fault)}")
    return found


def _fitting(asked: Asked, listed: Sequence[Entry]) -> tuple[list[Able], dict[str, str]]:
    """The entries that can run, and by name why others can't."""
    found: list[Able] = []
    faults: dict[str, str] = {}
    for each in listed:
        try:
            each = _fitted(each, load(asked, each, {}, beside=True))
            loaded = load(asked, each, {}, beside=True)
            values = resolved(loaded)[0]
        except ConfigError as error:
            faults[each.name] = str(error)
            continue
        same = [x for x in found if {**x.values, "run_dir": values["run_dir"]} == values]
        if same:
            faults[each.name] = f"its options are those of {same[0].entry.name}"
        else:
            found.append(Able(each, loaded, values))
    return found, faults


def require_ours(asked: Asked, runners: Sequence[Runner], listed: Sequence[Able]) -> None:
    """Raises FileFault for an entry of a journal, which may come from another person, that this
    program would not give.

    listed: the entries that can run.
    """
    ours = {each.entry.name: each for each in listed}
    for each in runners:
        twins = (x for name, x in ours.items() if portfolio.is_twin(each.name, each.options, name))
        one = ours.get(each.name) or next(twins, None)
        if one is None or one.entry.algo != each.algo:
            raise damaged(asked.folder, f"this race has no candidate {each.name} of {each.algo}")
        fits = _with_options_of(asked, one, each, partial(portfolio.may_change, each.algo))
        fits = (
            None if fits is None else _with_options_of(asked, fits, each, partial(_shorter, fits))
        )
        wrong = [
            f"{name}={value!r:.40}"
            for name, value in each.options.items()
            if fits is None or fits.entry.options.get(name, ...) != value
        ]
        if wrong or fits is None or len(fits.entry.options) != len(each.options):
            raise damaged(
                asked.folder,
                f"in this version {each.name} has no {', '.join(wrong) or 'such option'}",
            )


def _with_options_of(
    asked: Asked, one: Able, runner: Runner, may: Callable[[str, Any], bool]
) -> Able | None:
    """An entry with the options of a runner that it may have; None if it can't run so."""
    own = {name: x for name, x in runner.options.items() if may(name, x)}
    entry = Entry(runner.name, one.entry.algo, {**one.entry.options, **own}, runner.why)
    return next(iter(_fitting(asked, [entry])[0]), None)


def _shorter(one: Able, name: str, value: Any) -> bool:
    """Whether `shortened` may give this value."""
    sizes = [x for x in registry.find(one.entry.algo).batch if "." not in x][:1]
    return name in sizes and type(value) is int and _LEAST_UNROLL <= value <= one.values[name]


def _fitted(entry: Entry, loaded: Loaded) -> Entry:
    """The entry with options that fit each other and the environment, as a new run of this
    configuration settles them, since later legs must ask for the options that the run began with.
    """
    flat = loaded.config.flat()
    changed = [name for name in entry.options if loaded.sources[name].startswith("resolved")]
    return entry._replace(options={**entry.options, **{name: flat[name] for name in changed}})


def _first(text: str) -> str:
    """The first fault of a text that may list several."""
    head, *lines = text.splitlines()
    return lines[0].removeprefix("  - ") if lines and head.endswith("faults:") else head


class Adapted(NamedTuple):
    """The entries as findings about the environment change them, sentences about these, and the
    seconds of a step of one environment, if known."""

    able: list[Able]
    told: list[str]
    step_s: float | None


def examined(asked: Asked, listed: Sequence[Able], say: Callable[[str], None]) -> Adapted:
    """Examines the environment, from five minutes on."""
    from quintet.doctor.apart import examine_apart

    most_s = min(_EXAMINED_SHARE * asked.total_s, _MOST_EXAMINED_S)
    if most_s < _LEAST_EXAMINED_S:
        return Adapted(list(listed), [], None)
    say(f"examines the environment for at most {most_s:.0f} s")
    own = registry.find(registry.DEFAULT).config.model_fields
    words = [
        word
        for name, x in asked.values.items()
        if name.startswith("env.") or (name in own and isinstance(x, str | int | float))
        for word in (f"--{name}", x if isinstance(x, str) else json.dumps(x))
    ]
    seed = listed[0].loaded.config.seed % 2**30
    only_here = what_only_this_process_has(asked.source)
    found = examine_apart(registry.DEFAULT, words, "", seed, most_s, lambda _: None, only_here)
    lines = [
        f"doubtful ({each['name']}): {each['said']}; advice: {each['advice']}"
        for each in found.found
        if each["degree"] == "likely" and each["name"] != _TIME_WAS_SHORT
    ]
    before = {each.entry.name: each for each in listed}
    now, changes = portfolio.changed(
        [each.entry for each in listed], portfolio.changes(found.found), asked.values
    )
    other = [each for each in now if each.name not in before or before[each.name].entry != each]
    fitting, faults = _fitting(asked, other)
    lines += changes
    lines += [
        f"{x}: the change is left out, since it does not fit: {_first(y)}"
        for x, y in faults.items()
    ]
    able_now = {x.entry.name: x for x in fitting}
    kept = [able_now.get(each.name, before.get(each.name)) for each in now]
    return Adapted([each for each in kept if each is not None], lines, found.step_s)


def shortened(
    asked: Asked, listed: Sequence[Able], most_steps: float
) -> tuple[list[Able], list[str]]:
    """Shortens batches to about `most_steps` env_steps, since a stop waits for the end of a batch.
    Returns all entries, and a sentence about each change."""
    changed: list[Entry] = []
    lines: list[str] = []
    for entry, loaded, _ in listed:
        steps = batch_steps(loaded.config)
        names = [x for x in registry.find(entry.algo).batch if "." not in x]
        if steps <= most_steps or not names or names[0] in asked.values:
            continue
        now: int = getattr(loaded.config.learner, names[0])
        fewer = max(_LEAST_UNROLL, int(now * most_steps / steps))
        if fewer < now:
            changed.append(entry._replace(options={**entry.options, names[0]: fewer}))
            lines.append(f"{entry.name}: {names[0]}={fewer}, so that a round has several batches")
    fitting, faults = _fitting(asked, changed)
    able_now = {x.entry.name: x for x in fitting}
    lines = [line for line in lines if line.partition(":")[0] not in faults]
    return [able_now.get(each.entry.name, each) for each in listed], lines


def what_only_this_process_has(source: EnvSource | None) -> dict[str, Any]:
    """Collects the settings that `examine_apart` needs from this process: registered environments,
    and the source.  Raises ConfigError for a source that can't be sent.
    """
    sent = pickled(
        source,
        f"a race must have an environment that can be sent to other processes, got {source}",
        "give a function that makes it and holds nothing of this process",
    )
    return {"state": user_state.capture(), "source": sent}


def compiles(each: Able, leg_s: Sequence[float]) -> str:
    """The value of ``runtime.compile`` for legs of these times; it may not change in a run."""
    value = each.loaded.config.runtime.compile
    if value != "auto":
        return value
    if len(leg_s) > 1 and leg_s[0] < _COMPILES_FROM_S:
        return "off"
    total = rounded(sum(leg_s) * _SLOW)
    try:
        return str(resolved(with_total(each.loaded, total, 0.0))[0]["runtime.compile"])
    except ConfigError:  # sizes do not fit so few steps
        return "off"
