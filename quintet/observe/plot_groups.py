"""Groups of runs in plots, and their names."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quintet.observe.run_summary import text as printable

_NOT_PART_OF_GROUP = ("seed", "run_dir", "resume", "report")  # may differ within an experiment
_MAX_LABEL_PARTS = 4
_MOST_SHOWN = 120  # characters of a text in a picture
_ENV = ("env", "env.id")  # either names the environment


def group_key(config: Mapping[str, Any]) -> str:
    """The configuration without seed and folder, as text; equal for runs of one experiment."""
    shared = {name: x for name, x in config.items() if name.split(".")[0] not in _NOT_PART_OF_GROUP}
    return json.dumps(shared, sort_keys=True, default=str)


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
    return [", ".join(each) for each in told]


def _told_apart(configs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The algorithm of each group, and everything that `group_labels` may add."""
    envs = _differing(configs, [name for name in _ENV if any(name in each for each in configs)])
    labels = []
    for config in configs:
        peers = [each for each in configs if each.get("algo") == config.get("algo")]
        names = sorted({name for each in peers for name in each})
        compared = [n for n in names if n.split(".")[0] not in (*_NOT_PART_OF_GROUP, "algo")]
        # An option that a run of an older version does not have tells only where nothing else does.
        everywhere = [name for name in compared if all(name in each for each in peers)]
        differing = _differing(peers, everywhere) or _differing(peers, compared)
        differing.sort(key=lambda name: name != "preset")  # which tells many others
        told = {_parted(peers, name): name for name in reversed(differing)}
        own = [name for name in (*envs, *differing) if name in (*envs, *told.values())]
        own = [name for name in dict.fromkeys(own) if name in config]
        labels.append([str(config.get("algo", "run")), *(_part(n, config[n]) for n in own)])
    return labels


def _parted(configs: Sequence[Mapping[str, Any]], name: str) -> tuple[int, ...]:
    """The index, for each configuration, of the first one with the same value."""
    values = [json.dumps(config.get(name), default=str) for config in configs]
    return tuple(values.index(value) for value in values)


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
