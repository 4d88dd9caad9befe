"""Plays whole episodes with a policy and says how they went."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from quintet import spaces
from quintet.envs.given import GivenEnv, settle
from quintet.envs.make import make_group_env
from quintet.envs.vector import EnvDescription, VectorEnv, allocate_obs, allocate_row, check_finite
from quintet.errors import ConfigError
from quintet.policy import Policy

MAX_STREAMS = 25
"""Environments that an evaluation steps side by side, at most."""


@final
@dataclass(frozen=True)
class Scores:
    """Episodes in the order (stream, time): returns in raw reward units, lengths in env_steps.

    env: which environment, of which backend, they were played in.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    env: EnvDescription

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Population standard deviation of the returns."""
        return float(self.returns.std())


def evaluate(
    policy: Policy,
    env: GivenEnv | None = None,
    episodes: int = 100,
    seed: int = 10_000,
    *,
    deterministic: bool = True,
    stop: Callable[[], bool] | None = None,
) -> Scores:
    """Plays `episodes` whole episodes; rewards are raw, neither clipped nor normalised.

    Every stream plays a share of the episodes that is fixed beforehand, so short episodes are not
    counted more often than long ones.  Stream i begins with environment seed ``seed + i``.

    Args:
        env: another environment than the policy was trained on: an id, a callable that makes
            environments, or a vector environment, as for `quintet.make_vector_env`; the last one
            decides how many are stepped side by side.  It gets no ``env.kwargs``, unless it has the
            name of the one that was trained on: give a callable that knows its arguments.
        deterministic: take the mode of the policy; False samples.
        stop: asked at every step; True ends the evaluation with the episodes there are.

    Raises:
        ConfigError: the environment's spaces are not the policy's, or a number is wrong.
    """
    if not isinstance(policy, Policy):
        raise ConfigError(f"a policy is required, got {policy!r}; quintet.load(path) gives one")
    whole = all(isinstance(number, (int, np.integer)) for number in (episodes, seed))
    if not whole or episodes < 1 or not 0 <= seed < 2**31 - MAX_STREAMS:
        raise ConfigError(
            f"episodes >= 1 and a seed in 0 .. {2**31 - MAX_STREAMS - 1} are required, got "
            f"episodes={episodes!r}, seed={seed!r}"
        )
    episodes, seed = int(episodes), int(seed)
    config = policy.env.model_copy(update={"reward_clip": "none"})
    num_streams, source = min(episodes, MAX_STREAMS), None
    if env is not None and env != config.id:
        says, source = settle(env)
        backend = config.backend if source is not None else "auto"
        # Arguments of the environment that trained are none of another's.
        kwargs = config.kwargs if says["id"] == config.id else {}
        config = config.model_copy(update={"backend": backend, "kwargs": kwargs} | says)
        num_streams = says.get("num_streams", num_streams)
    try:
        vector = make_group_env(config, num_streams, source)
    except ConfigError as error:
        if env is None and ":" in config.id:
            raise ConfigError(
                f"{error}; if the policy was trained on a callable, give that as env=, or an "
                "import string of it as --env"
            ) from error
        raise
    try:
        _check_spaces(policy, vector)
        return _play(policy, vector, episodes, seed, deterministic, stop)
    finally:
        vector.close()


def _check_spaces(policy: Policy, vector: VectorEnv) -> None:
    for what, mine, theirs in zip(
        ("observation", "action"), policy.spaces, vector.spaces, strict=True
    ):
        a, b = spaces.to_json(mine), spaces.to_json(theirs)
        if what == "observation":
            a, b = spaces.without_bounds(a), spaces.without_bounds(b)
        if a != b:
            raise ConfigError(
                f"the policy's {what} space {mine} is required, {vector.description.id} has "
                f"{theirs}"
            )


def _play(
    policy: Policy,
    vector: VectorEnv,
    episodes: int,
    seed: int,
    deterministic: bool,
    stop: Callable[[], bool] | None,
) -> Scores:
    count = vector.num_streams
    quota = np.array([episodes // count + (i < episodes % count) for i in range(count)])
    obs = allocate_obs(vector.spaces.observation, (count,))
    row = allocate_row(vector.spaces.observation, count)
    leaves: dict[str, Any] = {name: torch.from_numpy(x) for name, x in row.obs.items()}
    vector.restart([seed + i for i in range(count)], obs)
    for name, x in obs.items():
        row.obs[name][...] = x
    generator = torch.Generator().manual_seed(seed)
    state = policy.actor.initial_state(count)
    is_first = torch.ones(count, dtype=torch.bool)
    returns, lengths = np.zeros(count), np.zeros(count, np.int64)
    played: list[list[tuple[float, int]]] = [[] for _ in range(count)]
    step = 0
    left = episodes
    while left:
        if stop is not None and stop():
            break
        noise = None if deterministic else policy.actor.draw_noise(1, count, generator)[0]
        out = policy.actor.act(leaves, state, is_first, noise)
        state = out.state
        vector.send(out.env_action.numpy())
        vector.recv(row)
        # NaN would compare false and go unseen for ever.
        check_finite(
            {name: x[None] for name, x in row.obs.items()},
            row.raw_reward[None], 0, vector.description, step,
        )  # fmt: skip
        step += 1
        is_first = torch.from_numpy(~row.valid)
        returns += row.raw_reward
        lengths += row.valid
        for i in np.nonzero(row.terminated | row.truncated)[0].tolist():
            if len(played[i]) < quota[i]:
                played[i].append((float(returns[i]), int(lengths[i])))
                left -= 1
            returns[i], lengths[i] = 0.0, 0
    flat = [episode for mine in played for episode in mine]
    return Scores(
        np.array([r for r, _ in flat]), np.array([n for _, n in flat], np.int64), vector.description
    )
