"""Options of a group of runs on a cluster, which its runs do not have: each of them is a whole run
of one node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from pydantic import ValidationError

from quintet.cluster.config import ClusterConfig
from quintet.errors import ConfigError
from quintet.options.declaration import faults
from quintet.options.layers import Layer, canonical, listed
from quintet.options.run import PARTS

RESTARTS = "runtime.max_restarts"

_OPTIONS = {f"cluster.{name}": info for name, info in ClusterConfig.model_fields.items()}
_OPTIONS[RESTARTS] = PARTS["runtime"].model_fields["max_restarts"]


@final
@dataclass(frozen=True)
class Placing:
    """The cluster on whose nodes a group's runs are placed.

    max_restarts: number of times that a run may start again on another node; None: as each run's
        ``runtime.max_restarts``.
    """

    cluster: ClusterConfig
    max_restarts: int | None


def placing_of(layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], Placing | None]:
    """The layers without options of the group, and these; all layers if no cluster is named.

    Raises:
        ConfigError: lists invalid values.
    """
    given = {
        name: canonical(value, _OPTIONS[name])
        for layer in layers
        for name, value in layer.values.items()
        if name in _OPTIONS
    }
    if given.get("cluster.address") is None:
        return tuple(layers), None
    wrong: list[str] = []
    made = {}
    for part in ("cluster", "runtime"):
        mine = {n.removeprefix(f"{part}."): x for n, x in given.items() if n.startswith(part)}
        try:
            made[part] = PARTS[part](**mine)
        except ValidationError as error:
            wrong += faults(error, f"{part}.")
    if wrong:
        raise ConfigError(listed(wrong))
    others = [{n: x for n, x in each.values.items() if n not in _OPTIONS} for each in layers]
    own = tuple(Layer(each.source, x) for each, x in zip(layers, others, strict=True))
    cluster = made["cluster"]
    assert isinstance(cluster, ClusterConfig)
    return own, Placing(cluster, given.get(RESTARTS))
