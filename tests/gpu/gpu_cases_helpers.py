"""Learners, networks and spaces that are tried on the GPU and on the CPU."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import standin_helpers
import torch
from conformance_helpers import CONTINUOUS, LEARNERS, MASKED, NUMBERS, STREAMS, TOTAL, Case, Task
from gymnasium import spaces as gym
from torch import Tensor

from quintet.algorithms.parts.setup import ALONE, PLAIN, Compute, Setup
from quintet.protocols import Ranks
from quintet.runtime.batch import rollout_to_device
from quintet.system.transfer import to_host

CPU, CUDA = torch.device("cpu"), torch.device("cuda")

CHOICE = gym.Discrete(3)
PICTURES = gym.Box(0, 255, (2, 12, 12), np.uint8)
TREE = gym.Dict(
    {"seen": gym.Box(0, 255, (2, 12, 12), np.uint8), "far": NUMBERS, "kind": gym.Discrete(4)}
)
PARTS = gym.Tuple((gym.Discrete(2), gym.Box(-1.0, 2.0, (2,), np.float32), gym.Discrete(3)))
NORMALISED = {
    "normalize_observations": True,
    "normalize_pictures": True,
    "reward_normalizer": "return_std",
}
SPACES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "numbers": (CONTINUOUS, {}, "none"),
    "choices": (Task(NUMBERS, CHOICE), {}, "none"),
    "masked, gru": (MASKED, {}, "gru"),
    "choices, lstm": (Task(NUMBERS, CHOICE), {}, "lstm"),
    "parts": (Task(NUMBERS, PARTS), {}, "none"),
    "normalised": (CONTINUOUS, NORMALISED, "none"),
    "pictures": (Task(PICTURES, CHOICE), {}, "none"),
    "pictures, actions of numbers": (Task(PICTURES, CONTINUOUS.action), {}, "none"),
    "tree, normalised": (Task(TREE, CHOICE), NORMALISED, "none"),
    "tree, actions of numbers, normalised": (Task(TREE, CONTINUOUS.action), NORMALISED, "none"),
}  # fmt: skip
"""Task, options of learners that have them, core."""
ROUNDED = {"pictures", "tree, normalised"}


def matrix() -> Iterator[tuple[str, str]]:
    """Every learner with the spaces that it takes: names of both."""
    for algo, entry in LEARNERS.items():
        for name, (task, _, core) in SPACES.items():
            if not entry.acts_in(task.action) or (task.masked and isinstance(task.action, gym.Box)):
                continue
            if core != "none" and "model.core" in entry.needs:
                continue
            yield algo, name


def case_of(algo: str, name: str, options: Mapping[str, Any] | None = None) -> Case:
    task, wanted, core = SPACES[name]
    known = LEARNERS[algo].config.model_fields
    own = {key: value for key, value in wanted.items() if key in known}
    return Case(algo, task, own | dict(options or {}), core)


def learner_on(
    case: Case, device: torch.device, ranks: Ranks = ALONE, compute: Compute = PLAIN
) -> Any:
    setup = Setup(STREAMS, TOTAL, (1, 2), device, compute, ranks)
    return case.algorithm.make_learner(case.config, case.model, case.spaces, setup)


@dataclass
class Learned:
    """A learner after some updates, its metrics, and what its device was asked for by part."""

    learner: Any
    metrics: list[dict[str, float]]
    parts: dict[str, list[standin_helpers.Counts]] = field(default_factory=dict)

    def count(self, part: str) -> Any:
        counts = standin_helpers.counting()
        found = self.parts.setdefault(part, [])
        return _appending(counts, found)

    @property
    def state(self) -> dict[str, Tensor]:
        """All that a checkpoint would hold, on the CPU."""
        saved = self.learner.save()
        return {name: x.detach().cpu().clone() for name, x in saved.tensors.items()}


class _appending:
    def __init__(self, counting: Any, found: list[standin_helpers.Counts]) -> None:
        self._counting, self._found = counting, found

    def __enter__(self) -> None:
        self._found.append(self._counting.__enter__())

    def __exit__(self, *error: Any) -> None:
        self._counting.__exit__(*error)


def learned(
    case: Case, device: torch.device, iterations: int = 3, compute: Compute = PLAIN
) -> Learned:
    """A learner that has had as many fresh batches and what is drawn from replay after each, and
    has published after each.
    """
    found = Learned(learner_on(case, device, compute=compute), [])
    actor = case.actor()
    for number, batches in enumerate(case.batches(iterations)):
        for batch in batches:
            with found.count("batch"):
                moved = rollout_to_device(batch, device)
            with found.count("update (replayed)" if batch.replayed else "update"):
                found.learner.update(moved, 500 * number)
        with found.count("publication"):
            publication = found.learner.publication()
        with found.count("load"):  # as `SerialSampling.publish` does
            actor.load(replace(publication, tensors=to_host(publication.tensors)))
        with found.count("metrics"):
            found.metrics.append(dict(found.learner.metrics()))
    return found


def worst(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest difference between two tensors of the same name, relative to the larger of 1 and
    its values, and the name; (0, "") where all bytes are the same.
    """
    assert one.keys() == other.keys()
    found = (0.0, "")
    for name, x in one.items():
        y = other[name]
        if not torch.equal(x, y):
            scale = max(1.0, x.double().abs().max().item())
            found = max(found, ((x.double() - y.double()).abs().max().item() / scale, name))
    return found
