"""Steps of environments by uniformly random actions, one after another."""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import final

import torch

from quintet.envs.vector import StepRow, VectorEnv, allocate_obs, allocate_row
from quintet.uniform import UniformActor


@final
@dataclass(frozen=True)
class Row:
    """A step: its number (0: the reset), what it gave, and the seconds that it took."""

    number: int
    row: StepRow
    seconds: float

    def hashes(self) -> dict[str, int]:
        """Hashes of the bytes of each part, by a name for messages."""
        row = self.row
        arrays = {f"observation {name!r}": x for name, x in row.obs.items()}
        if self.number:
            arrays |= {"reward": row.raw_reward}
            arrays |= {"terminated": row.terminated, "truncated": row.truncated}
        return {name: hash(x.tobytes()) for name, x in arrays.items()}


def play(env: VectorEnv, steps: int, seed: int) -> Iterator[Row]:
    """The rows of a restart and `steps` random steps; each is overwritten by the next."""
    actor = UniformActor(env.spaces.action, seed)
    count = env.num_streams
    obs = allocate_obs(env.spaces.observation, (count,))
    row = allocate_row(env.spaces.observation, count)
    begin = perf_counter()
    env.restart([seed + i for i in range(count)], obs)
    seconds = perf_counter() - begin
    for name, x in obs.items():
        row.obs[name][...] = x
    leaves = {name: torch.from_numpy(x) for name, x in row.obs.items()}
    yield Row(0, row, seconds)
    anew = torch.zeros(count, dtype=torch.bool)
    for number in range(1, steps + 1):
        action = actor.act(leaves, {}, anew, None).env_action.numpy()
        begin = perf_counter()
        env.send(action)
        env.recv(row)
        yield Row(number, row, perf_counter() - begin)
