"""Groups of runs in plots, and their names."""

import json
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quintet.checkpoints import saved_options
from quintet.errors import FileFault
from quintet.observe.run_summary import actions_evaluated, is_of_group
from quintet.observe.run_summary import text as printable
from quintet.system import files

_MAX_LABEL_PARTS = 8
_MOST_SHOWN = 240  # characters of a text in a picture
_ENV = ("env", "env.id")  # either names the environment
_GREEDY = "eval.greedy"

Options = Mapping[str, Any]
Sources = Mapping[str, str]


def options_of(folder: Path) -> dict[str, Any]:
    """The options with which a run was trained, by dotted name, from its newest checkpoint, else
    from ``config.yaml``.
    """
    if (found := saved_options.read(folder)) is not None:
        return _flatten(found.values)
    file = folder / saved_options.FILE
    try:
        values = files.read_yaml(file)
        if not isinstance(values, dict):
            raise FileFault(f"{file} holds no options")
    except FileFault as fault:
        files.warn_on_stderr(f"{fault}: {folder} is taken for a run by itself")
        return {}
    if (folder / "checkpoints").exists():  # one was begun
        files.warn_on_stderr(f"{folder} has no whole checkpoint: its options are read from {file}")
    return _flatten(values)


def _flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        nested = isinstance(value, Mapping)
        flat |= _flatten(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return flat


def group_labels(configs: Sequence[Options], sources: Sequence[Sources] | None = None) -> list[str]:
    """A short name for each group: its algorithm, its environment if there are several, and the
    options in which it differs from other groups of the same algorithm.  (Options in which two
    algorithms differ add nothing to their names.) All names are different.

    sources: of the options of each group, as far as known; options that nobody chose are named
        only where the others don't tell the groups apart.
    """
    names = _label_parts(configs, sources or [{} for _ in configs])
    most = max(map(len, names), default=0)
    for parts in range(_MAX_LABEL_PARTS, most + 1):
        labels = [
            ", ".join([*each[: parts + 1], *["…"] * (len(each) > parts + 1)]) for each in names
        ]
        if len(set(labels)) == len(labels):
            return labels
    return _numbered([", ".join(each) for each in names])


def _numbered(labels: Sequence[str]) -> list[str]:
    """The labels, equal ones with a number after the first."""
    seen = Counter[str]()
    numbered = []
    for label in labels:
        seen[label] += 1
        numbered.append(f"{label} ({seen[label]})" if seen[label] > 1 else label)
    return numbered


def _label_parts(configs: Sequence[Options], sources: Sequence[Sources]) -> list[list[str]]:
    """The algorithm of each group, and everything that `group_labels` may add."""
    envs = _differing(configs, [name for name in _ENV if any(name in each for each in configs)])
    algos = [str(config.get("algo")) for config in configs]  # some may be damaged
    chosen: dict[str, list[str]] = {}
    for algo in {*algos}:
        of = [place for place, each in enumerate(algos) if each == algo]
        chosen[algo] = _label_options([configs[k] for k in of], [sources[k] for k in of], envs)
    shown = {name for names in chosen.values() for name in names}
    return [
        [
            str(config.get("algo", "run")),
            *(_part(n, config[n], configs, shown) for n in chosen[algo] if n in config),
        ]
        for config, algo in zip(configs, algos, strict=True)
    ]


def _label_options(
    peers: Sequence[Options], sources: Sequence[Sources], envs: Sequence[str]
) -> list[str]:
    """The options that tell groups of one algorithm apart; `envs`: those that always do."""
    names = sorted({name for each in peers for name in each}, key=lambda x: ("." in x, x))
    compared = [n for n in names if is_of_group(n) and n != "algo" and n not in envs]
    # An option that a run of an older version does not have tells only where nothing else does.
    everywhere = [name for name in compared if all(name in each for each in peers)]
    differing = _differing(peers, everywhere) or _differing(peers, compared)
    differing.sort(key=lambda name: name != "preset")  # a preset tells many others
    chosen = [*envs, *(name for name in differing if _is_chosen(name, peers, sources))]
    for name in differing:
        if name not in chosen and len(_parts(peers, [*chosen, name])) > len(_parts(peers, chosen)):
            chosen.append(name)
    return chosen


def _is_chosen(name: str, peers: Sequence[Options], sources: Sequence[Sources]) -> bool:
    """Whether somebody chose the option in a group; unknown sources count, except where the presets
    differ in the same way.
    """
    known = [each[name] for each in sources if name in each]
    if known:
        return not all("default" in source or "preset" in source for source in known)
    if name == "preset" or len(_parts(peers, ["preset"])) == 1:
        return True
    return len(_parts(peers, ["preset", name])) > len(_parts(peers, ["preset"]))


def _parts(configs: Sequence[Options], names: Sequence[str]) -> set[str]:
    """The different values of these options together."""
    return {json.dumps([each.get(name) for name in names], default=str) for each in configs}


def _differing(configs: Sequence[Options], names: Sequence[str]) -> list[str]:
    """Options that don't have the same value in all configurations."""
    return [name for name in names if len(_parts(configs, [name])) > 1]


def _part(name: str, value: object, configs: Sequence[Options], shown: set[str]) -> str:
    """An option in a label: the shortest name and number that no other has."""
    if name in _ENV:
        return str(value)
    if name == _GREEDY and (how := actions_evaluated({_GREEDY: value})):
        return f"{how} evaluation"
    short = name.split(".", 1)[-1]
    if sum(each.split(".", 1)[-1] == short for each in shown) > 1:
        short = name
    return f"{short} {_number(value, [each.get(name) for each in configs])}"


def _number(value: object, others: Sequence[object]) -> str:
    if not isinstance(value, float):
        return "none" if value is None else str(value)
    numbers = {each for each in others if isinstance(each, float)}
    for digits in range(6, 17):
        if len({f"{each:.{digits}g}" for each in numbers}) == len(numbers):
            return f"{value:.{digits}g}"
    return repr(value)


def plain(text: str, width: int | None = None) -> str:
    """The text as a picture must show it: printable, and with dollars escaped, since matplotlib
    would read a formula between two.

    width: characters of a line; None: one line.
    """
    shown = printable(text, _MOST_SHOWN)
    if width is not None:
        # A line ends after a comma, not between an option's name and its value.
        whole = shown.replace(" ", "\0").replace(",\0", ", ")
        shown = ("\n".join(textwrap.wrap(whole, width)) or whole).replace("\0", " ")
    return shown.replace("$", "\\$")


def env_name(config: Options) -> str:
    """The environment's id, or "" if the configuration has none."""
    return str(config.get("env.id") or config.get("env") or "")
