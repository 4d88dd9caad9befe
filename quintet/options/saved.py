"""The run that a command refers to: its folder and what may be in it, its saved options, and the
changes that a resume may make.
"""

import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from quintet.checkpoints import manifest, run_record, saved_options
from quintet.checkpoints.links import require_member
from quintet.checkpoints.lock import await_orphan
from quintet.envs.env_source import EnvSource
from quintet.errors import CheckpointError, ConfigError
from quintet.options.declaration import shown
from quintet.options.facts import KindProbe
from quintet.options.layers import Layer, canonical, learner_defaults, options, preset_layers
from quintet.options.placing import RESTARTS, Placing, placing_of
from quintet.options.resolve import Loaded, compose, valid_values
from quintet.options.run import AUTOMATIC, MAY_CHANGE_ON_RESUME, OF_OLDER_RUNS, ONLY_OF_OLDER_RUNS
from quintet.system import files
from quintet.system.importing import same_code, settle_search_path
from quintet.system.places import is_elsewhere
from quintet.system.printing import say
from quintet.system.trust import Origin, calls_of

BEFORE_CONFIG = (".lock", "log.txt", ".config.yaml.tmp", ".tmp-config.yaml")
"""Files that a run may leave if it is killed right at its start."""


@dataclass(frozen=True)
class Unusable:
    """A run of a seed group that can't continue in its folder, and the reason."""

    seed: int
    run_dir: Path
    error: str


@dataclass(frozen=True)
class _Asked:
    """Options from files and the command line.

    source: see `compose`.
    probe: used only if the preset depends on the kind, since it may make an environment.
    """

    algo: str
    layers: tuple[Layer, ...]
    source: EnvSource | None
    probe: KindProbe

    @cached_property
    def values(self) -> dict[str, Any]:
        return asked_for(*self.layers)

    @cached_property
    def run_dir(self) -> Path | None:
        return find_run_dir(self.algo, self.values)


def _asked(algo: str, layers: tuple[Layer, ...], source: EnvSource | None) -> _Asked:
    settle_search_path()
    if (given := asked_for(*layers).get("algo", algo)) != algo:
        raise ConfigError(f"algo must be that of the command, {algo}, got {given!r}: leave it out")
    values = asked_for(learner_defaults(algo), *layers)
    return _Asked(algo, layers, source, KindProbe(values, source))


def load_config(
    algo: str,
    files: Sequence[Layer],
    command: Layer,
    source: EnvSource | None = None,
    *,
    trust: bool = False,
    overwrite: bool = False,
    beside: bool = False,
) -> Loaded:
    """The configuration of a run from all its layers, including its folder.

    source: see `compose`.
    trust: whether code that the folder names may be imported and called.
    overwrite: whether a new run replaces a run in the folder, which is not read.
    beside: only for display: the configuration of a new run, whatever is in the folder.

    Raises:
        ConfigError: any fault, or the folder holds a run of another configuration.
        UntrustedError: the folder names code that may not run.
    """
    asked = _asked(algo, (*files, command), source)
    return _load_anew(asked, overwrite) if overwrite or beside else _load(asked, trust)


def _load_anew(asked: _Asked, overwrite: bool) -> Loaded:
    """The configuration of a new run, whatever is in its folder."""
    if overwrite and asked.values.get("resume") == "exact":
        raise ConfigError(
            "--overwrite starts a new run, --resume exact continues the old one: leave one of "
            "them out"
        )
    if overwrite and asked.run_dir is not None:
        require_movable(asked.run_dir)
    return replace(_compose_new(asked), overwrite=overwrite)


def _load(asked: _Asked, trusted: bool) -> Loaded:
    """The configuration of the run in the folder, or of a new run.  Reports of a run without a
    checkpoint are moved aside, and it starts again.
    """
    algo, source, run_dir = asked.algo, asked.source, asked.run_dir
    if run_dir is None:
        return _compose_new(asked)
    saved = read_saved(run_dir)
    if asked.values.get("resume") == "never" and held_in(run_dir):
        raise ConfigError(
            f"--resume never must have a folder without a run, got {run_dir} with one: give "
            "another --run-dir, or --overwrite"
        )
    if saved is None:
        if aside := left_reports(run_dir):
            require_movable(run_dir)
        return replace(_compose_new(asked), overwrite=aside)
    if saved.values.get("algo") != algo:
        differ = [f"algo: the run has {saved.values.get('algo')}, this command has {algo}"]
        raise _other_run(run_dir, differ)
    left_out = {"algo", "run_dir", "resume", *ONLY_OF_OLDER_RUNS}
    kept = {k: v for k, v in saved.values.items() if k not in left_out}
    base = [_place(run_dir), Layer("saved run", OF_OLDER_RUNS | kept)]
    # An automatic option keeps the value to which it was resolved when the run began.
    known = options(algo)
    auto = {
        name
        for name, value in asked.values.items()
        if name in known and canonical(value, known[name]) == AUTOMATIC.get(name, ...)
    }
    layers = [
        Layer(of.source, {k: v for k, v in of.values.items() if k not in auto})
        for of in asked.layers
    ]
    try:
        was = compose(algo, base, source).config.flat()
    except ConfigError as error:
        raise ConfigError(f"can't resume from {saved.checkpoint}: {error}") from error
    try:
        loaded = compose(algo, [*base, *layers], source)
    except ConfigError as error:
        given = asked_for(Layer("saved run", {"env.id": was["env.id"]}), *layers)
        differ = _difference_lines(differing(was, valid_values(algo, given) or {}))
        if differ:
            raise _other_run(run_dir, [*differ, str(error)]) from None
        raise
    wanted = loaded.config.flat()
    differ = _difference_lines(differing(was, wanted))
    if differ:
        raise _other_run(run_dir, differ)
    if not trusted:  # checked before any import
        origin = Origin(str(saved.checkpoint), saved.not_own, calls_of(asked.values))
        for call in calls_of(was):
            origin.check(call)
    # A file that repeats the run's own value is not its source.
    sources = {
        name: "saved run" if source.startswith("file ") and wanted[name] == was[name] else source
        for name, source in loaded.sources.items()
    }
    return replace(loaded, sources=sources)


def _place(run_dir: Path | None) -> Layer:
    return Layer("default", {} if run_dir is None else {"run_dir": str(run_dir)})


def _compose_new(asked: _Asked) -> Loaded:
    """The configuration of a new run."""
    algo, values, place = asked.algo, asked.values, _place(asked.run_dir)
    name = str(canonical(values.get("preset", "auto"), options(algo)["preset"]))

    def kind() -> str | None:
        # Unknown options and wrong values are refused anyway: no environment need be made for them.
        able = "env.id" in values and valid_values(algo, values) is not None
        return asked.probe.kind if able else None

    try:
        presets = preset_layers(algo, values.get("env.id"), name, kind)
    except (ConfigError, ValidationError) as error:
        try:
            compose(algo, [place, *asked.layers], asked.source)
        except ConfigError as others:  # all faults at once
            if isinstance(error, ValidationError) or str(error) in str(others):
                raise
            raise ConfigError(f"{error}\n{others}") from error
        raise
    loaded = compose(algo, [place, *presets, *asked.layers], asked.source)
    env, spaces = asked.probe.look(loaded.env)
    return replace(loaded, env=env, spaces=spaces)


def asked_for(*layers: Layer) -> dict[str, Any]:
    """Options of several layers together."""
    return {name: value for layer in layers for name, value in layer.values.items()}


def load_seeds(
    algo: str,
    files: Sequence[Layer],
    command: Layer,
    seeds: Sequence[int],
    source: EnvSource | None = None,
    *,
    trust: bool = False,
    overwrite: bool = False,
) -> list[Loaded | Unusable]:
    """The configurations of a seed group, each with its own folder: ``DIR/sSEED`` if a folder is
    given.  A damaged folder stops only its own run.  A cluster is the group's, not its runs'.

    trust, overwrite: see `load_config`.

    Raises:
        ConfigError: seeds are missing, repeated, or given together with ``seed``; an option is
            invalid; or no run can continue in its folder.
    """
    seeds = _checked_seeds(seeds)
    if "seed" in command.values:
        raise ConfigError(
            f"seed={command.values['seed']} has no effect with seeds={list(seeds)}; leave one of "
            "them out"
        )
    layers, placing = placing_of((*files, command))
    asked = _asked(algo, layers, source)
    given = asked.values.get("run_dir")
    folder = None if given is None else _folder(given)
    if folder is not None and any((folder / n).exists() for n in ("config.yaml", "checkpoints")):
        raise ConfigError(
            f"with seeds, run_dir must be the folder of a group of runs, got {folder}, the folder "
            "of a single run: give another --run-dir"
        )
    loaded: list[Loaded | Unusable] = []
    for seed in seeds:
        mine = {"seed": seed} | ({} if folder is None else {"run_dir": str(folder / f"s{seed}")})
        # The kind depends on neither, so the group has one probe.
        own = replace(asked, layers=(*asked.layers, Layer(command.source, mine)))
        try:
            if folder is not None:
                require_member(folder / f"s{seed}")
            if own.run_dir is not None:  # the folder may still change
                await_orphan(own.run_dir, say)
            saved = None if own.run_dir is None or overwrite else read_saved(own.run_dir)
        except (ConfigError, CheckpointError) as error:
            assert own.run_dir is not None
            loaded.append(Unusable(seed, own.run_dir, str(error)))
        else:
            if placing is not None and saved is not None and saved.values.get("cluster.address"):
                alone = Layer(command.source, {"cluster.address": None})  # not over several nodes
                own = replace(own, layers=(*own.layers, alone))
            one = _load_anew(own, overwrite) if overwrite else _load(own, trust)
            loaded.append(one if placing is None else _placed(one, placing, command.source))
    faults = [each.error for each in loaded if isinstance(each, Unusable)]
    if len(faults) == len(loaded):
        raise ConfigError("\n".join(faults))
    return loaded


def _placed(loaded: Loaded, placing: Placing, source: str) -> Loaded:
    """Moves a run to the cluster of its group, whose option limits restarts of its workers."""
    config, most, sources = loaded.config, placing.max_restarts, loaded.sources
    if most is None:
        placing = replace(placing, max_restarts=config.runtime.max_restarts)
    elif config.runtime.kind == "async":
        config = config.changed("runtime", {"max_restarts": most})
        sources = {**sources, RESTARTS: source}
    return replace(loaded, config=config, sources=sources, placing=placing)


def _checked_seeds(seeds: Sequence[int]) -> list[int]:
    """The seeds as integers; raises ConfigError if there is none, one is repeated, or a bool."""
    try:
        given = list(seeds)
        whole = [operator.index(seed) for seed in given if not isinstance(seed, bool)]
    except TypeError:
        given, whole = [], []
    if not whole or len(set(whole)) < len(given):
        raise ConfigError(
            f"seeds must be at least one whole number and none twice, got {seeds!r}: give "
            "--seeds 1,2,3"
        )
    return whole


def _folder(given: Any) -> Path:
    if not isinstance(given, (str, os.PathLike)) or is_elsewhere(given):
        raise ConfigError(f"run_dir must be the path of a folder, got {given!r}: give one")
    return files.given_path(given)


def _other_run(run_dir: Path, differ: list[str]) -> ConfigError:
    return ConfigError(
        f"{run_dir} holds a run of another configuration:\n"
        + "\n".join(f"  - {line}" for line in differ)
        + "\ngive another --run-dir for a new run, or --overwrite for a new run in this one (its "
        "run is kept under another name), or leave these options out to resume"
    )


def find_run_dir(algo: str, asked: Mapping[str, Any]) -> Path | None:
    """The given folder, else ``runs/ALGO-ENV-sSEED``; None while no environment is named.

    So the same command finds its run again.
    """
    if asked.get("run_dir") is not None:
        return _folder(asked["run_dir"])
    if "env.id" not in asked:
        return None
    name = name_in_folder(asked["env.id"])
    return Path("runs").absolute() / f"{algo}-{name}-s{asked.get('seed', 0)}"


def name_in_folder(env_id: Any) -> str:
    """The environment's name with ``_`` for what a folder's name should not have."""
    return re.sub(r"[^\w.-]+", "_", str(env_id))


def _difference_lines(differ: Iterable[tuple[str, Any, Any]], what: str = "run") -> list[str]:
    return [f"{n}: the {what} has {was!r}, this command has {now!r}" for n, was, now in differ]


def require_as_begun(
    what: str, folder: Path, was: Mapping[str, Any], now: Mapping[str, Any], instead: str
) -> None:
    """Raises ConfigError if a command asks for another `what` than the one in its folder.

    instead: what to give instead.
    """
    names = [name for name in sorted({*was, *now}) if not same_code(was.get(name), now.get(name))]
    if names:
        differ = _difference_lines([(name, was.get(name), now.get(name)) for name in names], what)
        raise ConfigError(
            f"{folder} holds another {what}:\n"
            + "\n".join(f"  - {line}" for line in differ)
            + f"\ngive {instead}, or the same command to go on"
        )


def read_saved(run_dir: Path) -> saved_options.SavedOptions | None:
    """The options with which the run in a folder was trained; None for a new run: there is no run,
    or it has no readable checkpoint.

    Raises:
        ConfigError: the folder holds something else, or can't be read.
    """
    try:
        found = saved_options.read(run_dir)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    names = held_in(run_dir)
    if found is None and names and not names & {saved_options.FILE, "checkpoints"}:
        raise ConfigError(
            f"run_dir must be a new or empty folder, or one with a run, got {run_dir} with "
            f"{', '.join(sorted(names)[:3])} and no {saved_options.FILE}: give another --run-dir"
        )
    return found


def differing(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Options in both that differ and that no resume may change: name, old value, new value."""
    return [
        (name, was[name], now[name])
        for name in now
        if name in was
        and not same_code(was[name], now[name])
        and name not in MAY_CHANGE_ON_RESUME
        and not name.startswith(("eval.", "report."))
    ]


def require_same(place: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises CheckpointError if the checkpoint at `place`, trained with the options `was`, belongs
    to another run than one with the options `now`.
    """
    others = [
        f"{name} was {shown(old)} and is {shown(new)}" for name, old, new in differing(was, now)
    ]
    if others:
        raise CheckpointError(
            f"{place} must be a checkpoint of this run, got one of another ({'; '.join(others)}): "
            "remove it, or give another --run-dir"
        )


def held_in(run_dir: Path) -> set[str]:
    """Names in a folder, except those that a run may leave right at its start."""
    try:
        names = os.listdir(run_dir) if run_dir.is_dir() else []
    except OSError as fault:
        raise ConfigError(str(files.cannot_read(run_dir, fault))) from fault
    return {*names} - {*BEFORE_CONFIG}


def require_movable(run_dir: Path) -> None:
    """Raises ConfigError for a folder that --overwrite must not rename: one without a run, or the
    working folder.
    """
    names, known = held_in(run_dir), {saved_options.FILE, "checkpoints", "metrics.jsonl"}
    if not names:
        return
    if run_record.FILE not in names or not names & known:
        raise ConfigError(
            f"--overwrite must name a folder that a run has made, got {run_dir}, which holds "
            f"{', '.join(sorted(names)[:3])}: give another --run-dir, or rename it yourself"
        )
    require_elsewhere(run_dir)


def require_elsewhere(run_dir: Path) -> None:
    """Raises ConfigError if the process works in a folder that --overwrite is to rename."""
    if Path.cwd().is_relative_to(run_dir.resolve()):
        raise ConfigError(
            f"--overwrite must not name the working folder, got {run_dir}: cd to another one first"
        )


def left_reports(run_dir: Path) -> bool:
    """Whether a run in a folder has reported something, but has no checkpoint, whole or not."""
    reports = run_dir / "metrics.jsonl"
    begun = manifest.numbered(run_dir / "checkpoints")
    return not begun and reports.is_file() and reports.stat().st_size > 0
