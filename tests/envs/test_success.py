"""Whether an episode was won, through every way in, against the script that says so."""

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper

from quintet.envs.public import make_vector_env
from quintet.envs.success import read_rule
from quintet.envs.vector import VectorEnv, allocate_row
from quintet.errors import ConfigError

SEEDS = [3, 8, 14]
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def length_of(seed: int, episode: int) -> int:
    return 1 + (7 * seed + 5 * episode + episode // 3) % 5


def won(seed: int, episode: int) -> bool:
    return (seed + 3 * episode + episode // 2) % 3 == 0


class Game(gymnasium.Env):
    """Observes (seed, episode, step).  Who wins is paid 0.8 in the end, others 0.3; every step on
    the way pays 1 and says the contrary of what the end will say.
    """

    metadata: ClassVar = {}

    def __init__(self, said: Callable[[bool], Any] = bool) -> None:
        self.observation_space = spaces.Box(0, 10_000, (3,), np.int64)
        self.action_space = spaces.Discrete(2)
        self.key, self.said = (0, -1, 0), said

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        seed, episode = (self.key[0], self.key[1]) if seed is None else (seed, -1)
        self.key = (seed, episode + 1, 0)
        return np.array(self.key), {"won": self.said(not won(seed, episode + 1)), "at": 0}

    def step(self, action):
        seed, episode, step = self.key
        self.key = (seed, episode, step + 1)
        over, wins = step + 1 == length_of(seed, episode), won(seed, episode)
        reward = (0.8 if wins else 0.3) if over else 1.0
        cut = over and episode % 2 == 1
        info = {"won": self.said(wins if over else not wins), "at": step}
        return np.array(self.key), reward, over and not cut, cut, info


class Native(gymnasium.vector.VectorEnv):
    """Same-step resets whose infos have no masks, or a dict for each stream."""

    def __init__(self, per_stream: bool) -> None:
        self.envs = [Game() for _ in SEEDS]
        self.num_envs, self.per_stream = len(SEEDS), per_stream
        self.metadata = {"autoreset_mode": "SameStep"}
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        for i, env in enumerate(self.envs):
            if mask[i]:
                env.reset(seed=None if seed is None else seed[i])
        return np.stack([env.key for env in self.envs]), {}

    def step(self, actions):
        steps = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
        final = np.stack([env.key for env in self.envs])
        reward, terminated, truncated = (np.array([s[i] for s in steps]) for i in (1, 2, 3))
        over = terminated | truncated
        told: Any = {"won": np.array([s[4]["won"] for s in steps])}
        if self.per_stream:
            told = np.array([s[4] if end else None for s, end in zip(steps, over, strict=True)])
        for env, end in zip(self.envs, over, strict=True):
            if end:
                env.reset()
        infos = {"final_obs": final, "final_info": told} if over.any() else {}
        return np.stack([env.key for env in self.envs]), reward, terminated, truncated, infos


def wrapped(mode: AutoresetMode) -> VectorWrapper:
    """What is wrapped can't be taken apart."""
    return VectorWrapper(SyncVectorEnv([Game] * len(SEEDS), autoreset_mode=mode))


WAYS: dict[str, Callable[[], Any]] = {
    "callable": lambda: Game,
    "callable, numpy's bool": lambda: lambda: Game(np.bool_),
    "callable, number": lambda: lambda: Game(lambda wins: np.array([0.5 * wins])),
    "sync same-step": lambda: SyncVectorEnv([Game] * len(SEEDS), autoreset_mode=SAME),
    "wrapped next-step": lambda: wrapped(NEXT),
    "wrapped same-step": lambda: wrapped(SAME),
    "wrapped disabled": lambda: wrapped(DISABLED),
    "async": lambda: AsyncVectorEnv([Game] * len(SEEDS)),
    "infos without masks": lambda: Native(per_stream=False),
    "infos per stream": lambda: Native(per_stream=True),
}


def endings(env: VectorEnv, steps: int = 60) -> list[tuple[int, int, bool]]:
    """``(seed, episode, success)`` of every ending."""
    row = allocate_row(env.spaces.observation, env.num_streams)
    env.restart(SEEDS, row.obs)
    found = []
    for number in range(steps):
        row.success[:] = number % 2 == 0  # old contents must not shine through
        env.send(np.zeros(env.num_streams, np.int64))
        env.recv(row)
        for stream in np.flatnonzero(row.terminated | row.truncated):
            seed, episode, _ = row.obs["obs"].reshape(env.num_streams, -1)[stream, -3:].tolist()
            found.append((seed, episode, bool(row.success[stream])))
    return found


@pytest.mark.parametrize("rule", ["info:won", "reward>0.3", "reward>0.79"])
@pytest.mark.parametrize("way", WAYS)
def test_every_ending_says_what_the_script_says(way: str, rule: str) -> None:
    env = make_vector_env(WAYS[way](), len(SEEDS), success=rule)
    assert env.description.success == rule
    found = endings(env)
    env.close()
    assert len(found) > 20
    assert {seed for seed, _, _ in found} == set(SEEDS)
    assert {success for _, _, success in found} == {True, False}
    assert found == [(seed, episode, won(seed, episode)) for seed, episode, _ in found]


def test_greater_is_strict_in_the_precision_of_rewards() -> None:
    for rule, none in (("reward>0.8", True), ("reward>-1", False)):
        found = endings(make_vector_env(Game, 3, success=rule))
        assert [success for _, _, success in found] == [not none] * len(found)


@pytest.mark.parametrize("rule", ["info:won", "reward>0.5"])
def test_neither_stacks_nor_clipped_rewards_change_it(rule: str) -> None:
    env = make_vector_env(
        Game, 3, success=rule, frame_stack=2, reward_clip="soft_asymmetric", observe_last=True
    )
    found = endings(env)
    assert found == [(seed, episode, won(seed, episode)) for seed, episode, _ in found]


def test_without_a_rule_nothing_is_defined_and_nothing_written() -> None:
    for env in (make_vector_env(Game, 3), make_vector_env("CartPole-v1", 3)):
        assert env.description.success is None
        row = allocate_row(env.spaces.observation, 3)
        env.restart(SEEDS, row.obs)
        for number in range(30):
            row.success[:] = number % 2 == 0
            env.send(np.zeros(3, np.int64))
            env.recv(row)
            assert (row.success == (number % 2 == 0)).all()
        env.close()


def test_envpools_info() -> None:
    """Its numbers: of environment 0 the id is no success, of the others it is."""
    pytest.importorskip("envpool")
    env = make_vector_env("CartPole-v1", 3, backend="envpool", success="info:env_id")
    assert env.description.success == "info:env_id"
    row = allocate_row(env.spaces.observation, 3)
    env.restart(SEEDS, row.obs)
    seen = set()
    for _ in range(60):
        env.send(np.zeros(3, np.int64))
        env.recv(row)
        seen |= {(int(i), bool(row.success[i])) for i in np.flatnonzero(row.terminated)}
    assert seen == {(0, False), (1, True), (2, True)}
    env.close()


@pytest.mark.parametrize("backend", ["ale", "gymnasium"])
def test_info_of_atari_games(backend: str) -> None:
    """Pong has no lives, so none is left; Breakout is cut off with some."""
    pytest.importorskip("ale_py")
    for game, success in (("Pong-v5", False), ("Breakout-v5", True)):
        limits = {"max_episode_steps": 3, "noop_max": 1}
        env = make_vector_env(game, 1, backend=backend, kwargs=limits, success="info:lives")
        assert (env.description.success, env.description.backend) == ("info:lives", backend)
        row = allocate_row(env.spaces.observation, 1)
        env.restart([1], row.obs)
        count = 0
        for number in range(12):
            row.success[:] = number % 2 == 0
            env.send(np.zeros(1, np.int64))
            env.recv(row)
            if row.truncated[0]:
                count += 1
                assert bool(row.success[0]) == success
        assert count >= 2
        env.close()


@pytest.mark.parametrize("way", ["callable", "wrapped next-step", "wrapped same-step", "async"])
def test_a_key_that_is_missing_is_told_with_those_that_are_there(way: str) -> None:
    env = make_vector_env(WAYS[way](), len(SEEDS), success="info:wonn")
    says = (
        r"'info:wonn' must have info\['wonn'\] at every ending, got .* with \['at', 'won'\]; name"
    )
    with pytest.raises(ConfigError, match=says):
        endings(env)
    env.close()


def test_envpools_keys_are_told() -> None:
    pytest.importorskip("envpool")
    env = make_vector_env("CartPole-v1", 3, backend="envpool", success="info:won")
    with pytest.raises(ConfigError, match=r"CartPole-v1 \(envpool\) with \['elapsed_step', 'env_"):
        endings(env)
    env.close()


class Shy(Game):
    """Says it at every step but where an episode was lost."""

    def step(self, action):
        *rest, terminated, truncated, info = super().step(action)
        lost = (terminated or truncated) and not info["won"]
        return *rest, terminated, truncated, {"at": info["at"]} if lost else info


@pytest.mark.parametrize("way", ["callable", "vector"])
def test_a_key_that_is_missing_at_one_ending_is_an_error_too(way: str) -> None:
    """Else a rate over the others would pass for that of all."""
    given = Shy if way == "callable" else VectorWrapper(SyncVectorEnv([Shy] * 3))
    says = r"with \['at'\]; name"
    if way == "vector":
        says = r"with \['at', 'won'\]; name"  # the other streams', which are at other steps
    with pytest.raises(ConfigError, match=says):
        endings(make_vector_env(given, 3, success="info:won"))


@pytest.mark.parametrize("value", [None, "yes", [True, False], float("nan"), {}])
def test_what_is_no_truth_value_is_refused(value: Any) -> None:
    def one() -> Game:
        return Game(lambda _: value)

    for given in (one, VectorWrapper(SyncVectorEnv([one] * 3))):
        with pytest.raises(ConfigError, match=r"one number or truth value in info\['won'\]"):
            endings(make_vector_env(given, 3, success="info:won"))


@pytest.mark.parametrize(
    "rule", ["", "reward", "reward>", "reward>x", "reward>nan", "reward>inf", "reward<1", "info:",
             "won", "reward>=1", "info"],
)  # fmt: skip
def test_what_is_no_rule_is_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"success: .*must be 'reward>NUMBER' .* or 'info:KEY'"):
        make_vector_env(Game, 3, success=rule)


def test_rules_are_read() -> None:
    assert read_rule("reward>0") == (0.0, None)
    assert read_rule("reward>-0.5") == (-0.5, None)
    assert read_rule("reward>1e3") == (1000.0, None)
    assert read_rule("info:is_success") == (None, "is_success")
    assert read_rule("info:a:b>c") == (None, "a:b>c")
