"""How much a BabyAI policy heeds its mission: success as it is, with missions shuffled, by chance.

    python benchmarks/shuffled_missions.py RUN [--episodes 100] [--seed 10000] [--streams 25]

RUN is what `quintet.load` takes: a run that was trained on one of EnvPool's BabyAI tasks.  Three
times the same seeds are played: greedily; greedily, where every episode shows the mission that
another stream has at its start; and with uniformly random actions.  A policy that ignores its
mission scores alike in the first two.

Prints one JSON line: of each its success rate with Wilson's 95% interval, and of the shuffled
episodes the share whose mission really was another one.
"""

import argparse
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import quintet
from quintet.envs.make import make_group_env
from quintet.envs.resolved import resolve_env
from quintet.envs.vector import ObsArrays, VectorEnv, allocate_row
from quintet.errors import ConfigError
from quintet.spaces import observation_leaves

MISSION = "mission"
RULE = "reward>0"
"""Where the run has none of its own: BabyAI pays only at a success."""

Choose = Callable[[ObsArrays, NDArray[np.bool_]], NDArray[Any]]
"""Actions of all streams from their observations and from where episodes begin."""


def wilson(wins: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95% score interval of a share (Wilson 1927): sound at 0 and 1 and for few episodes."""
    share, scale = wins / count, 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


class Shuffled:
    """Gives every stream another one's mission, and the same one for a whole episode."""

    def __init__(self) -> None:
        self.shown: NDArray[Any] | None = None
        self.changed: list[bool] = []

    def __call__(self, obs: ObsArrays, is_first: NDArray[np.bool_]) -> ObsArrays:
        if self.shown is None:
            self.shown = np.empty_like(obs[MISSION])
        rolled = np.roll(obs[MISSION], 1, 0)
        self.shown[is_first] = rolled[is_first]
        differs = (rolled != obs[MISSION]).reshape(len(rolled), -1).any(1)
        self.changed += differs[is_first].tolist()
        return {**obs, MISSION: self.shown}


def greedy(policy: quintet.Policy) -> Choose:
    state = None

    def choose(obs: ObsArrays, is_first: NDArray[np.bool_]) -> NDArray[Any]:
        nonlocal state
        action, state = policy.act(obs, state, is_first=is_first)
        return action

    return choose


def play(env: VectorEnv, choose: Choose, episodes: int, seed: int) -> list[bool]:
    """Whether each episode was won; every stream plays a share that is fixed beforehand."""
    count = env.num_streams
    left = [episodes // count + (i < episodes % count) for i in range(count)]
    row = allocate_row(env.spaces.observation, count)
    env.restart([seed + i for i in range(count)], row.obs)
    is_first = np.ones(count, np.bool_)
    won: list[bool] = []
    while any(left):
        env.send(choose(row.obs, is_first))
        env.recv(row)
        is_first = ~row.valid
        for stream in np.flatnonzero(row.terminated | row.truncated):
            if left[stream]:
                left[stream] -= 1
                won.append(bool(row.success[stream]))
    return won


def measured(policy: quintet.Policy, episodes: int, seed: int, streams: int) -> dict[str, Any]:
    """What is printed.

    Raises:
        ConfigError: the policy sees no mission, or there is nobody to take another one from.
    """
    config = policy.env.model_copy(
        update={"success": policy.env.success or RULE, "reward_clip": "none"}
    )
    streams = min(streams, episodes)
    if streams < 2:
        raise ConfigError("at least two streams and episodes are required, to exchange missions")
    env = make_group_env(resolve_env(config), streams)
    try:
        leaves = observation_leaves(env.spaces.observation)
        if MISSION not in leaves:
            raise ConfigError(f"a leaf {MISSION!r} is required, {config.id} has {sorted(leaves)}")
        shuffled, choose = Shuffled(), greedy(policy)
        env.spaces.action.seed(seed)
        ways: dict[str, Choose] = {
            "as_is": greedy(policy),
            "shuffled": lambda obs, first: choose(shuffled(obs, first), first),
            "random": lambda *_: np.array([env.spaces.action.sample() for _ in range(streams)]),
        }
        record: dict[str, Any] = {"env": config.id, "backend": env.description.backend}
        record |= {"episodes": episodes, "seed": seed, "success": config.success}
        for name, way in ways.items():
            won = play(env, way, episodes, seed)
            low, high = wilson(sum(won), len(won))
            record[name] = {"success_rate": sum(won) / len(won), "low": low, "high": high}
        record["shuffled"]["changed_frac"] = sum(shuffled.changed) / len(shuffled.changed)
        return record
    finally:
        env.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="run folder, checkpoint, or saved policy")
    parser.add_argument("--checkpoint", default="latest", help="best, latest, or one's name")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=10_000, help="first environment seed")
    parser.add_argument("--streams", type=int, default=25, help="environments side by side")
    given = parser.parse_args()
    policy = quintet.load(given.run, given.checkpoint)
    print(json.dumps(measured(policy, given.episodes, given.seed, given.streams)))


if __name__ == "__main__":
    main()
