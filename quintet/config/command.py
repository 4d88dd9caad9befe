"""Options on the command line: tyro writes the help and splits the arguments, and the one
validation at the end checks their values.
"""

import textwrap
from itertools import pairwise
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, get_args, get_origin

import tyro
from pydantic.fields import FieldInfo

from quintet.algorithms import registry
from quintet.config.layers import NONE, Layer, flatten, kinds, learner_defaults, options, read_file
from quintet.config.run import ALIASES
from quintet.errors import ConfigError
from quintet.system import files
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


class Parsed(NamedTuple):
    """A parsed command line.

    files: layers of the ``--config`` files.
    options: layer of the options themselves.
    seeds, jobs: of a seed group; None where not given.
    trust: whether code that the run's folder names may be imported and called.
    overwrite: whether a run in the folder is moved aside.
    """

    algo: str
    files: list[Layer]
    options: Layer
    seeds: list[int] | None
    jobs: int | None
    trust: bool
    overwrite: bool


def parse(command: str, arguments: list[str]) -> Parsed:
    """Splits the arguments of ``quintet train`` or ``quintet config``.

    Unknown options stay in the layer, under the name they were given, so that they are reported
    together with every other fault.

    Raises:
        ConfigError: no algorithm, an unknown one, a file that can't be read, or seeds or jobs that
            are no whole numbers.
    """
    names = ", ".join(registry.LEARNERS.names())
    if not arguments or arguments[0].startswith("-"):
        if arguments and arguments[0] in ("-h", "--help"):
            arguments = [registry.LEARNERS.names()[0], "--help"]
        else:
            raise ConfigError(
                f"quintet {command} requires an algorithm first, one of {names}: quintet "
                f"{command} {registry.LEARNERS.names()[0]} --env CartPole-v1"
            )
    algo, rest = registry.canonical(arguments[0]), arguments[1:]
    _require_bare(rest)
    known = options(algo)
    if {"-h", "--help"} & {*rest} and rest[-1] != "all":
        print(_common_help(command, algo))
        raise SystemExit(0)
    parsed, unknown = tyro.cli(
        _schema(algo, of_group=command == "train"),
        prog=f"quintet {command} {algo}",
        description=f"All options of {algo}. `quintet config {algo} --env ID` shows their values "
        "and where these come from.",
        args=[_undash(a) for a in rest],
        return_unknown_args=True,
    )
    given = dict(parsed)
    paths = given.pop("config", [])
    seeds, jobs = given.pop("seeds", None), given.pop("jobs", None)
    trust, overwrite = given.pop("trust", False), given.pop("overwrite", False)
    dotted = {name.replace("__", "."): text for name, text in given.items()}
    values = {n: _value(text, known[n]) for n, text in flatten(dotted, known).items()}
    strangers = _unknown(unknown)
    for name in ("seeds", "jobs"):
        if name in strangers:
            raise ConfigError(
                f"--{name} belongs to quintet train, quintet {command} shows one run of a group; "
                "leave it out, or give one --seed"
            )
    values |= strangers
    layers = [Layer(f"file {p}", flatten(read_file(files.given_path(p)), known)) for p in paths]
    return Parsed(
        algo,
        layers,
        Layer("command line", values),
        None if seeds is None else _whole("seeds", " ".join(seeds).replace(",", " ").split()),
        None if jobs is None else _whole("jobs", [jobs])[0],
        trust,
        overwrite,
    )


def _require_bare(arguments: list[str]) -> None:
    """Refuses ``--trust yes`` and ``--trust=yes``."""
    for word, after in pairwise([*arguments, "--"]):
        name, equals, value = word.partition("=")
        value = value if equals else "" if after.startswith("-") else after
        if name in ("--trust", "--overwrite") and (equals or value):
            raise ConfigError(f"{name} takes no value, got {value!r}; give {name} alone")


def _whole(name: str, words: list[str]) -> list[int]:
    try:
        return [int(word) for word in words]
    except ValueError:
        raise ConfigError(
            f"--{name} requires {'whole numbers, as in 1,2,3' if name == 'seeds' else 'a number'}; "
            f"got {' '.join(words)!r}"
        ) from None


def _undash(argument: str) -> str:
    """``--env.num_streams=4`` and ``--env.num-streams`` mean the same; values keep their
    underscores.
    """
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _value(text: Any, info: FieldInfo) -> Any:
    """The value of an option as typed: text where the option takes words, else JSON if it is."""
    if isinstance(text, (list, tuple)):
        if len(text) == 1 and text[0].startswith("["):
            return _json(text[0])
        if len(text) == 1 and text[0].lower() in NONE:
            return None if type(None) in kinds(info) else []
        return list(text)
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


def _unknown(words: list[str]) -> dict[str, Any]:
    """Unknown options by name, with their values; other words by themselves."""
    found: dict[str, Any] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            head, _, value = word.partition("=")
            name = head[2:].replace("-", "_")
            found[name] = value
        elif name is not None:
            found[name], name = word, None
        else:
            found[word] = None
    return found


def _metavar(info: FieldInfo) -> str:
    for kind in kinds(info):
        if get_origin(kind) is Literal:
            return "|".join(str(choice) for choice in get_args(kind))
    names = {int: "INT", float: "FLOAT", bool: "true|false", str: "TEXT", Path: "DIR"}
    for kind in kinds(info):
        if kind in names:
            return names[kind]
    return "VALUE"


def _default(name: str, info: FieldInfo, own: Layer) -> str:
    """The default of an option as help shows it; `own` are the learner's own defaults."""
    default = "required" if info.is_required() else info.get_default(call_default_factory=True)
    default = own.values.get(name, default)
    if isinstance(default, tuple):
        default = " ".join(str(item) for item in default)
    return f"({own.source if name in own.values else 'default'}: {str(default).lower()})"


def _common_help(command: str, algo: str) -> str:
    """Help with the common options only, at most 40 lines on a terminal of 80 columns."""
    known, own, width = options(algo), learner_defaults(algo), get_terminal_size().columns
    short = {target: alias for alias, target in ALIASES.items()}
    lines = [f"usage: quintet {command} {algo} --env ID [OPTION VALUE ...]", ""]
    for name in (each for each in COMMON if each in known):
        info = known[name]
        flag = f"  --{short.get(name, name).replace('_', '-')} {_metavar(info)}"
        text = f"{info.description} {_default(name, info, own)}"
        lines += textwrap.wrap(text, width, initial_indent=f"{flag}  ", subsequent_indent=" " * 6)
    others = {"train": ", --seeds 1,2,3, --overwrite, --trust"}.get(command, "")
    return "\n".join(
        [
            *lines,
            "",
            f"Also --config FILE.yaml{others}.",
            f"`quintet {command} {algo} --help all` explains all {len(known)} options.",
        ]
    )


def _schema(algo: str, *, of_group: bool) -> Any:
    """A TypedDict of every option as text, so that tyro leaves out options that aren't given.

    of_group: whether it has the options of a seed group.
    """
    fields: dict[str, Any] = {
        "config": Annotated[
            tuple[str, ...],
            tyro.conf.arg(
                help="YAML files of options, which count as typed; a later file overrides",
                metavar="FILE",
                help_behavior_hint="",
            ),
        ],
        "trust": Annotated[bool, tyro.conf.arg(help=TRUST_HELP)],
        "overwrite": Annotated[
            bool,
            tyro.conf.arg(
                help="start again if the folder holds a run, which is kept as FOLDER.old-1"
            ),
        ],
    }
    if of_group:
        fields["seeds"] = Annotated[
            tuple[str, ...],
            tyro.conf.arg(
                help="seeds of a group of runs, each with its own process and its own folder "
                "(runs/ALGO-ENV-sSEED, or DIR/sSEED with --run-dir DIR)",
                metavar="1,2,3",
                help_behavior_hint="(default: one run, of --seed)",
            ),
        ]
        fields["jobs"] = Annotated[
            str,
            tyro.conf.arg(
                help="number of runs of --seeds at the same time",
                metavar="INT",
                help_behavior_hint="(default: cores divided by runtime.threads, at least 1)",
            ),
        ]
    short = {target: alias for alias, target in ALIASES.items()}
    own = learner_defaults(algo)
    for name, info in options(algo).items():
        if name == "algo":
            continue
        mapping = get_origin(info.annotation) is dict
        many = not mapping and any(get_origin(kind) in (tuple, list) for kind in kinds(info))
        fields[name.replace(".", "__")] = Annotated[
            tuple[str, ...] if many else str,
            tyro.conf.arg(
                name=name.replace("_", "-"),
                aliases=[f"--{short[name].replace('_', '-')}"] if name in short else None,
                help=info.description,
                metavar=_metavar(info),
                help_behavior_hint=_default(name, info, own),
            ),
        ]
    return TypedDict("Options", fields, total=False)  # type: ignore[operator]
