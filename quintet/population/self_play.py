"""Self-play against past weights: the weights that are kept, and the choice of opponents."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from torch import Tensor

from quintet.population.config import SelfPlayConfig
from quintet.runtime.seed_tree import Role, generator_seed
from quintet.types import Publication


@final
class PastWeights:
    """Publications of one policy, oldest first, beginning with its first weights.

    All choices are functions of the seed and the published versions, so a resumed run makes the
    same choices.
    """

    def __init__(self, config: SelfPlayConfig, seed: int, total_env_steps: int):
        self.config, self.seed = config, seed
        self.interval = config.interval_env_steps or max(1, total_env_steps // 20)
        self.kept: list[Publication] = []
        self.env_steps = 0  # at which the newest was kept

    def consider(self, publication: Publication, env_steps: int) -> None:
        """Keeps the policy's weights if that is due."""
        if self.kept and env_steps // self.interval == self.env_steps // self.interval:
            return
        tensors = {name: x.detach().clone() for name, x in publication.tensors.items()}
        self.kept = [*self.kept, Publication(publication.version, tensors)]
        self.kept = self.kept[-self.config.versions :]
        self.env_steps = env_steps

    def opponent(self, version: int) -> Publication:
        """Past weights as opponents of a version of the policy, drawn uniformly; they are published
        under that version's number, as readers only take newer numbers.
        """
        seed = generator_seed(self.seed, Role.OPPONENT, 0, version)
        index = np.random.default_rng(seed).integers(len(self.kept))
        return Publication(version, self.kept[index].tensors)

    def save(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """The tensors by part and the entry for a checkpoint."""
        tensors = {f"past_{k}": dict(each.tensors) for k, each in enumerate(self.kept)}
        versions = [each.version for each in self.kept]
        return tensors, {"versions": versions, "env_steps": self.env_steps}

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]], entry: Mapping[str, Any]) -> None:
        """Restores the result of `save`."""
        self.kept = [
            Publication(int(version), dict(tensors[f"past_{k}"]))
            for k, version in enumerate(entry["versions"])
        ]
        self.env_steps = int(entry["env_steps"])
