"""Groups of runs in plots, and their names."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from quintet.observe.run_summary import NOT_PART_OF_GROUP
from quintet.observe.run_summary import text as printable

_MAX_LABEL_PARTS = 4
_MOST_SHOWN = 120  # characters of a text in a picture
_ENV = ("env", "env.id")  # either names the environment


def group_labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A short name for each group: its algorithm, its environment if there are several, and the
    options in which it differs from other groups of the same algorithm; of options that distinguish
    the same groups, only the first.  (Options in which two algorithms differ add nothing to their
    names.) All names are different.
    """
    told = _told_apart(configs)
    most = max(map(len, told), default=0)
    for parts in range(_MAX_LABEL_PARTS, most + 1):
        labels = [
            ", ".join([*each[: parts + 1], *["…"] * (len(each) > parts + 1)]) for each in told
        ]
        if len(set(labels)) == len(labels):
            return labels
    return _numbered([", ".join(each) for each in told])


def _numbered(labels: Sequence[str]) -> list[str]:
    """The labels, equal ones with a number after the first."""
    seen = Counter[str]()
    numbered = []
    for label in labels:
        seen[label] += 1
        numbered.append(f"{label} ({seen[label]})" if seen[label] > 1 else label)
    return numbered


def _told_apart(configs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The algorithm of each group, and everything that `group_labels` may add."""
    envs = _differing(configs, [name for name in _ENV if any(name in each for each in configs)])
    peers: dict[str, list[Mapping[str, Any]]] = {}
    for config in configs:  # of which some may be damaged
        peers.setdefault(str(config.get("algo")), []).append(config)
    telling = {algo: _telling(of, envs) for algo, of in peers.items()}
    return [
        [
            str(config.get("algo", "run")),
            *(_part(n, config[n]) for n in telling[str(config.get("algo"))] if n in config),
        ]
        for config in configs
    ]


def _telling(peers: Sequence[Mapping[str, Any]], envs: Sequence[str]) -> list[str]:
    """The options that tell groups of one algorithm apart; `envs`: those that always do."""
    names = sorted({name for each in peers for name in each})
    compared = [n for n in names if n.split(".")[0] not in (*NOT_PART_OF_GROUP, "algo")]
    # An option that a run of an older version does not have tells only where nothing else does.
    everywhere = [name for name in compared if all(name in each for each in peers)]
    differing = _differing(peers, everywhere) or _differing(peers, compared)
    differing.sort(key=lambda name: name != "preset")  # which tells many others
    told = {_parted(peers, name): name for name in reversed(differing)}
    kept = {*envs, *told.values()}
    return list(dict.fromkeys(name for name in (*envs, *differing) if name in kept))


def _parted(configs: Sequence[Mapping[str, Any]], name: str) -> tuple[int, ...]:
    """The index, for each configuration, of the first one with the same value."""
    first: dict[str, int] = {}
    values = (json.dumps(config.get(name), default=str) for config in configs)
    return tuple(first.setdefault(value, place) for place, value in enumerate(values))


def _differing(configs: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Options that don't have the same value in all configurations."""
    return [
        name
        for name in names
        if len({json.dumps(config.get(name), default=str) for config in configs}) > 1
    ]


def _part(name: str, value: object) -> str:
    if name in _ENV:
        return str(value)
    return f"{name.split('.', 1)[-1]} " + (f"{value:g}" if isinstance(value, float) else str(value))


def plain(text: str) -> str:
    """The text as a picture must show it: printable, and with dollars escaped, since matplotlib
    would read a formula between two.
    """
    return printable(text, _MOST_SHOWN).replace("$", "\\$")


def env_name(config: Mapping[str, Any]) -> str:
    """The environment's id, or "" if the configuration has none."""
    return str(config.get("env.id") or config.get("env") or "")
