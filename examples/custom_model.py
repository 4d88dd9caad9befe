"""Trains with an encoder of one's own: any torch.nn.Module class that keeps a small contract.

    python examples/custom_model.py

The same from the command line, in the folder of this file:

    quintet train ppo --env quintet.envs.toy:MaskedDoors --model.encoder custom_model:DoorEncoder

A policy stores the encoder's name and its weights, not its code: whoever loads it must be able to
import the module.  Trained by running this file, the name is ``__main__:DoorEncoder``, which this
file alone can load; import the class from a module, as the command line does, and anyone can.
"""

import torch
from gymnasium import spaces
from torch import Tensor, nn

import quintet


class DoorEncoder(nn.Module):
    """Looks a door's number up in a table, and reads the other leaves by a linear layer.

    `leaves` are the parts of the observation by name, without ``action_mask``, which goes to the
    policy's head.  `width` comes from the option ``model.encoder_kwargs``.
    """

    def __init__(self, leaves: dict[str, spaces.Space], width: int = 32):
        super().__init__()
        numbers = leaves["x"].shape[0] + leaves["side"].shape[0]
        self.table = nn.Embedding(int(leaves["door"].n), width)
        self.numbers = nn.Linear(numbers, width)
        self.hidden = nn.Linear(2 * width, width)
        self.feature_size = width  # how many numbers `forward` gives per observation

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Features ``[N, width]`` from leaves ``[N, ...]``."""
        numbers = self.numbers(torch.cat((obs["x"], obs["side"].float()), -1))
        both = torch.cat((self.table(obs["door"]), numbers), -1)
        return self.hidden(both.tanh()).tanh()


if __name__ == "__main__":
    result = quintet.train(
        "ppo",
        "quintet.envs.toy:MaskedDoors",
        total_steps=20_000,
        seed=1,
        config={"unroll_steps": 64, "model.encoder_kwargs": {"width": 32}},
        model=DoorEncoder,
    )
    scores = quintet.evaluate(result.policy, episodes=100)
    print(f"return {scores.mean:.2f} of 10, in {result.run_dir}")
