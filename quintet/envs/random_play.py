"""Uniformly random actions, for the score that a trained policy must beat."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any, final

import numpy as np
import torch
from gymnasium import spaces as gym
from numpy.typing import NDArray
from torch import Tensor

from quintet.envs.masks import allows_none, possible
from quintet.envs.vector import StepRow, VectorEnv, allocate_obs, allocate_row
from quintet.spaces import Space, action_leaves, action_spec, mask_sizes
from quintet.types import ACTION_MASK, ActOutput, Obs, State


@final
class UniformActor:
    """Draws actions uniformly among those that an action mask allows.

    Every choice of Discrete, MultiDiscrete and MultiBinary spaces is equally likely; a Box is
    uniform within its bounds, and without bounds as in `gymnasium.spaces.Box.sample`.  All
    randomness is a function of `seed` and the player's number, and is not that of an environment
    with the same seed.
    """

    def __init__(self, space: Space, seed: int, player: int = 0) -> None:
        # Copies, since a space has its own generator, which belongs to the caller.
        self._leaves, self._spec = deepcopy(action_leaves(space)), action_spec(space)
        self._sizes = [mask_sizes(leaf) for leaf in self._leaves]
        self._ends = np.cumsum([size for sizes in self._sizes for size in sizes])
        self._generator = np.random.default_rng([seed, 1 + player])
        for leaf in self._leaves:
            leaf.seed(int(self._generator.integers(2**31)))

    def initial_state(self, num_streams: int) -> State:  # noqa: ARG002
        return {}

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Empty, since `act` draws its own random numbers."""
        return torch.zeros((steps, num_streams, 0))

    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:  # noqa: ARG002
        count = is_first.shape[0]
        masks: Iterator[NDArray[np.bool_]] | None = None
        if ACTION_MASK in obs and len(self._ends):
            masks = iter(np.split(obs[ACTION_MASK].numpy() != 0, self._ends[:-1], -1))
        parts: list[NDArray[Any]] = []
        for leaf, sizes in zip(self._leaves, self._sizes, strict=True):
            if isinstance(leaf, gym.Box):
                drawn = np.stack([leaf.sample() for _ in range(count)])
                parts.append(drawn.reshape(count, -1))
            elif isinstance(leaf, gym.MultiBinary):
                parts.append(self._generator.integers(0, 2, (count, int(np.prod(leaf.shape)))))
            else:
                for size in sizes:
                    draws = self._generator.random((count, size))
                    if masks is not None:
                        draws = np.where(next(masks), draws, -1.0)
                    parts.append(draws.argmax(-1)[:, None])
        packed = torch.from_numpy(np.concatenate(parts, -1)).to(self._spec.dtype)
        action = packed if self._spec.shape else packed[:, 0]
        return ActOutput(action, action, {}, {})


@final
@dataclass(frozen=True)
class Row:
    """A step: its number (0: the reset), its results, and its duration in seconds."""

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


Chooser = Callable[[Obs], NDArray[Any]]
"""Returns the packed actions ``[B, ...]`` of a step from the observations before it."""


def random_rows(env: VectorEnv, steps: int, seed: int) -> Iterator[Row]:
    """The rows of a restart and `steps` random steps; each is overwritten by the next."""
    return chosen_rows(
        env, steps, [seed + i for i in range(env.num_streams)], uniform_chooser(env, seed)
    )


_MOST_CPU_S, _MOST_S = 0.5, 2.0
"""Limits of a short play of at least one step: CPU seconds of this thread, which don't depend on
other processes, and wall-clock seconds, for environments that wait."""


def short_rows(env: VectorEnv, steps: int, seed: int) -> Iterator[Row]:
    """`random_rows` within the limits of time."""
    cpu, begin = thread_time(), perf_counter()
    for each in random_rows(env, steps, seed):
        yield each
        late = thread_time() - cpu > _MOST_CPU_S or perf_counter() - begin > _MOST_S
        if each.number and late:
            return


def uniform_chooser(env: VectorEnv, seed: int) -> Chooser:
    """Chooses uniformly random actions."""
    actor = UniformActor(env.spaces.action, seed)
    anew = torch.zeros(env.num_streams, dtype=torch.bool)
    return lambda leaves: actor.act(leaves, {}, anew, None).env_action.numpy()


def chosen_rows(env: VectorEnv, steps: int, seeds: Sequence[int], choose: Chooser) -> Iterator[Row]:
    """The rows of a restart with these seeds and of `steps` chosen steps; each is overwritten by
    the next.

    Raises EnvironmentFault where an action mask allows no action.
    """
    count = env.num_streams
    obs = allocate_obs(env.spaces.observation, (count,))
    row = allocate_row(env.spaces.observation, count)
    begin = perf_counter()
    env.restart(seeds, obs)
    seconds = perf_counter() - begin
    for name, x in obs.items():
        row.obs[name][...] = x
    leaves = {name: torch.from_numpy(x) for name, x in row.obs.items()}
    yield Row(0, row, seconds)
    for number in range(1, steps + 1):
        _require_allowed(env, row, number - 1)
        action = choose(leaves)
        begin = perf_counter()
        env.send(action)
        env.recv(row)
        yield Row(number, row, perf_counter() - begin)


def _require_allowed(env: VectorEnv, row: StepRow, step: int) -> None:
    """Requires that masks allow an action in streams whose episode goes on.  In games an agent
    that is absent has none.
    """
    if ACTION_MASK not in row.obs or env.description.agents:
        return
    going_on = ~(row.terminated | row.truncated) if step else np.ones(env.num_streams, np.bool_)
    wrong = going_on & ~possible(row.obs[ACTION_MASK], env.spaces.action)
    if wrong.any():
        raise allows_none(env.description.id, int(wrong.argmax()), step)
