"""Games of several agents in runs and evaluations: who learns, plays, and is counted."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from agents_helpers import STAYS, Game, Numbered, Still
from gymnasium import spaces
from safetensors.numpy import load_file
from turns_helpers import game_env

import quintet
from quintet.envs.config import EnvConfig
from quintet.envs.games import SIZE, CoinRace
from quintet.envs.make import make_group_env
from quintet.envs.random_play import UniformActor
from quintet.envs.resolved import resolve_env
from quintet.errors import ConfigError, QuintetError
from quintet.observe.timing import PhaseTimer
from quintet.options.layers import Layer
from quintet.options.resolve import compose
from quintet.policies.episodes import How
from quintet.policies.episodes import play as play_games
from quintet.protocols import DataPlan
from quintet.runtime.policies import Assignment, PolicyMix
from quintet.runtime.sampler import SerialOptions, SerialSampling
from quintet.types import ActOutput, Publication, TensorSpec


class Matching:
    """Two agents who are each shown a number; who names it gets 1.  Bob leaves after two steps."""

    possible_agents = ("ann", "bob")

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def show(self) -> dict[str, int]:
        self.shown = {a: int(self.rng.integers(3)) for a in self.possible_agents}
        return self.shown

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.t = list(self.possible_agents), 0
        return self.show(), {}

    def step(self, actions: dict[str, int]) -> Any:
        rewards = {a: float(actions[a] == self.shown[a]) for a in actions}
        self.t += 1
        ended = {a: self.t == (2 if a == "bob" else 6) for a in actions}
        self.agents = [a for a in actions if not ended[a]]
        return self.show(), rewards, ended, dict.fromkeys(actions, False), {}

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "algo",
    [
        "ppo",
        pytest.param("acer", marks=pytest.mark.slow),
        pytest.param("impala", marks=pytest.mark.slow),
        pytest.param("appo", marks=pytest.mark.slow),
    ],
)
def test_one_policy_learns_for_all_agents(algo: str, tmp_path: Path):
    result = quintet.train(
        algo,
        Matching,
        6_000,
        seed=1,
        run_dir=tmp_path / "run",
        config={
            "env.backend": "pettingzoo",
            "eval.episodes": 10,
            "runtime.kind": "serial",
            "learning_rate": 3e-3,
        },
    )
    assert result.metrics["env_steps"] == 6_000
    scores = quintet.evaluate(result.policy, Matching, episodes=16)
    assert sorted({*scores.lengths.tolist()}) == [2, 6]
    assert scores.mean > 3.6  # of 4; without a look at the number 1.3


@pytest.mark.slow
def test_policies_meet_in_games_and_play_against_each_other(tmp_path: Path):
    def train(name: str, steps: int, **config: Any) -> quintet.Policy:
        return quintet.train(
            "ppo",
            Matching,
            steps,
            seed=1,
            run_dir=tmp_path / name,
            config={
                "env.backend": "pettingzoo",
                "eval.episodes": 0,
                "learning_rate": 3e-3,
                "num_epochs": 4,
                "report.progress": False,
                **config,
            },
        ).policy

    able = train("able", 6_000, **{"population.size": 2, "population.pbt": False})
    both = [quintet.load(tmp_path / "able" / f"policy_{k}" / "policy") for k in (0, 1)]
    fresh = train("fresh", 256, unroll_steps=32)
    for policy in (able, *both):
        for other in ("random", fresh):
            scores = quintet.evaluate(policy, Matching, episodes=30, against=other)
            games = scores.games
            assert games is not None
            assert len(games.own) == games.won + games.drawn + games.lost == 30
            assert len(scores.returns) == 30
            assert games.own.mean() > 3.5
    # Bob stays for two steps only, so who plays bob has at most 2, and the seats alternate.
    assert sorted({*scores.lengths.tolist()}) == [2, 6]
    other_space = quintet.train(
        "ppo", "quintet.envs.games:parallel_env", 256, run_dir=tmp_path / "coins",
        config={"eval.episodes": 0, "env.num_streams": 2, "unroll_steps": 32},
    ).policy  # fmt: skip
    with pytest.raises(ConfigError, match=r"the opponent's observation space is Box"):
        quintet.evaluate(able, Matching, episodes=2, against=other_space)
    two = quintet.evaluate(able, Matching, episodes=2, against="random")
    assert sorted(two.lengths.tolist()) == [2, 6]
    with pytest.raises(ConfigError, match="against must have an environment of several agents"):
        quintet.evaluate(able, Alone, episodes=2, against="random")


class Alone(gymnasium.Env):
    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(3)


def test_the_coin_race_keeps_to_the_api():
    parallel_api_test = pytest.importorskip("pettingzoo.test").parallel_api_test
    base = pytest.importorskip("pettingzoo").ParallelEnv
    parallel_api_test(type("Race", (CoinRace, base), {})(), num_cycles=200)


def test_the_coin_race_by_its_rules():
    game = CoinRace()
    assert set(game.reset(seed=3)[0]) == {"red", "blue"}
    game.at = {"red": np.array([2, 2]), "blue": np.array([2, 4])}
    game.coin = np.array([2, 3])
    down, right, left, stay = 1, 3, 4, 0
    _, rewards, *_ = game.step({"red": right, "blue": left})  # both want the coin's cell
    assert (rewards, game.at["red"].tolist()) == ({"red": 0.0, "blue": 0.0}, [2, 2])
    seen, rewards, *_ = game.step({"red": stay, "blue": left})
    assert rewards == {"red": -1.0, "blue": 1.0}
    assert game.at["blue"].tolist() == [2, 3]
    assert game.coin.tolist() not in ([2, 2], [2, 3])
    assert (seen["red"][2:4] * SIZE).tolist() == [0, 1]
    game.step({"red": right, "blue": left})  # they don't change places
    assert game.at["red"].tolist() == [2, 2]
    for _ in range(47):
        *_, cut, _ = game.step({"red": down, "blue": stay})
    assert game.at["red"].tolist() == [SIZE - 1, 2]
    assert cut == {"red": True, "blue": True}
    assert game.agents == []


def test_rows_without_an_agent_are_neither_first_nor_counted():
    stays = {"ann": (0, 2), "bob": (0, 7), "eve": (4, 7)}
    env = game_env(lambda: Game(stays), 3)
    sampling = SerialSampling([env], Still, DataPlan(5, 3), 1, PhaseTimer())
    sampling.publish(Publication(0, {}))
    sampling.restart(0)
    first, valid, ended, counted = [], [], [], 0
    for _ in range(4):
        batch = sampling.collect(10**9)
        first.append(batch.rollout.is_first[:-1].clone())
        valid.append(batch.rollout.valid.clone())
        ended += [(e.column, e.length) for e in batch.episodes]
        counted += batch.env_steps
        sampling.publish(Publication(0, {}))
    is_first, is_valid = torch.cat(first), torch.cat(valid)
    # A game has seven steps and a reset row; eve comes in at its fifth step.
    begins = {0: [0, 8, 16], 1: [0, 8, 16], 2: [4, 12]}
    for stream, rows in begins.items():
        assert is_first[:, stream].nonzero().squeeze(1).tolist() == rows
    assert not (is_first & ~is_valid).any()
    assert sorted(ended) == [(0, 2)] * 3 + [(1, 7)] * 2 + [(2, 3)] * 2
    assert counted == int(is_valid.sum()) == 6 + 18 + 6


@pytest.mark.slow
def test_worker_processes_step_whole_games_and_give_the_bytes_of_serial(tmp_path: Path):
    def weights(kind: str) -> dict[str, Any]:
        folder = tmp_path / kind
        quintet.train(
            "ppo",
            "quintet.envs.games:parallel_env",
            2_000,
            seed=4,
            run_dir=folder,
            config={
                "env.num_streams": 8,
                "env.streams_per_group": 4,
                "unroll_steps": 32,
                "runtime.kind": kind,
                **({} if kind == "serial" else {"runtime.lag": 0, "runtime.num_workers": 2}),
                "eval.episodes": 0,
            },
        )
        return load_file(folder / "policy" / "policy.safetensors")

    serial, lockstep = weights("serial"), weights("lockstep")
    assert serial.keys() == lockstep.keys()
    assert all(np.array_equal(x, lockstep[name]) for name, x in serial.items())


def test_groups_of_half_a_game_are_refused_and_numbers_of_streams_suit_the_game(tmp_path: Path):
    workers = {"runtime.kind": "lockstep", "runtime.num_workers": 2}
    for config, says in (
        ({"env.num_streams": 8, "env.streams_per_group": 1}, "env.streams_per_group must.*got 1"),
        ({"env.num_streams": 9, **workers}, "env.num_streams must be a multiple of 2, .*: use 10"),
        ({"env.num_streams": 1, "unroll_steps": 2_048}, "env.num_streams must.*got 1: use 2"),
    ):
        with pytest.raises(ConfigError, match=says):
            quintet.train(
                "ppo",
                "quintet.envs.games:parallel_env",
                9_216,
                run_dir=tmp_path / "run",
                config={"minibatch_steps": None, **config},
            )
    with pytest.raises(ConfigError, match=r"the arguments {'x': 1}.*, but it raised TypeError"):
        quintet.train(
            "ppo",
            "quintet.envs.games:parallel_env",
            9_216,
            run_dir=tmp_path / "run",
            config={"env.kwargs": {"x": 1}},
        )
    loaded = compose("ppo", [Layer("given", {"env.id": "agents_helpers:parallel_env"})])
    assert (loaded.config.env.num_streams, loaded.sources["env.num_streams"]) == (
        9,
        "resolved (default)",
    )
    assert loaded.config.env.backend == "auto"
    assert loaded.env.config.backend == "pettingzoo"


def test_evaluations_count_games_whoever_is_there():
    env = resolve_env(EnvConfig(id="given", backend="pettingzoo"), Numbered)
    random = UniformActor(spaces.Discrete(3), 0)
    how = How(random, 4, 0, True, None)
    with closing(make_group_env(env, 3)) as vector:
        found = play_games(vector, how, 3)
    assert [each.return_ for each in found.played] == [2, 4, 6, 8, 2, 6]  # ann's, then eve's
    assert found.complete
    with closing(make_group_env(env, 6)) as vector:
        found = play_games(vector, replace(how, episodes=3), 3)
    # The second game plays one of the three, and goes on while the first one plays its second.
    assert [each.return_ for each in found.played] == [2, 4, 2, 2, 2]
    others = replace(how, others=(random,))
    with closing(make_group_env(env, 6)) as vector:
        games = play_games(vector, others, 3).games
    assert games is not None
    # Two games side by side, of which each plays its first and its second: ann and eve are of one
    # side, so the other one, which is bob alone, has nothing.
    assert sorted(zip(games.own.tolist(), games.theirs.tolist(), strict=True)) == [
        (0.0, 2.0),
        (0.0, 2.0),
        (2.0, 0.0),
        (2.0, 0.0),
    ]


def test_a_policy_whose_agent_never_comes_has_no_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    result = quintet.train(
        "ppo",
        Numbered,
        240,
        run_dir=tmp_path / "run",
        config={
            "env.backend": "pettingzoo",
            "env.num_streams": 3,
            "unroll_steps": 32,
            "eval.episodes": 2,
            "population.size": 2,
            "population.pbt": False,
            "population.assignment": "agent",
        },
    )
    assert result.metrics["policy_0/eval/episodes"] == 3  # ann's two, and one of eve's
    assert "policy_1/eval/episodes" not in result.metrics
    assert "policy 1 has no scores: none of its agents" in capsys.readouterr().out
    stays = {"ann": (9, 9), "bob": (0, 2), "eve": (9, 9)}
    how: Any = {"against": "random", "env_options": {"backend": "pettingzoo"}}
    with pytest.raises(QuintetError, match=r"had none in 1 games; raise episodes"):
        quintet.evaluate(result.policy, lambda: Game(stays), episodes=1, **how)
    film = tmp_path / "film.mp4"
    pytest.importorskip("imageio_ffmpeg")
    with pytest.raises(ConfigError, match=r"an episode of the first agent,.* seed 10000; choose"):
        quintet.evaluate(result.policy, lambda: Game(stays), episodes=2, video=film, **how)
    assert not film.exists()


def test_one_policy_of_a_game_costs_one_forward():
    assert not Assignment.of_groups(1, 4, num_agents=2).mixed
    assert Assignment.of_groups(2, 4, num_agents=2).mixed


class Counting:
    """Counts the steps of an episode by its version plus one; acts by the count."""

    record_specs: dict[str, TensorSpec] = {}
    action_spec = TensorSpec((), torch.int64)
    state_specs = {"count": TensorSpec((), torch.int64)}

    def __init__(self, version: int = 0) -> None:
        self.version = version

    def load(self, publication: Publication) -> None:
        self.version = publication.version

    def initial_state(self, num_streams: int) -> dict[str, torch.Tensor]:
        return {"count": torch.zeros(num_streams, dtype=torch.int64)}

    def draw_noise(self, steps: int, num_streams: int, generator: Any) -> torch.Tensor:
        return torch.zeros(steps, num_streams, 0)

    def act(self, obs: Any, state: Any, is_first: torch.Tensor, noise: Any) -> ActOutput:
        count = state["count"].where(~is_first, 0) + 1 + self.version
        action, record = count % 3, {"entropy": count.float()}
        return ActOutput(action, action, record, {"count": count})


class Kept(Game):
    """Keeps every agent's actions, from 0, by game."""

    def __init__(self, stays: dict[str, tuple[int, int]] | None = None) -> None:
        super().__init__(stays or dict.fromkeys(STAYS, (0, 7)))
        self.played: list[dict[str, list[int]]] = []

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.played.append({agent: [] for agent in STAYS})
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        for agent, action in actions.items():
            self.played[-1][agent].append(int(action) - 5)
        return super().step(actions)


BY_COUNT = {version: [(1 + version) * t % 3 for t in range(1, 8)] for version in (0, 1)}
"""The actions of a game, of `Counting` of these versions."""


def test_opponents_keep_their_state_through_a_game():
    made = [Kept(), Kept()]
    games = iter(made)
    who = Assignment(2, True, num_agents=3, past_frac=1.0)
    env = game_env(lambda: next(games), 6)
    options = SerialOptions(assignment=who)
    sampling = SerialSampling([env], Counting, DataPlan(5, 6), 1, PhaseTimer(), options)
    for policy in (0, 1):
        sampling.publish(Publication(policy, {}, policy))
    sampling.restart(0)
    for _ in range(3):
        sampling.collect(10**9)
    whole = [p for game in made for p in game.played if len(p["ann"]) == 7]
    assert len(whole) >= 4
    for played in whole:  # one agent is the learner's
        assert sorted(played.values()) == sorted([BY_COUNT[0], BY_COUNT[1], BY_COUNT[1]])


def test_a_mix_draws_anew_in_every_row():
    mix = PolicyMix([Counting(), Counting()], Assignment(2, True))
    noise = mix.draw_noise(4, 3, torch.Generator().manual_seed(1))
    assert noise[..., -1].unique().numel() == 12


def test_a_row_has_the_version_and_the_state_of_who_plays_it():
    made = [Kept(), Kept()]
    games = iter(made)
    env = game_env(lambda: next(games), 6)
    options = SerialOptions(assignment=Assignment(2, True, num_agents=3))
    sampling = SerialSampling([env], Counting, DataPlan(20, 8), 1, PhaseTimer(), options)
    for policy in (0, 1):
        sampling.publish(Publication(10 * policy, {}, policy))
    sampling.restart(0)
    states, ended = {0: 0, 1: 0}, 0
    for number in range(9):  # what waits after the last one is given up
        batch = sampling.collect(10**9, lambda _, last=number == 8: last)
        ended += len(batch.episodes) + sum(map(len, batch.others.values()))
        played = batch.rollout
        assert (played.version[played.valid] == 10 * batch.policy).all()
        goes_on = played.valid[0] & ~played.is_first[0]
        step = played.obs["obs"][0, goes_on, 1].long()  # of the game
        assert torch.equal(played.state["count"][0, goes_on], step * (1 + 10 * batch.policy))
        states[batch.policy] += len(step)
    assert min(states.values()) > 0
    whole = [p for game in made for p in game.played if len(p["ann"]) == 7]
    assert ended == 3 * len(whole)  # each agent's episode is counted once, by who played it


def test_players_of_an_evaluation_keep_their_states_apart():
    made = [Kept({"ann": (0, 7), "bob": (0, 3), "eve": (2, 7)}) for _ in range(2)]
    games = iter(made)
    how = How(Counting(0), 4, 0, True, None, others=(Counting(1),))
    with closing(game_env(lambda: next(games), 6)) as vector:
        found = play_games(vector, how, 3)
    # Only steps that were made count: of both games the first actor's agents, twice each.
    assert [each.length for each in found.played] == [7, 7, 5, 5, 3, 3]
    assert [each.entropy for each in found.played] == [28, 28, 15, 15, 6, 6]
    for index, game in enumerate(made):
        for played in game.played[:2]:
            seats = [(index + agent) % 2 for agent in range(3)]
            expected = [
                BY_COUNT[seat][:steps] for seat, steps in zip(seats, (7, 3, 5), strict=True)
            ]
            assert list(played.values()) == expected
