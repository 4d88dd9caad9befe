"""Options on the command line: words become text by option; their values are checked later, in one
validation.
"""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from quintet.algorithms import registry
from quintet.errors import ConfigError
from quintet.options.declaration import kinds
from quintet.options.layers import NONE, Layer, flatten, learner_defaults, options, read_file
from quintet.options.run import ALIASES, PARTS, TOP, prefix_of
from quintet.system import files
from quintet.system.printing import say
from quintet.system.trust import TRUST_HELP

COMMON = (
    "env.id",
    "total_env_steps",
    "seed",
    "run_dir",
    "preset",
    "learning_rate",
    "gamma",
    "env.num_streams",
    "model.encoder",
    "runtime.kind",
    "runtime.device",
    "population.size",
    "init_from",
)
"""Options that `--help` shows; `--help all` shows the others too."""

OF_COMMANDS = {
    "config FILE": "YAML files of options, which count as typed; a later file overrides",
    "trust": TRUST_HELP,
    "overwrite": "start again if the folder holds a run, which is kept as FOLDER.old-1",
    "seeds 1,2,3": "quintet train: seeds of a group of runs, each with its own process and its own "
    "folder (runs/ALGO-ENV-sSEED, or DIR/sSEED with --run-dir DIR); with --cluster on its nodes",
    "minutes NUMBER": "quintet train: time of a new run, in place of --total-steps; the speed is "
    "measured when it begins, and the number of env_steps that fits is stored",
    "jobs INT": "quintet train: number of runs of --seeds at the same time (default: cores divided "
    "by runtime.threads, at least 1; on a cluster all that its nodes have cores for)",
}
"""Options of commands beyond those of a run, with their meaning."""


MOST_MINUTES = 10_000_000


class Parsed(NamedTuple):
    """A parsed command line.

    files: layers from the ``--config`` files.
    options: layer of the typed options.
    seeds, jobs: options of a seed group; None if not given.
    minutes: time of a new run; None if not given.
    trust: whether code that the run's folder names may be imported and called.
    overwrite: whether an existing run in the folder is moved aside.
    """

    algo: str
    files: list[Layer]
    options: Layer
    seeds: list[int] | None
    jobs: int | None
    minutes: float | None
    trust: bool
    overwrite: bool


def parse(command: str, arguments: list[str]) -> Parsed:
    """Splits the arguments of ``quintet train`` or ``quintet config``.

    Unknown options stay in the layer, under the name they were given, so that they are reported
    together with every other fault.

    Raises:
        ConfigError: no algorithm, an unknown one, a file that can't be read, an option without its
            value, or seeds or jobs that are not whole numbers.
    """
    names = registry.LEARNERS.names()
    if arguments and arguments[0] in ("-h", "--help"):
        arguments = [names[0], "--help"]
    if not arguments or arguments[0].startswith("-"):
        raise ConfigError(
            f"quintet {command} needs an algorithm first: give one of "
            f"{', '.join(names)}: quintet {command} {names[0]} --env CartPole-v1"
        )
    algo, rest = registry.canonical(arguments[0]), arguments[1:]
    if {"-h", "--help"} & {*rest}:
        say(_help(command, algo, everything=rest[-1] == "all"))
        raise SystemExit(0)
    known = options(algo)
    values: dict[str, Any] = {}
    bare: set[str] = set()
    paths: list[str] = []
    group: dict[str, list[int]] = {}
    minutes: float | None = None
    for name, words in _by_option(rest):
        if not words and (name == "config" or name in known):
            raise ConfigError(f"{name} must have a value, got --{name} alone: give one")
        if name in ("trust", "overwrite"):
            if words:
                raise ConfigError(f"--{name} takes no value, got {words[0]!r}; give --{name} alone")
            bare.add(name)
        elif name == "config":
            paths += words
        elif name in ("seeds", "jobs", "minutes"):
            if command != "train":
                why = "has none; leave it out"
                if command == "config":
                    why = "shows one run of a group; leave it out, or give one --seed"
                if name == "minutes":
                    why = "measures no speed; leave it out, or give --total-steps"
                raise ConfigError(
                    f"--{name} is an option of quintet train alone: quintet {command} {why}"
                )
            if name == "minutes":
                minutes = _minutes(words)
            else:
                group[name] = _integers(name, words)
        elif name in known and _takes_several(known[name]):
            values[name] = _several(words, known[name])
        else:
            value = words[0] if words else ""
            values[name] = _value(value, known[name]) if name in known else value
            values |= dict.fromkeys(words[1:])  # words that belong to no option
    require_minutes(minutes, values)
    return Parsed(
        algo,
        [Layer(f"file {p}", flatten(read_file(files.given_path(p)), known)) for p in paths],
        Layer("command line", values),
        group.get("seeds"),
        group["jobs"][0] if "jobs" in group else None,
        minutes,
        "trust" in bare,
        "overwrite" in bare,
    )


def require_minutes(minutes: float | None, values: Mapping[str, Any]) -> None:
    """Raises ConfigError if the time of a run is not a number above 0, or a number of env_steps is
    given too."""
    if minutes is None:
        return
    number = isinstance(minutes, int | float) and not isinstance(minutes, bool)
    if not number or not 0.0 < minutes <= MOST_MINUTES:
        raise ConfigError(
            f"minutes must be a number above 0 and at most {MOST_MINUTES:,}, got {minutes!r}: give "
            "10 for ten minutes"
        )
    if "total_env_steps" in values:
        raise ConfigError(
            f"minutes must be given without total_env_steps, which is computed from it, got "
            f"minutes={minutes:g} and total_env_steps={values['total_env_steps']}: leave one out"
        )


def require_jobs(jobs: int | None) -> None:
    """Raises ConfigError for a number of runs at the same time that is none."""
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise ConfigError(
            f"jobs must be a whole number of at least 1, got {jobs!r}: give one, or leave it out"
        )


def _minutes(words: list[str]) -> float:
    """The number of ``--minutes``; whether it is above 0 is checked later."""
    try:
        (word,) = words
        return float(word)
    except ValueError:
        raise ConfigError(
            f"--minutes must be a number, got {' '.join(words) or '--minutes alone'!r}: give "
            "--minutes 10"
        ) from None


def _by_option(words: list[str]) -> list[tuple[str, list[str]]]:
    """The words after each option, by its full name; words before the first option are separate.
    ``--env.num_streams=4`` and ``--env.num-streams 4`` mean the same.
    """
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found.append((ALIASES.get(name, name), [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        else:
            found.append((word, []))
    return found


def _integers(name: str, words: list[str]) -> list[int]:
    """The number of ``--jobs``, or the numbers of ``--seeds``, with or without commas."""
    given = " ".join(words).replace(",", " ") if name == "seeds" else " ".join(words)
    try:
        return [int(word) for word in (given.split() if name == "seeds" else [given])]
    except ValueError:
        raise ConfigError(
            f"--{name} must be {'whole numbers, as in 1,2,3' if name == 'seeds' else 'a number'}, "
            f"got {given!r}"
        ) from None


def _takes_several(info: FieldInfo) -> bool:
    kept = get_origin(info.annotation) is dict
    return not kept and any(get_origin(kind) in (tuple, list) for kind in kinds(info))


def _several(words: list[str], info: FieldInfo) -> Any:
    if len(words) == 1 and words[0].startswith("["):
        return _json(words[0])
    if len(words) == 1 and words[0].lower() in NONE:
        return None if type(None) in kinds(info) else []
    return words


def _value(text: str, info: FieldInfo) -> Any:
    """The value of an option as typed: text if the option takes words, else JSON if it is valid."""
    plain = all(
        kind in (str, Path, type(None)) or get_origin(kind) is Literal for kind in kinds(info)[1:]
    )
    if info.annotation is str or (plain and get_args(info.annotation)):
        return text
    return _json(text)


def _json(text: str) -> Any:
    try:
        return files.parse_json(text)
    except files.TooDeep as fault:
        raise ConfigError(f"{text[:20]}...: {fault}; give fewer brackets") from fault
    except ValueError:
        return text


def mapping(name: str, text: str) -> dict[str, Any]:
    """A JSON object as typed; raises ConfigError for anything else."""
    try:
        given = files.parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{name} must be JSON, got {text!r}: {error}") from error
    if not isinstance(given, dict):
        raise ConfigError(f"""{name} must be as in '{{"length": 1}}', got {text!r}""")
    return given


def _metavar(info: FieldInfo) -> str:
    """The word in help that stands for an option's value."""
    for kind in kinds(info):
        if get_origin(kind) is Literal:
            return "|".join(str(choice) for choice in get_args(kind))
    names = {int: "INT", float: "FLOAT", bool: "true|false", str: "TEXT", Path: "DIR"}
    for kind in kinds(info):
        if kind in names:
            return names[kind]
    return "VALUE"


def _default(name: str, info: FieldInfo, own: Layer) -> str:
    """The default of an option as help shows it; `own`: the learner's own defaults."""
    default = "required" if info.is_required() else info.get_default(call_default_factory=True)
    default = own.values.get(name, default)
    if isinstance(default, tuple):
        default = " ".join(str(item) for item in default)
    return f"({own.source if name in own.values else 'default'}: {str(default).lower()})"


def _help(command: str, algo: str, *, everything: bool) -> str:
    """Help with all options, or with the common ones: at most 40 lines of 80 columns."""
    known, own, width = options(algo), learner_defaults(algo), get_terminal_size().columns
    short = {target: f"--{alias.replace('_', '-')}" for alias, target in ALIASES.items()}
    rows: dict[str, dict[str, str]] = {"": {}}
    if everything:
        rows = {"The command": {f"--{name}": text for name, text in OF_COMMANDS.items()}}
    for name in known if everything else [each for each in COMMON if each in known]:
        info, flag = known[name], f"--{name.replace('_', '-')}"
        if name in short:
            flag = f"{short[name]}, {flag}" if everything else short[name]
        if name != "algo":
            part = rows.setdefault(_heading(name, algo) if everything else "", {})
            part[f"{flag} {_metavar(info)}"] = f"{info.description} {_default(name, info, own)}"
    if everything:
        end = f"`quintet config {algo} --env ID` shows their values and where these come from."
    else:
        others = ", --minutes 10, --seeds 1,2,3, --overwrite, --trust" if command == "train" else ""
        end = (
            f"Also --config FILE.yaml{others}.\n"
            f"`quintet {command} {algo} --help all` explains all {len(known)} options."
            + "\n`quintet train auto --help`: a race over learners and settings."
            * (command == "train")
        )
    lines = [f"usage: quintet {command} {algo} --env ID [OPTION VALUE ...]", ""]
    for heading, part in rows.items():
        lines += [heading] if heading else []
        for flag, text in part.items():
            lines += textwrap.wrap(
                text,
                width,
                initial_indent=f"  {flag}  ",
                subsequent_indent=" " * 6,
                break_on_hyphens=False,
            )
        lines.append("")
    return "\n".join([*lines, end])


def _heading(name: str, algo: str) -> str:
    """The heading of an option in help: the part of a run that it is of."""
    of = {prefix_of(part): kind for part, kind in PARTS.items() if name.startswith(prefix_of(part))}
    if not of:
        return "The run" if name in TOP else f"The learner, {algo}"
    prefix = max(of, key=len)  # eval.env. is not of eval.
    says = (of[prefix].__doc__ or "").splitlines()[0].removesuffix(".")
    return f"--{prefix.replace('_', '-')}*: {says[:1].lower()}{says[1:]}"
