"""A game whose agents come and go."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from quintet.types import ActOutput, Publication, TensorSpec

STAYS = {"ann": (0, 9), "bob": (0, 9), "eve": (0, 9)}


class Game:
    """Agents that are there from one step to another; an observation is (agent, step, seed)."""

    metadata = {"render_fps": 5}
    possible_agents = ("ann", "bob", "eve")

    def __init__(self, stays: dict[str, tuple[int, int]] = STAYS, wrong: str = "") -> None:
        self.stays, self.wrong, self.agents = stays, wrong, []
        self.last = max(end for _, end in stays.values())

    def observation_space(self, agent: str) -> spaces.Space:
        size = 4 if self.wrong == "spaces" and agent == "eve" else 3
        return spaces.Box(-10, 2e9, (size,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3, start=5)

    def here(self) -> list[str]:
        return [a for a, (begin, end) in self.stays.items() if begin <= self.t < end]

    def show(self, agents: Any) -> dict[str, Any]:
        names = list(self.possible_agents)
        return {a: np.array([names.index(a), self.t, self.seed], np.float32) for a in agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.seed = 0, -1 if seed is None else seed
        self.agents = [] if self.wrong == "nobody" else self.here()
        if self.wrong == "unlisted":
            del self.agents
            return {}, {}
        if self.wrong == "reset":
            return self.show(self.agents)
        return self.show(self.agents), {}

    def step(self, actions: dict[str, int]) -> Any:
        if self.wrong == "raises":
            raise ValueError("a rule is broken")
        acted = list(actions)
        assert self.wrong == "stays" or set(acted) == set(self.agents)
        self.t += 1
        self.agents = self.here()
        ended = {a: self.t == self.stays[a][1] for a in acted}
        # Whoever is there at the end of the game is cut off by the clock.
        cut = {a: ended[a] and self.t == self.last for a in acted}
        shown = self.show({*acted, *self.agents})
        infos = {a: {"won": a == "bob"} for a in acted}
        if self.wrong == "leaves":
            self.agents = self.agents[1:]
        if self.wrong == "stays":
            self.agents = list(self.possible_agents)
        if self.wrong == "stranger":
            self.agents = ["zoe"]
        if self.wrong == "unseen":
            shown.pop(acted[0])
        if self.wrong == "blind":
            shown = self.show(acted)
        if self.wrong == "reward":
            return shown, {}, ended, cut, infos
        over = {a: ended[a] and not cut[a] for a in acted}
        return shown, {a: float(actions[a]) for a in acted}, over, cut, infos

    def render(self) -> Any:
        return np.full((8, 8, 3), self.t, np.uint8)

    def close(self) -> None:
        self.agents = []


def parallel_env(**kwargs: Any) -> Game:
    return Game(**kwargs)


class Numbered(Game):
    """Games of two steps whose reward is their number; eve comes to every second one, bob never."""

    number = 0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.number += 1
        eve = (0, 2) if self.number % 2 else (9, 9)
        self.stays, self.last = {"ann": (0, 2), "bob": (9, 9), "eve": eve}, 2
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        shown, rewards, *rest = super().step(actions)
        return shown, {agent: float(self.number) for agent in rewards}, *rest


class Still:
    """Takes action 0."""

    record_specs: dict[str, TensorSpec] = {}
    action_spec = TensorSpec((), torch.int64)
    state_specs: dict[str, TensorSpec] = {}

    def load(self, publication: Publication) -> None:
        pass

    def initial_state(self, num_streams: int) -> dict[str, torch.Tensor]:
        return {}

    def draw_noise(self, steps: int, num_streams: int, generator: Any) -> torch.Tensor:
        return torch.zeros(steps, num_streams, 0)

    def act(self, obs: Any, state: Any, is_first: torch.Tensor, noise: Any) -> ActOutput:
        action = torch.zeros(is_first.shape, dtype=torch.int64)
        return ActOutput(action, action, {}, {})
