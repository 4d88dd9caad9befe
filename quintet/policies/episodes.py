"""Plays whole episodes, or games of several agents, with the actor that is evaluated."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from quintet.envs.random_play import UniformActor
from quintet.envs.vector import (
    ObsArrays,
    StepRow,
    VectorEnv,
    allocate_obs,
    allocate_row,
    check_finite,
)
from quintet.protocols import Actor
from quintet.runtime.policies import JointActor
from quintet.runtime.torch_settings import OwnTorch
from quintet.runtime.turns import Begun, where_acted
from quintet.system.printing import note

Player = Actor | UniformActor
"""The actor of an evaluation."""


@final
@dataclass(frozen=True)
class How:
    """Options of an evaluation; see `evaluate`.

    timeout_s: longest time of a step in another process.
    say, notice: see `SpreadEnv.tell`.
    others: players other than `actor` in a game of several agents; None: `actor` acts for all
        agents.
    agent: with `others`, the actor plays the agents with this index modulo the number of players;
        the others follow in order.  None: every second agent, and in every second game the other
        half.
    threads: threads of PyTorch's CPU kernels while they act; None: the process's setting.
    max_steps: steps after which an episode is cut and counts with its return so far; None: no
        limit.
    """

    actor: Player
    episodes: int
    seed: int
    deterministic: bool
    stop: Callable[[], bool] | None
    timeout_s: float = 600.0
    say: Callable[[str], None] = note
    notice: Callable[[str], None] = note
    others: tuple[Player, ...] = ()
    agent: int | None = None
    threads: int | None = None
    max_steps: int | None = None


Watch = Callable[[ObsArrays, float, int, bool], None]
"""Called at the start and after every step, with all observations, and with stream 0's return and
steps so far and whether its episode is over.
"""


@final
@dataclass(frozen=True)
class Games:
    """Games of a policy against others: the mean returns of both in each game, ``[games]``."""

    own: NDArray[np.float64]
    theirs: NDArray[np.float64]

    @property
    def won(self) -> int:
        return int((self.own > self.theirs).sum())

    @property
    def drawn(self) -> int:
        return int((self.own == self.theirs).sum())

    @property
    def lost(self) -> int:
        return int((self.own < self.theirs).sum())


class Played(NamedTuple):
    """One episode; `success` is defined only if the environment's description has a rule.

    entropy: entropy of the policy's distribution, summed over the steps; None without a
        distribution.
    cut: whether it was cut at the step limit.
    metrics: the environment's own numbers; of an episode that was cut they are not known.
    """

    return_: float
    length: int
    success: bool
    entropy: float | None
    cut: bool
    metrics: tuple[float, ...] = ()


class Found(NamedTuple):
    """The counted episodes by (stream, time), their games, and whether all were played."""

    played: list[Played]
    games: Games | None
    complete: bool


def play(vector: VectorEnv, how: How, num_agents: int = 1, watch: Watch | None = None) -> Found:
    """Plays; see `evaluate`."""
    count, num_games = vector.num_streams, vector.num_streams // num_agents
    actor, own = _seated(how, num_games, num_agents)
    episodes = how.episodes
    share = [episodes // num_games + (i < episodes % num_games) for i in range(num_games)]
    games = _Games(np.array(share), num_agents, own)
    obs = allocate_obs(vector.spaces.observation, (count,))
    own_numbers = len(vector.description.metrics)
    row = allocate_row(vector.spaces.observation, count, own_numbers)
    leaves: dict[str, Any] = {name: torch.from_numpy(x) for name, x in row.obs.items()}
    generator = torch.Generator("cpu").manual_seed(how.seed)
    returns, lengths, entropies = np.zeros(count), np.zeros(count, np.int64), np.zeros(count)
    played: list[list[Played]] = [[] for _ in range(count)]
    step = begun = 0
    while games.left:
        if how.stop is not None and how.stop():
            break
        if not begun or games.stuck:
            # Only all of them can begin anew at once; seeds are those that follow.
            seeds = [(how.seed + begun * count + i) % 2**31 for i in range(count)]
            begun += 1
            vector.restart(seeds, obs)
            for name, x in obs.items():
                row.obs[name][...] = x
            with OwnTorch():
                state = actor.initial_state(count)
            is_first = torch.from_numpy(np.ones(count, np.bool_))
            in_turn = Begun(count) if vector.description.turns else None
            returns[:], lengths[:], entropies[:] = 0.0, 0, 0.0
            games.restarted()
            if watch is not None and begun == 1:
                watch(row.obs, 0.0, 0, False)
        with OwnTorch(how.threads):  # the environments' own code may want others
            noise = None if how.deterministic else actor.draw_noise(1, count, generator)[0]
            out = actor.act(leaves, state, is_first, noise)
        vector.send(out.env_action.numpy())
        vector.recv(row)
        # NaN would go unnoticed otherwise, as it compares false.
        check_finite(
            {name: x[None] for name, x in row.obs.items()},
            row.raw_reward[None], 0, seeds, vector.description, step,
        )  # fmt: skip
        step += 1
        over = row.terminated | row.truncated
        if in_turn is None:
            state, is_first = out.state, torch.from_numpy(~row.valid)
        else:
            hold = actor.where_acted if isinstance(actor, JointActor) else where_acted
            state = hold(state, out.state, row.valid)
            is_first = torch.from_numpy(in_turn.after(row.valid, over))
        returns += row.raw_reward
        lengths += row.valid
        entropy = out.record.get("entropy")
        if entropy is not None:
            entropies += np.where(row.valid, entropy.numpy(), 0.0)
        cut = games.cut(lengths, over, how.max_steps)
        if watch is not None:
            watch(row.obs, float(returns[0]), int(lengths[0]), bool(over[0] or cut[0]))
        for i in np.nonzero(over | cut)[0].tolist():
            if own[i] and lengths[i] and games.counts(i):
                won = bool(row.success[i] and over[i])
                total = None if entropy is None else float(entropies[i])
                metrics = (math.nan,) * own_numbers
                if over[i] and row.metrics is not None:
                    metrics = tuple(row.metrics[i].tolist())
                one = Played(float(returns[i]), int(lengths[i]), won, total, bool(cut[i]), metrics)
                played[i].append(one)
            returns[i], lengths[i], entropies[i] = 0.0, 0, 0.0
        games.add(row, over, cut)
    kept = [episode for mine in played for episode in mine]
    return Found(kept, games.results() if how.others else None, not games.left)


def _seated(how: How, num_games: int, num_agents: int) -> tuple[Any, NDArray[np.bool_]]:
    """Actors of all streams, and the streams of the evaluated actor."""
    game, agent = np.divmod(np.arange(num_games * num_agents), num_agents)
    if not how.others:
        return how.actor, np.ones(len(game), np.bool_)
    players = 1 + len(how.others)
    seat = (game + agent) % 2 if how.agent is None else (agent - how.agent) % players
    return JointActor([how.actor, *how.others], torch.from_numpy(seat)), seat == 0


@final
class _Games:
    """The games that are played side by side, each with a share of those to play.

    An environment of one agent is a game that ends with its episode.  A game of several agents has
    ended when it is reset; then no agent has a valid row.
    """

    def __init__(self, share: NDArray[np.int64], num_agents: int, own: NDArray[np.bool_]):
        self.share, self.num_agents = share, num_agents
        self.own = own.reshape(-1, num_agents)
        self.ended = np.zeros_like(share)
        self.out = np.zeros(len(share), np.bool_)  # cut, and not begun anew yet
        self.returns = np.zeros(self.own.shape)
        self.pairs: list[tuple[float, float]] = []

    @property
    def left(self) -> int:
        return int(np.maximum(self.share - self.ended, 0).sum())

    @property
    def _played(self) -> NDArray[np.bool_]:
        """The games that are being played and count."""
        return (self.ended < self.share) & ~self.out

    @property
    def stuck(self) -> bool:
        """Whether no game is being played although some are left."""
        return bool(self.left) and not self._played.any()

    def restarted(self) -> None:
        """Notes that all games have restarted."""
        self.out[:], self.returns[:] = False, 0.0

    def counts(self, stream: int) -> bool:
        """Whether this stream's game counts as one of its share."""
        return bool(self._played[stream // self.num_agents])

    def cut(
        self, lengths: NDArray[np.int64], over: NDArray[np.bool_], max_steps: int | None
    ) -> NDArray[np.bool_]:
        """The streams ``[B]`` whose games have just reached `max_steps`."""
        if max_steps is None:
            return np.zeros(len(lengths), np.bool_)
        late = ((lengths >= max_steps) & ~over).reshape(self.own.shape).any(1) & self._played
        return np.repeat(late, self.num_agents) & ~over

    def add(self, row: StepRow, over: NDArray[np.bool_], cut: NDArray[np.bool_]) -> None:
        """Takes a row, and the streams ``[B]`` whose episodes ended or are cut."""
        self.returns += row.raw_reward.reshape(self.own.shape)
        seen = row.valid.reshape(self.own.shape).any(1)
        ended = over if self.num_agents == 1 else np.logical_not(seen)
        late = np.asarray(cut.reshape(self.own.shape).any(1))
        for game in np.nonzero(ended | late)[0].tolist():
            if not self.out[game]:
                if self.ended[game] < self.share[game] and not self.own[game].all():
                    mine, both = self.own[game], self.returns[game]
                    self.pairs.append((float(both[mine].mean()), float(both[~mine].mean())))
                self.ended[game] += 1
            self.out[game] = late[game] and not ended[game]
            self.returns[game] = 0.0

    def results(self) -> Games:
        pairs = np.array(self.pairs, np.float64).reshape(-1, 2)
        return Games(pairs[:, 0], pairs[:, 1])
