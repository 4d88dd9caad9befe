"""Games of several agents as streams."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from envs_helpers import record
from gymnasium import spaces
from safetensors.numpy import load_file

import quintet
from quintet.config.load import Layer, compose
from quintet.envs.config import EnvConfig
from quintet.envs.games import SIZE, CoinRace
from quintet.envs.make import make_group_env, make_vector_env
from quintet.envs.pettingzoo import ParallelVectorEnv, num_agents
from quintet.envs.resolved import resolve_env
from quintet.envs.vector import allocate_row, check_finite
from quintet.errors import ConfigError, EnvironmentFault, QuintetError
from quintet.observe.timing import PhaseTimer
from quintet.play import How
from quintet.play import play as play_games
from quintet.protocols import DataPlan
from quintet.runtime.policies import Assignment, PolicyMix
from quintet.runtime.serial import SerialOptions, SerialSampling
from quintet.types import ActOutput, Publication, TensorSpec
from quintet.uniform import UniformActor

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


def play(stays: dict[str, tuple[int, int]], rows: int, copies: int = 1, **kwargs: Any) -> Any:
    env = ParallelVectorEnv(lambda: Game(stays, **kwargs), 3 * copies, env_id="game")
    return record(env, list(range(100, 100 + 3 * copies)), np.zeros((rows, 3 * copies), np.int64))


def test_each_agent_is_a_stream_with_the_rows_of_its_own_stay():
    found = play({"ann": (0, 2), "bob": (0, 4), "eve": (1, 4)}, 9)
    # Row t + 1 of observations follows step t; the game lasts four steps and one reset row.
    assert found.valid.T.astype(int).tolist() == [
        [1, 1, 0, 0, 0, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 1, 1, 1, 1],
        [0, 1, 1, 1, 0, 0, 1, 1, 1],
    ]
    assert np.argwhere(found.terminated).tolist() == [[1, 0], [6, 0]]
    assert np.argwhere(found.truncated).tolist() == [[3, 1], [3, 2], [8, 1], [8, 2]]
    obs = found.obs["obs"]
    assert obs[2, 0].tolist() == obs[4, 0].tolist() == [0, 2, 100]  # its last one, while absent
    assert obs[0, 2].tolist() == [0, 0, 0]  # not there yet
    assert obs[1, 2].tolist() == [2, 1, 100]  # comes in
    assert obs[4, 1].tolist() == [1, 4, 100]  # the final observation
    assert obs[5].tolist() == [[0, 0, -1], [1, 0, -1], [2, 4, 100]]  # the next game, without eve
    assert found.reward[:, 1].tolist() == [5, 5, 5, 5, 0, 5, 5, 5, 5]  # discrete actions from 5


def test_games_have_seeds_of_their_own_and_begin_anew_at_a_restart():
    env = ParallelVectorEnv(Game, 6, env_id="game")
    first = record(env, [1, 2, 3, 4, 5, 6], np.zeros((3, 6), np.int64)).obs["obs"]
    assert first[0, :, 2].tolist() == [1, 1, 1, 4, 4, 4]
    again = record(env, [7, 8, 9, 1, 2, 3], np.zeros((3, 6), np.int64)).obs["obs"]
    assert again[0, :, 1:].tolist() == [[0, 7]] * 3 + [[0, 1]] * 3


def test_whoever_has_ended_is_gone_even_if_the_game_keeps_the_agent():
    found = play({"ann": (0, 2), "bob": (0, 4), "eve": (0, 4)}, 9, wrong="stays")
    assert found.valid[:, 0].astype(int).tolist() == [1, 1, 0, 0, 0, 1, 1, 0, 0]
    assert found.valid[:, 1].astype(int).tolist() == [1, 1, 1, 1, 0, 1, 1, 1, 1]


def test_an_agent_may_come_back():
    class Returns(Game):
        def here(self):
            return [a for a in super().here() if a != "ann" or self.t != 3]

        def step(self, actions):
            shown, rewards, over, cut, infos = super().step(actions)
            over |= {"ann": self.t == 3} if "ann" in over else {}
            return shown, rewards, over, cut, infos

    env = ParallelVectorEnv(lambda: Returns(dict.fromkeys(STAYS, (0, 6))), 3, env_id="game")
    found = record(env, [1, 2, 3], np.zeros((6, 3), np.int64))
    assert found.valid[:, 0].astype(int).tolist() == [1, 1, 1, 0, 1, 1]
    assert found.obs["obs"][4, 0].tolist() == [0, 4, 1]


def test_success_is_of_the_agents_own_info():
    env = ParallelVectorEnv(
        lambda: Game(dict.fromkeys(STAYS, (0, 2))), 3, env_id="g", success_key="won"
    )
    row = allocate_row(env.spaces.observation, 3)
    env.restart([1, 2, 3], row.obs)
    for _ in range(2):
        env.send(np.zeros(3, np.int64))
        env.recv(row)
    assert row.success.tolist() == [False, True, False]
    assert env.description.success == "info:won"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("raises", r"stream 0 \(agent 'ann'\), step 1 of its game, seed 1: .*a rule is broken"),
        ("reset", "must return from reset two dicts by agent"),
        ("nobody", "must have agents after a reset"),
        ("leaves", "agent 'ann'.*took an agent out of agents without terminating"),
        ("stranger", "has agents {'zoe'} that are no possible_agents"),
        ("unseen", "gave no observation for 'ann'"),
        ("reward", "must give each acting agent a reward and two flags: KeyError"),
        ("unlisted", "raised in agents AttributeError"),
    ],
)
def test_what_a_game_does_wrong(wrong: str, says: str):
    env = ParallelVectorEnv(lambda: Game(wrong=wrong), 3, env_id="game")
    with pytest.raises(EnvironmentFault, match=says):
        record(env, [1, 2, 3], np.zeros((2, 3), np.int64))


def test_who_comes_in_must_be_shown_something():
    env = ParallelVectorEnv(lambda: Game(STAYS | {"eve": (1, 9)}, "blind"), 3, env_id="game")
    with pytest.raises(EnvironmentFault, match=r"stream 2 .*gave no observation for 'eve'"):
        record(env, [1, 2, 3], np.zeros((2, 3), np.int64))


class Masked(Game):
    """Whoever is there may take one action only."""

    def observation_space(self, agent: str) -> spaces.Space:
        mask = spaces.Box(0, 1, (3,), np.int8)
        return spaces.Dict({"seen": super().observation_space(agent), "action_mask": mask})

    def show(self, agents: Any) -> dict[str, Any]:
        mask = np.array([1, 0, 0], np.int8)
        return {a: {"seen": x, "action_mask": mask} for a, x in super().show(agents).items()}


def test_who_is_not_there_needs_no_action_that_is_allowed():
    env = ParallelVectorEnv(lambda: Masked(STAYS | {"eve": (3, 9)}), 3, env_id="game")
    sampling = SerialSampling([env], Still, DataPlan(5, 3), 1, PhaseTimer())
    sampling.publish(Publication(0, {}))
    sampling.restart(0)
    batch = sampling.collect(10**9)
    assert batch.env_steps == 5 + 5 + 2
    assert not batch.rollout.obs["action_mask"][:3, 2].any()


class Seedless(Game):
    def reset(self):  # type: ignore[override]
        return super().reset()


def test_a_reset_must_take_a_seed():
    env = ParallelVectorEnv(Seedless, 3, env_id="game")
    with pytest.raises(EnvironmentFault, match=r"it must be reset\(seed=None, options=None\)"):
        record(env, [1, 2, 3], np.zeros((2, 3), np.int64))


def test_what_is_not_finite_is_told_with_the_seed_of_its_game():
    env = ParallelVectorEnv(Game, 6, env_id="game")
    reward = np.zeros((2, 6), np.float32)
    reward[1, 4] = np.nan
    says = r"stream 16 \(agent 'bob'\), step 8 after its reset with seed 4: reward is nan"
    with pytest.raises(EnvironmentFault, match=says):
        check_finite({}, reward, 12, [1, 2, 3, 4, 5, 6], env.description, 7)


def test_who_is_not_there_yet_is_shown_within_the_bounds():
    class Bounded(Game):
        def observation_space(self, agent: str) -> spaces.Space:
            return spaces.Box(np.float32([1, -5, -9]), np.float32([2e9, 5, -2]))

    env = ParallelVectorEnv(lambda: Bounded(STAYS | {"eve": (2, 9)}), 3, env_id="game")
    for seeds in ([1, 2, 3], [4, 5, 6]):
        found = record(env, seeds, np.zeros((3, 3), np.int64)).obs["obs"]
        assert found[:2, 2].tolist() == [[1, 0, -2]] * 2
        assert found[2, 2].tolist() == [2, 2, seeds[0]]


class Strange(Game):
    """Has other names or spaces than a game must have."""

    def __init__(self, agents: Any, space: Any) -> None:
        super().__init__()
        self.possible_agents, self.space = agents, space

    def observation_space(self, agent: str) -> Any:
        return self.space[agent] if isinstance(self.space, dict) else self.space

    def close(self) -> None:
        raise OSError("no connection")


@pytest.mark.filterwarnings("ignore:game. closing failed")
@pytest.mark.parametrize(
    ("agents", "space", "says"),
    [
        (["ann", "ann"], spaces.Discrete(2), r"each once; got \['ann', 'ann'\]"),
        ([["ann"], ["bob"]], spaces.Discrete(2), "keys of a dict, each once"),
        (lambda: ["ann"], spaces.Discrete(2), "several agents, with possible_agents"),
        (["ann", "bob"], None, r"spaces of gymnasium.spaces by.*; 'ann' has \(None, Discrete"),
        (["ann", "bob"], {"ann": spaces.Discrete(2)}, "for 'bob' it raised KeyError: 'bob'"),
    ],
)
def test_names_and_spaces_that_no_game_may_have(agents: Any, space: Any, says: str):
    with pytest.raises(ConfigError, match=says):
        ParallelVectorEnv(lambda: Strange(agents, space), 2, env_id="game")


@pytest.mark.filterwarnings("error")
def test_a_game_that_fails_to_close_is_only_warned_of():
    with pytest.raises(RuntimeWarning, match="closing failed: OSError"):
        num_agents(lambda: Strange(["ann", "bob"], spaces.Discrete(2)), "game")


def test_games_that_cannot_be_streams():
    with pytest.raises(ConfigError, match=r"multiples of 3, got 4; use --env.num-streams 6"):
        ParallelVectorEnv(Game, 4, env_id="game")
    with pytest.raises(ConfigError, match=r"all agents the same spaces.*'eve'.*pad them"):
        ParallelVectorEnv(lambda: Game(wrong="spaces"), 3, env_id="game")
    one = Game()
    with pytest.raises(ConfigError, match="the same object twice"):
        ParallelVectorEnv(lambda: one, 6, env_id="game")
    with pytest.raises(
        ConfigError, match=r"several agents, with possible_agents; got builtins.object"
    ):
        make_vector_env("test_pettingzoo:object", backend="pettingzoo", num_streams=1)
    with pytest.raises(ConfigError, match=r"several agents need env.backend pettingzoo"):
        make_vector_env(lambda: Game(), 3)
    with pytest.raises(ConfigError, match=r"needs an import string.*got 'CartPole-v1'"):
        make_vector_env("CartPole-v1", 3, backend="pettingzoo")


object = object  # a class that is no game, to be found by its name


def test_the_backend_is_taken_by_the_makers_name_or_asked_for():
    assert resolve_env(EnvConfig(id="x:parallel_env")).config.backend == "pettingzoo"
    assert resolve_env(EnvConfig(id="x:parallel_env", backend="gymnasium")).config.backend == (
        "gymnasium"
    )
    assert resolve_env(EnvConfig(id="given"), parallel_env).num_agents == 3
    asked = resolve_env(EnvConfig(id="given", backend="pettingzoo"), lambda: Game())
    assert asked.streams_of(1) == 3
    assert asked.streams_of(7) == 9
    assert make_group_env(asked, 3).description.backend == "pettingzoo"


def test_turns_are_refused_with_the_way_out():
    rps = pytest.importorskip("pettingzoo.classic.rps_v2")
    with pytest.raises(ConfigError, match=r"whose agents act in turns; return an environment of"):
        make_vector_env(rps.env, 2, backend="pettingzoo")


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


@pytest.mark.parametrize("algo", ["ppo", "impala", "appo", "acer"])
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
    with pytest.raises(ConfigError, match=r"the opponent's observation space Box.* is required"):
        quintet.evaluate(able, Matching, episodes=2, against=other_space)
    two = quintet.evaluate(able, Matching, episodes=2, against="random")
    assert sorted(two.lengths.tolist()) == [2, 6]
    with pytest.raises(ConfigError, match="against requires an environment of several agents"):
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


def test_rows_without_an_agent_are_neither_first_nor_counted():
    stays = {"ann": (0, 2), "bob": (0, 7), "eve": (4, 7)}
    env = ParallelVectorEnv(lambda: Game(stays), 3, env_id="game")
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
        ({"env.num_streams": 9, **workers}, "env.num_streams must be a multiple.*2 of.*use 10"),
        ({"env.num_streams": 1, "unroll_steps": 2_048}, "env.num_streams must.*got 1; use 2"),
    ):
        with pytest.raises(ConfigError, match=says):
            quintet.train(
                "ppo",
                "quintet.envs.games:parallel_env",
                9_216,
                run_dir=tmp_path / "run",
                config={"minibatch_steps": None, **config},
            )
    with pytest.raises(ConfigError, match=r"env.kwargs {'x': 1}; it raised TypeError"):
        quintet.train(
            "ppo",
            "quintet.envs.games:parallel_env",
            9_216,
            run_dir=tmp_path / "run",
            config={"env.kwargs": {"x": 1}},
        )
    loaded = compose("ppo", [Layer("given", {"env.id": f"{__name__}:parallel_env"})])
    assert (loaded.config.env.num_streams, loaded.sources["env.num_streams"]) == (
        9,
        "resolved (default)",
    )
    assert loaded.config.env.backend == "auto"
    assert loaded.env.config.backend == "pettingzoo"


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
    env = ParallelVectorEnv(lambda: next(games), 6, env_id="game")
    options = SerialOptions(assignment=who)
    sampling = SerialSampling([env], Counting, DataPlan(5, 6), 1, PhaseTimer(), options)
    for policy in (0, 1):
        sampling.publish(Publication(policy, {}), policy)
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
    env = ParallelVectorEnv(lambda: next(games), 6, env_id="game")
    options = SerialOptions(assignment=Assignment(2, True, num_agents=3))
    sampling = SerialSampling([env], Counting, DataPlan(20, 8), 1, PhaseTimer(), options)
    for policy in (0, 1):
        sampling.publish(Publication(10 * policy, {}), policy)
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
    with closing(ParallelVectorEnv(lambda: next(games), 6, env_id="game")) as vector:
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


def test_who_leaves_late_may_come_back():
    """It is still listed in the step in which it ends, in the next one no more, and then again."""

    class Late(Game):
        def step(self, actions: dict[str, int]) -> Any:
            shown, rewards, over, cut, infos = super().step(actions)
            if self.t == 2:
                over["ann"] = True
            if self.t == 3:
                self.agents.remove("ann")
            return shown, rewards, over, cut, infos

        def __init__(self) -> None:
            super().__init__(dict.fromkeys(STAYS, (0, 6)), "stays")

    env = ParallelVectorEnv(Late, 3, env_id="game")
    found = record(env, [1, 2, 3], np.zeros((6, 3), np.int64))
    assert found.valid[:, 0].astype(int).tolist() == [1, 1, 0, 0, 1, 1]


def test_games_are_made_anew_at_a_restart():
    env = ParallelVectorEnv(Numbered, 3, env_id="game")
    first, again = (record(env, [1, 2, 3], np.zeros((7, 3), np.int64)).reward for _ in range(2))
    assert first[:, 0].tolist() == [1, 1, 0, 2, 2, 0, 3]
    assert np.array_equal(first, again)
