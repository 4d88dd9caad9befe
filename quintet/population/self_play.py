"""Self-play against past weights: which are kept, and which play next."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from torch import Tensor

from quintet.population.config import SelfPlayConfig
from quintet.runtime.seeds import Role, generator_seed
from quintet.types import Publication


@final
class PastWeights:
    """Publications of one policy, oldest first; it begins with the policy's first weights.

    All choices are functions of the seed and of the versions that were published, so a resumed run
    makes the same ones.
    """

    def __init__(self, config: SelfPlayConfig, seed: int, total_env_steps: int):
        self.config, self.seed = config, seed
        self.interval = config.interval_env_steps or max(1, total_env_steps // 20)
        self.kept: list[Publication] = []
        self.env_steps = 0  # at which the newest was kept

    def consider(self, publication: Publication, env_steps: int) -> None:
        """Keeps the policy's weights if it is time to."""
        if self.kept and env_steps // self.interval == self.env_steps // self.interval:
            return
        tensors = {name: x.detach().clone() for name, x in publication.tensors.items()}
        self.kept = [*self.kept, Publication(publication.version, tensors)]
        self.kept = self.kept[-self.config.versions :]
        self.env_steps = env_steps

    def opponent(self, version: int) -> Publication:
        """Past weights that play with a version of the policy, drawn uniformly; they go by its
        number, as readers take newer numbers only.
        """
        seed = generator_seed(self.seed, Role.OPPONENT, 0, version)
        index = np.random.default_rng(seed).integers(len(self.kept))
        return Publication(version, self.kept[index].tensors)

    def save(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
        """Tensors by part, and an entry, of a checkpoint."""
        tensors = {f"past_{k}": dict(each.tensors) for k, each in enumerate(self.kept)}
        versions = [each.version for each in self.kept]
        return tensors, {"versions": versions, "env_steps": self.env_steps}

    def load(self, tensors: Mapping[str, Mapping[str, Tensor]], entry: Mapping[str, Any]) -> None:
        """Goes on from what `save` gave."""
        self.kept = [
            Publication(int(version), dict(tensors[f"past_{k}"]))
            for k, version in enumerate(entry["versions"])
        ]
        self.env_steps = int(entry["env_steps"])
