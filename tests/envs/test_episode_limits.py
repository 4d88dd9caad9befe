"""``env.max_episode_steps``: every kind of environment is truncated, or says why it can't be."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from small_run_helpers import SMALL
from toys_helpers import EndlessPay

import quintet
from quintet.commands.cli import main
from quintet.envs.public import make_vector_env
from quintet.envs.random_play import random_rows
from quintet.envs.torch_toys import Pendulum
from quintet.errors import ConfigError


class Chat:
    """Two agents in turn; each step pays 1 to both, and the time is seen."""

    possible_agents = ("ann", "bob")

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 1_000, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.time = list(self.possible_agents), 0
        self.agent_selection = "ann"
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> Any:
        return np.array([self.time], np.float32)

    def last(self) -> tuple[Any, ...]:
        agent = self.agent_selection
        return self.observe(agent), self._cumulative_rewards[agent], False, False, {}

    def step(self, action: Any) -> None:
        self._cumulative_rewards[self.agent_selection] = 0.0
        self.time += 1
        for agent in self.agents:
            self._cumulative_rewards[agent] += 1.0
        self.agent_selection = self.possible_agents[self.time % 2]

    def close(self) -> None:
        pass


def pendulums(num_envs: int) -> Any:
    return gymnasium.make_vec("Pendulum-v1", num_envs, vectorization_mode="sync")


def cartpoles(num_envs: int) -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs)


def tensors(num_envs: int, max_episode_steps: int = 100) -> Pendulum:
    return Pendulum(num_envs, max_episode_steps=max_episode_steps)


def unlimited(num_envs: int) -> Pendulum:
    return Pendulum(num_envs)


def endings(env: Any, limit: int | None, **options: Any) -> list[tuple[int, bool]]:
    """Lengths of the first episodes, and whether they were truncated."""
    made = make_vector_env(env, 2, max_episode_steps=limit, **options)
    lengths, found = np.zeros(made.num_streams, np.int64), []
    for each in random_rows(made, 40, 0):
        if each.number:
            row = each.row
            lengths += row.valid
            for stream in np.flatnonzero(row.terminated | row.truncated):
                found.append((int(lengths[stream]), bool(row.truncated[stream])))
                lengths[stream] = 0
    made.close()
    return found


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (EndlessPay, {}),
        ("Pendulum-v1", {"backend": "gymnasium"}),
        ("Pendulum-v1", {"backend": "envpool"}),
        ("ALE/Pong-v5", {"backend": "gymnasium"}),
        ("ALE/Pong-v5", {"backend": "ale"}),
        ("quintet.envs.toy:Pendulum-v1", {}),
        (gymnasium.make("Pendulum-v1"), {}),
        ("torch/Pendulum-v1", {}),
        (tensors, {}),
        (pendulums, {}),
        (partial(gymnasium.make_vec, "CartPole-v1"), {}),
        ("quintet.envs.games:parallel_env", {}),
        (Chat, {"backend": "pettingzoo"}),
    ],
)
def test_episodes_are_truncated(env: Any, options: dict[str, Any]) -> None:
    limit = 6
    # In turn, each of two agents takes every second step.
    length = limit // 2 if env is Chat else limit
    assert set(endings(env, limit, **options)) == {(length, True)}


def test_a_longer_limit_than_the_registered_one_counts() -> None:
    env = make_vector_env("Pendulum-v1", 1, backend="gymnasium", max_episode_steps=300)
    assert env.description.max_steps == 300


@pytest.mark.parametrize(
    ("env", "options", "said"),
    [
        (cartpoles, {}, "vector environment that resets its streams itself: set the limit in it"),
        (unlimited, {}, "vector environment that resets its streams itself: set the limit in it"),
        (cartpoles(2), {"num_streams": None}, "resets its streams itself"),
        (lambda: TimeLimit(EndlessPay(), 4), {}, "at most the limit that .* has itself, 4"),
        ("Pendulum-v1", {"kwargs": {"max_episode_steps": 9}}, "must be given once; got 6, and 9"),
    ],
)
def test_what_can_not_be_limited_says_why(env: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_vector_env(env, **{"num_streams": 2, **options}, max_episode_steps=6)


def test_the_agents_of_a_game_in_turn_get_what_their_last_action_led_to() -> None:
    made = make_vector_env(Chat, 2, backend="pettingzoo", max_episode_steps=5)
    paid = np.zeros(2)
    for each in random_rows(made, 5, 0):
        paid += each.row.raw_reward if each.number else 0.0
    assert paid.tolist() == [5.0, 5.0]  # what came before bob's first action counts for it
    assert each.row.truncated.all()
    assert each.row.obs["obs"].ravel().tolist() == [5.0, 5.0]


def test_evaluations_have_the_limit_of_training_or_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**SMALL, "env.max_episode_steps": 5, "env.backend": "gymnasium"}
    options |= {"eval.episodes": 2, "eval.env.max_episode_steps": 4}
    result = quintet.train("ppo", "CartPole-v1", 64, run_dir=tmp_path / "run", config=options)
    assert result.metrics["episode/length_mean"] == 5
    assert result.metrics["eval/length_mean"] == 4
    for words, length in (([], 5.0), (["--env.max-episode-steps", "3"], 3.0)):
        assert main(["eval", str(tmp_path / "run"), "--episodes", "2", *words]) == 0
        assert f"length {length}" in capsys.readouterr().out
    assert main(["check-env", "CartPole-v1", "--steps", "50", "--env.max-episode-steps", "5"]) == 0
    assert "CartPole" in capsys.readouterr().out


def test_the_flag_of_other_libraries_leads_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["config", "ppo", "--env", "quintet.envs.toy:Contextual", "--max-episode-steps", "5"]
    assert main(words) == 2
    assert "'env.max_episode_steps'" in capsys.readouterr().err
