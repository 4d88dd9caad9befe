"""Trains on an environment whose observation holds a text, with an encoder that reads it.

    python examples/text_encoder.py

The same from the command line, in the folder of this file:

    quintet train ppo --env text_encoder:NamedDoor --model.encoder text_encoder:Reader \\
        --total-env-steps 15000 --learning-rate 0.001
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

import quintet
from quintet.models.text import TextEncoder

COLOURS = ("red", "green", "blue", "grey")
PHRASES = ("open the {} door", "take {}, please", "not that one: the {} one")


class NamedDoor(gymnasium.Env):
    """Three doors of different colours and a sentence that names one of them, which pays 1."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            doors=spaces.MultiDiscrete([len(COLOURS)] * 3),
            sentence=spaces.Text(40, charset="abcdefghijklmnopqrstuvwxyz ,:"),
        )
        self.action_space = spaces.Discrete(3)

    def _observe(self) -> dict[str, Any]:
        self.doors = self.np_random.permutation(len(COLOURS))[:3]
        self.right = int(self.np_random.integers(3))
        phrase = PHRASES[self.np_random.integers(len(PHRASES))]
        return {"doors": self.doors, "sentence": phrase.format(COLOURS[self.doors[self.right]])}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: np.int64) -> Any:
        reward = float(action == self.right)
        return self._observe(), reward, True, False, {}


class Reader(nn.Module):
    """Reads the sentence by a GRU over its words, and the doors from a table of colours."""

    def __init__(self, leaves: dict[str, spaces.Space], width: int = 64):
        super().__init__()
        self.text = TextEncoder(leaves["sentence"].shape[0], hidden_size=width)
        self.colours = nn.Embedding(int(leaves["doors"].nvec.max()), width)
        self.hidden = nn.Linear(4 * width, width)
        self.feature_size = width

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features ``[N, width]`` from leaves ``[N, ...]``."""
        doors = self.colours(obs["doors"].int()).flatten(1)
        both = torch.cat((doors, self.text(obs["sentence"])), -1)
        return self.hidden(both).relu()


if __name__ == "__main__":
    result = quintet.train(
        "ppo",
        NamedDoor,
        total_steps=15_000,
        seed=1,
        config={"learning_rate": 1e-3},
        model=Reader,
    )
    scores = quintet.evaluate(result.policy, episodes=300)
    print(f"{scores.mean:.0%} of the doors right, by chance 33%")
