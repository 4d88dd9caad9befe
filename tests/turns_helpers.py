"""Games in PettingZoo's AEC API, and what a plain loop over them sees of each agent."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from quintet.envs.backends import Group
from quintet.envs.config import EnvConfig
from quintet.envs.pettingzoo import ParallelVectorEnv
from quintet.envs.resolved import ResolvedEnv


def game_env(
    make: Callable[[], Any], num_streams: int, *, env_id: str = "game", success: str | None = None
) -> ParallelVectorEnv:
    """Games that `make` makes, with one stream per agent."""
    config = EnvConfig(id=env_id, backend="pettingzoo", success=success)
    return ParallelVectorEnv(ResolvedEnv(config, make), Group(num_streams))


AGENTS = ("ann", "bob", "eve")
ACTIONS = 4


class Scripted:
    """Random turns: the same agent may act twice, agents end while others go on, are told so at
    once or later, and are given rewards at any time.  All of it depends on the actions.
    """

    possible_agents = AGENTS

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(ACTIONS)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(AGENTS)
        self.owed = dict.fromkeys(AGENTS, 0.0)
        self.ended: dict[str, tuple[bool, bool]] = {}
        self.total, self.time = int(self.rng.integers(1_000)), 0
        self.select()

    def select(self) -> None:
        going_on = [agent for agent in self.agents if agent not in self.ended]
        dead = [agent for agent in self.agents if agent in self.ended]
        late = bool(going_on) and self.rng.random() < 0.5
        self.agent_selection = str(self.rng.choice(dead if dead and not late else going_on))

    def last(self) -> tuple[Any, ...]:
        agent = self.agent_selection
        seen = np.array([AGENTS.index(agent), self.time, self.total], np.float32)
        terminated, truncated = self.ended.get(agent, (False, False))
        return seen, self.owed[agent], terminated, truncated, {"won": self.total % 2 == 1}

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if agent in self.ended:
            assert action is None
            self.agents.remove(agent)
        else:
            assert action is not None
            self.owed[agent] = 0.0
            self.total, self.time = (self.total * 3 + int(action) + 1) % 997, self.time + 1
            for each in (agent for agent in AGENTS if agent not in self.ended):
                self.owed[each] += float(self.rng.integers(-2, 3)) * (self.total % 2)
                if self.rng.random() < 0.15 or self.time >= 14:
                    self.ended[each] = (self.time % 2 == 0, self.time % 2 == 1)
        if self.agents:
            self.select()

    def close(self) -> None: ...


class Alone(Scripted):
    """One agent acts in every row, as in other environments; its last row ends the game."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.agents = ["bob"]
        self.select()

    def select(self) -> None:
        self.agent_selection = "bob"


@dataclass
class Decision:
    """What a plain loop sees of a decision."""

    obs: NDArray[np.float32]
    action: int
    count: int  # in its episode, from 1
    episode: int
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    won: bool = False
    next_obs: NDArray[np.float32] = field(default_factory=lambda: np.zeros(3, np.float32))


def action_of(obs: Any, count: Any) -> Any:
    """What the agents of tests do: it depends on the observation and on their memory."""
    return (obs[..., 2] * 5 + obs[..., 1] + count) % ACTIONS


def decisions(game: Any, seed: int, steps: int) -> dict[str, list[Decision]]:
    """The decisions of each agent in games of at least so many steps, as `last` tells of them."""
    found: dict[str, list[Decision]] = {agent: [] for agent in AGENTS}
    episodes = dict.fromkeys(AGENTS, 0)
    done, first = 0, seed
    while done < steps:
        game.reset(seed=first)
        first = None
        newest: dict[str, Decision] = {}
        before = dict.fromkeys(AGENTS, 0.0)  # what comes to an agent before its first decision
        while game.agents:
            agent = game.agent_selection
            obs, reward, terminated, truncated, info = game.last()
            if agent in newest:
                made = newest[agent]
                made.reward = reward + (before[agent] if made.count == 1 else 0.0)
                made.terminated, made.truncated, made.next_obs = terminated, truncated, obs
                made.won = info["won"]
            else:
                before[agent] += reward
            if terminated or truncated:
                game.step(None)
                episodes[agent] += agent in newest
                continue
            count = newest[agent].count + 1 if agent in newest else 1
            action = int(action_of(obs, count))
            newest[agent] = Decision(obs, action, count, episodes[agent])
            found[agent].append(newest[agent])
            game.step(action)
            done += 1
    return found


def scripted() -> Scripted:
    return Scripted()
