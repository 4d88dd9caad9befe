"""Games of several agents as streams."""

import sys
from functools import partial
from traceback import walk_stack
from typing import Any

import numpy as np
import pytest
from agents_helpers import STAYS, Game, Numbered, Still, parallel_env
from envs_helpers import record
from gymnasium import spaces
from turns_helpers import Scripted, game_env, scripted

from quintet.envs.config import EnvConfig
from quintet.envs.make import make_group_env
from quintet.envs.pettingzoo_games import num_agents
from quintet.envs.public import make_vector_env
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.vector import allocate_row, check_finite, place_of_frame
from quintet.errors import ConfigError, EnvironmentFault
from quintet.observe.timing import PhaseTimer
from quintet.protocols import DataPlan
from quintet.runtime.sampler import SerialSampling
from quintet.types import Publication


def play(stays: dict[str, tuple[int, int]], rows: int, copies: int = 1, **kwargs: Any) -> Any:
    env = game_env(lambda: Game(stays, **kwargs), 3 * copies)
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
    env = game_env(Game, 6)
    first = record(env, [1, 2, 3, 4, 5, 6], np.zeros((3, 6), np.int64)).obs["obs"]
    assert first[0, :, 2].tolist() == [1, 1, 1, 4, 4, 4]
    again = record(env, [7, 8, 9, 1, 2, 3], np.zeros((3, 6), np.int64)).obs["obs"]
    assert again[0, :, 1:].tolist() == [[0, 7]] * 3 + [[0, 1]] * 3


def test_a_game_that_others_play_is_refused_and_stays_open():
    shared = Game()
    closed = []
    shared.close = lambda: closed.append(True)
    first = game_env(lambda: shared, 3)
    with pytest.raises(ConfigError, match="other streams use"):
        game_env(lambda: shared, 3)
    with pytest.raises(ConfigError, match="other streams use"):
        num_agents(resolve_env(EnvConfig(id="game", backend="pettingzoo"), lambda: shared))
    assert not closed
    first.close()
    again = game_env(lambda: shared, 3)
    actions = np.zeros((1, 3), np.int64)
    for _ in range(2):  # the second begins with another game
        record(again, [1, 2, 3], actions)
    with pytest.raises(ConfigError, match="other streams use"):
        game_env(lambda: shared, 3)


def test_a_step_that_hangs_is_named_by_its_stream_and_seed():
    places: list[str] = []

    class Looking(Game):
        def step(self, actions):
            frames = (frame for frame, _ in walk_stack(sys._getframe()))
            places.append(next(filter(None, map(place_of_frame, frames))))
            return super().step(actions)

    env = game_env(Looking, 6)
    record(env, list(range(100, 106)), np.zeros((1, 6), np.int64))
    assert places == [
        "stream 0 (agent 'ann'), step 1 of its game, seed 100",
        "stream 3 (agent 'ann'), step 1 of its game, seed 103",
    ]


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

    env = game_env(lambda: Returns(dict.fromkeys(STAYS, (0, 6))), 3)
    found = record(env, [1, 2, 3], np.zeros((6, 3), np.int64))
    assert found.valid[:, 0].astype(int).tolist() == [1, 1, 1, 0, 1, 1]
    assert found.obs["obs"][4, 0].tolist() == [0, 4, 1]


def test_success_is_of_the_agents_own_info():
    env = game_env(lambda: Game(dict.fromkeys(STAYS, (0, 2))), 3, env_id="g", success="info:won")
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
        ("reset", "must return two dicts by agent from reset"),
        ("nobody", "must have agents after a reset"),
        ("leaves", "agent 'ann'.*must end an agent's episode before it leaves"),
        ("stranger", "has agents {'zoe'} that are not in possible_agents"),
        ("unseen", "gave no observation for 'ann'"),
        ("reward", "must give each acting agent a reward and two flags: KeyError"),
        ("unlisted", "raised in agents AttributeError"),
    ],
)
def test_what_a_game_does_wrong(wrong: str, says: str):
    env = game_env(lambda: Game(wrong=wrong), 3)
    with pytest.raises(EnvironmentFault, match=says):
        record(env, [1, 2, 3], np.zeros((2, 3), np.int64))


def test_who_comes_in_must_be_shown_something():
    env = game_env(lambda: Game(STAYS | {"eve": (1, 9)}, "blind"), 3)
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
    env = game_env(lambda: Masked(STAYS | {"eve": (3, 9)}), 3)
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
    env = game_env(Seedless, 3)
    with pytest.raises(EnvironmentFault, match=r"it must be reset\(seed=None, options=None\)"):
        record(env, [1, 2, 3], np.zeros((2, 3), np.int64))


def test_what_is_not_finite_is_told_with_the_seed_of_its_game():
    env = game_env(Game, 6)
    reward = np.zeros((2, 6), np.float32)
    reward[1, 4] = np.nan
    says = r"stream 16 \(agent 'bob'\), step 8 after its reset with seed 4: reward is nan"
    with pytest.raises(EnvironmentFault, match=says):
        check_finite({}, reward, 12, [1, 2, 3, 4, 5, 6], env.description, 7)


def test_who_is_not_there_yet_is_shown_within_the_bounds():
    class Bounded(Game):
        def observation_space(self, agent: str) -> spaces.Space:
            return spaces.Box(np.float32([1, -5, -9]), np.float32([2e9, 5, -2]))

    env = game_env(lambda: Bounded(STAYS | {"eve": (2, 9)}), 3)
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


@pytest.mark.filterwarnings("ignore:game. the environment raised in close")
@pytest.mark.parametrize(
    ("agents", "space", "says"),
    [
        (
            ["ann", "ann"],
            spaces.Discrete(2),
            r"must have possible_agents that differ .*got \['ann', 'ann'\]",
        ),
        ([["ann"], ["bob"]], spaces.Discrete(2), "can be keys of a dict"),
        (lambda: ["ann"], spaces.Discrete(2), "several agents, with possible_agents"),
        (["ann", "bob"], None, r"spaces of gymnasium.spaces by.*; 'ann' has \(None, Discrete"),
        (["ann", "bob"], {"ann": spaces.Discrete(2)}, "for 'bob' it raised KeyError: 'bob'"),
    ],
)
def test_names_and_spaces_that_no_game_may_have(agents: Any, space: Any, says: str):
    with pytest.raises(ConfigError, match=says):
        game_env(lambda: Strange(agents, space), 2)


@pytest.mark.filterwarnings("error")
def test_a_game_that_fails_to_close_is_only_warned_of():
    with pytest.raises(RuntimeWarning, match="raised in close OSError"):
        num_agents(
            ResolvedEnv(EnvConfig(id="game"), lambda: Strange(["ann", "bob"], spaces.Discrete(2)))
        )


def test_games_that_cannot_be_streams():
    with pytest.raises(ConfigError, match=r"multiples of 3, got 4; use --env.num-streams 6"):
        game_env(Game, 4)
    with pytest.raises(ConfigError, match=r"all agents the same spaces.*'eve'.*pad them"):
        game_env(lambda: Game(wrong="spaces"), 3)
    one = Game()
    with pytest.raises(ConfigError, match="the same object twice"):
        game_env(lambda: one, 6)
    with pytest.raises(
        ConfigError, match=r"several agents, with possible_agents; got builtins.object"
    ):
        make_vector_env("test_pettingzoo:object", backend="pettingzoo", num_streams=1)
    with pytest.raises(ConfigError, match=r"several agents: give the function that makes it"):
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


def test_agents_in_turn_have_rows_when_they_are_selected():
    """As PettingZoo's `last` tells of them, of a game that the first agent wins."""
    game = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    env = make_vector_env(game.env, 2)
    assert env.description.turns
    actions = np.array([[0, 7], [7, 3], [1, 7], [7, 4], [2, 7], [0, 0], [0, 0]])
    found = record(env, [1, 2], actions)
    assert found.valid.T.astype(int).tolist() == [[1, 0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 0, 0]]
    # Won in the fifth move; the sixth row is spent on the next game.
    assert found.terminated[:, 0].tolist() == found.terminated[:, 1].tolist()
    assert np.flatnonzero(found.terminated[:, 0]).tolist() == [4]
    assert found.reward[:, 0].tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert found.reward[:, 1].tolist() == [0, 0, 0, 0, -1, 0, 0]
    board = found.obs["observation"]
    assert board[5, 0, :, :, 0].tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert board[5, 1, :, :, 1].tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert not board[6, 0].any()  # a new game
    assert found.obs["action_mask"][2, 0].sum() == 7
    assert found.obs["action_mask"][1, 1].sum() == 8


def test_what_pettingzoo_converts_for_games_in_turn_is_the_game_in_turn():
    game = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    from pettingzoo.utils.conversions import turn_based_aec_to_parallel

    made = make_vector_env(lambda: turn_based_aec_to_parallel(game.env()), 2, backend="pettingzoo")
    assert made.description.turns


def test_makers_of_pettingzoo_itself_are_taken_for_games():
    for maker in ("pettingzoo.classic.tictactoe_v3:env", "pettingzoo.x:raw_env", "x:parallel_env"):
        assert resolve_env(EnvConfig(id=maker)).config.backend == "pettingzoo"
    for maker in ("x:env", "mypettingzoo.x:env", "x.pettingzoo:env"):
        assert resolve_env(EnvConfig(id=maker)).config.backend == "gymnasium"
    asked = EnvConfig(id="pettingzoo.classic.tictactoe_v3:env", backend="gymnasium")
    assert resolve_env(asked).config.backend == "gymnasium"


class Lingers(Scripted):
    def step(self, action: int | None) -> None:
        if action is not None:
            super().step(action)


class Prunes(Scripted):
    """Ends an agent without a word."""

    def step(self, action: int | None) -> None:
        super().step(action)
        if self.time == 5:
            self.agents = []


class Says(Scripted):
    def last(self) -> tuple[Any, ...]:
        return super().last()[:4]


class Gives(Scripted):
    """Replaces a part of what `last` returns."""

    def __init__(self, place: int, value: Any) -> None:
        super().__init__()
        self.place, self.value = place, value

    def last(self) -> tuple[Any, ...]:
        parts = list(super().last())
        parts[self.place] = self.value
        return tuple(parts)


class Selects(Scripted):
    def __init__(self, agent: Any) -> None:
        super().__init__()
        self.agent = agent

    def select(self) -> None:
        self.agent_selection = self.agent


@pytest.mark.parametrize(
    ("game", "says"),
    [
        (partial(Gives, 1, 10**400), "must return a reward that is one number; gave a int"),
        (partial(Gives, 2, np.zeros(2)), "must return termination as True or False"),
        (partial(Gives, 3, "no"), "must return truncation as True or False; gave 'no'"),
        (partial(Gives, 4, 3), "must return info as a dict; gave 3"),
        (partial(Selects, "zoe"), "has agent_selection 'zoe', which is not in possible"),
        (partial(Selects, None), "has agent_selection None"),
        (Lingers, r"must remove an agent from its list agents at the step\(None\) after its end"),
        (Prunes, "must show an agent that it has ended before it leaves the list agents"),
        (Says, "must give five values from last"),
    ],
)
def test_what_games_in_turn_must_do(game: Any, says: str):
    env = game_env(game, 3, env_id="game", success="info:won")
    with pytest.raises(EnvironmentFault, match=says):
        record(env, [1, 2, 3], np.zeros((200, 3), np.int64))


def test_a_reward_may_be_an_array_of_one():
    env = game_env(partial(Gives, 1, np.array([2.0])), 3)
    assert record(env, [1, 2, 3], np.zeros((20, 3), np.int64)).reward.max() >= 2.0


@pytest.mark.parametrize("options", [{"frame_stack": 2}, {"observe_last": True}])
def test_what_needs_agents_that_act_at_once(options: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"env.\w+ must have agents that act at the same time"):
        make_vector_env(scripted, 3, backend="pettingzoo", **options)


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

    env = game_env(Late, 3)
    found = record(env, [1, 2, 3], np.zeros((6, 3), np.int64))
    assert found.valid[:, 0].astype(int).tolist() == [1, 1, 0, 0, 1, 1]


def test_games_live_over_a_restart():
    env = game_env(Numbered, 3)
    first, again = (record(env, [1, 2, 3], np.zeros((7, 3), np.int64)).reward for _ in range(2))
    assert first[:, 0].tolist() == [1, 1, 0, 2, 2, 0, 3]
    assert again[:, 0].tolist() == [4, 4, 0, 5, 5, 0, 6]
