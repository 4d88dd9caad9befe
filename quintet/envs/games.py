"""A small game of two agents, in PettingZoo's parallel API."""

from typing import Any, ClassVar, final

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

SIZE = 7
"""Cells along a side of the board."""

MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])

Cell = NDArray[np.int64]


@final
class CoinRace:
    """Two agents on a board race for coins, one at a time.

    The agent that steps on the coin gets 1, the other -1.  Moves are simultaneous; nobody leaves
    the board, the two don't swap places, and if both want the same cell, neither moves. The game is
    cut off after 50 steps.  An agent observes the distance to the coin and to the other agent, and
    its own position, in cells divided by the size of the board.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "coin_race", "render_fps": 5}
    possible_agents = ("red", "blue")
    num_steps = 50

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.random = np.random.default_rng()
        self.render_mode = "rgb_array"
        self._spaces = spaces.Box(-1.0, 1.0, (6,), np.float32), spaces.Discrete(len(MOVES))

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:  # noqa: ARG002
        return self._spaces[0]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:  # noqa: ARG002
        return self._spaces[1]

    def reset(
        self,
        seed: int | None = None,
        options: Any = None,  # noqa: ARG002
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, Any]]]:
        if seed is not None:
            self.random = np.random.default_rng(seed)
        self.agents, self.step_number = list(self.possible_agents), 0
        cells = self.random.permutation(SIZE * SIZE)[:3]
        red, blue, self.coin = (np.array(divmod(int(cell), SIZE)) for cell in cells)
        self.at: dict[str, Cell] = {"red": red, "blue": blue}
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        aims = {
            agent: np.clip(self.at[agent] + MOVES[int(actions[agent])], 0, SIZE - 1)
            for agent in self.agents
        }
        red, blue = tuple(aims["red"]), tuple(aims["blue"])
        swap = red == tuple(self.at["blue"]) and blue == tuple(self.at["red"])
        if red != blue and not swap:
            self.at = aims
        rewards = dict.fromkeys(self.agents, 0.0)
        for agent, other in (("red", "blue"), ("blue", "red")):
            if np.array_equal(self.at[agent], self.coin):
                rewards[agent], rewards[other] = 1.0, -1.0
                self._drop_coin()
        self.step_number += 1
        over = self.step_number == self.num_steps
        seen = self._observations()
        no, cut = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, over)
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        if over:
            self.agents = []
        return seen, rewards, no, cut, infos

    def render(self) -> NDArray[np.uint8]:
        """A picture of the board, 16 pixels per cell."""
        board = np.full((SIZE, SIZE, 3), 235, np.uint8)
        board[tuple(self.coin)] = (230, 180, 0)
        board[tuple(self.at["red"])] = (200, 40, 40)
        board[tuple(self.at["blue"])] = (40, 60, 200)
        return board.repeat(16, 0).repeat(16, 1)

    def close(self) -> None:
        pass

    def _drop_coin(self) -> None:
        """Puts the next coin on a free cell."""
        taken = {int(cell[0]) * SIZE + int(cell[1]) for cell in self.at.values()}
        free = [cell for cell in range(SIZE * SIZE) if cell not in taken]
        self.coin = np.array(divmod(int(self.random.choice(free)), SIZE))

    def _observations(self) -> dict[str, NDArray[np.float32]]:
        red, blue = self.at["red"], self.at["blue"]
        return {
            agent: (np.concatenate((self.coin - own, other - own, own)) / SIZE).astype(np.float32)
            for agent, own, other in (("red", red, blue), ("blue", blue, red))
        }


def parallel_env() -> CoinRace:
    """The game, under the name that PettingZoo uses for makers."""
    return CoinRace()
