"""The choice between eager calls, compiled graphs and CUDA graphs."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from quintet.algorithms.parts.setup import Compute
from quintet.models.captured import Captured
from quintet.models.compiled import Graph

P = ParamSpec("P")
R = TypeVar("R")


def in_graphs(method: Callable[P, R], compute: Compute) -> Callable[P, R]:
    """A bound method that changes nothing, in the form that the options ask for."""
    if compute.compile:
        return Graph(method)
    return Captured(method) if compute.graph else method
