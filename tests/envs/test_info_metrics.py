"""The environment's own numbers in info, through every way in, against the script that says so."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import agents_helpers
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper

from quintet.envs.config import EnvConfig
from quintet.envs.env_source import settle
from quintet.envs.info_metrics import read_terms
from quintet.envs.make import make_group_env
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.settled import keys_in_info, with_metrics
from quintet.envs.tensor import TensorStep
from quintet.envs.vector import VectorEnv, allocate_row
from quintet.errors import ConfigError

SEEDS = [3, 8, 14]
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
ASKED = "cost:sum, speed:mean, deep/er:max, deep.least:min, end, flat/key, rare:sum"


def length_of(seed: int, episode: int) -> int:
    return 1 + (7 * seed + 5 * episode + episode // 3) % 5


def info_of(seed: int, episode: int, step: int) -> dict[str, Any]:
    over = step + 1 == length_of(seed, episode)
    info: dict[str, Any] = {
        "cost": float(seed + step),
        "speed": np.float32(step**2 - episode),
        "deep": {"er": -step - seed, "least": 5 - step, "name": "x"},
        "flat/key": step % 2 == 0,
        "name": "none",
    }
    if over:
        info["end"] = 100.0 * seed + episode
    if seed == 8 and step == 1:
        info["rare"] = 2
    return info


def expected(seed: int, episode: int) -> list[float]:
    infos = [info_of(seed, episode, step) for step in range(length_of(seed, episode))]
    rare = [info["rare"] for info in infos if "rare" in info]
    return [
        sum(info["cost"] for info in infos),
        float(np.mean([info["speed"] for info in infos])),
        max(info["deep"]["er"] for info in infos),
        min(info["deep"]["least"] for info in infos),
        100.0 * seed + episode,
        float(infos[-1]["flat/key"]),
        sum(rare) if rare else np.nan,
    ]


class Game(gymnasium.Env):
    """Observes (seed, episode, step)."""

    metadata: ClassVar = {}

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 10_000, (3,), np.int64)
        self.action_space = spaces.Discrete(2)
        self.key = (0, -1, 0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        seed, episode = (self.key[0], self.key[1]) if seed is None else (seed, -1)
        self.key = (seed, episode + 1, 0)
        return np.array(self.key), {"cost": 1e6, "end": -1.0, "speed": 1e6}

    def step(self, action):
        seed, episode, step = self.key
        self.key = (seed, episode, step + 1)
        over = step + 1 == length_of(seed, episode)
        cut = over and episode % 2 == 1
        return np.array(self.key), 1.0, over and not cut, cut, info_of(seed, episode, step)


class Native(gymnasium.vector.VectorEnv):
    """Same-step resets whose infos are a dict for each stream."""

    def __init__(self, num_envs: int = len(SEEDS)) -> None:
        self.envs = [Game() for _ in range(num_envs)]
        self.num_envs, self.metadata = num_envs, {"autoreset_mode": "SameStep"}
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
        told = [s[4] if end else None for s, end in zip(steps, over, strict=True)]
        infos: Any = {
            "cost": np.array([s[4]["cost"] for s in steps]),
            "speed": [s[4]["speed"] for s in steps],
            "deep": {k: np.array([s[4]["deep"][k] for s in steps]) for k in ("er", "least")},
            "rare": np.array([s[4].get("rare") for s in steps]),
        }
        for env, end in zip(self.envs, over, strict=True):
            if end:
                env.reset()
        if over.any():
            infos |= {"final_obs": final, "final_info": np.array(told)}
        return np.stack([env.key for env in self.envs]), reward, terminated, truncated, infos


def wrapped(mode: AutoresetMode) -> VectorWrapper:
    """What is wrapped can't be taken apart."""
    return VectorWrapper(SyncVectorEnv([Game] * len(SEEDS), autoreset_mode=mode))


WAYS: dict[str, Callable[[], Any]] = {
    "callable": lambda: Game,
    "wrapped next-step": lambda: wrapped(NEXT),
    "wrapped same-step": lambda: wrapped(SAME),
    "wrapped disabled": lambda: wrapped(DISABLED),
    "async": lambda: AsyncVectorEnv([Game] * len(SEEDS)),
    "final infos per stream": Native,
}


def of(env: Any, metrics: str = ASKED, **options: Any) -> ResolvedEnv:
    says, source = settle(env)
    given = {"num_streams": 3, **says, "metrics": metrics, **options}
    return resolve_env(EnvConfig(**given), source)


def settled(env: Any, metrics: str = "auto", **options: Any) -> str:
    return with_metrics(of(env, metrics, **options), keys_in_info).config.metrics


def endings(
    env: VectorEnv, steps: int = 60, seeds: Sequence[int] = SEEDS
) -> list[tuple[int, int, list[float]]]:
    """``(seed, episode, metrics)`` of every ending, after a restart within an episode."""
    row = allocate_row(env.spaces.observation, env.num_streams, len(env.description.metrics))
    assert row.metrics is not None
    env.restart([7] * len(seeds), row.obs)
    for number in range(steps):
        if number == 1:
            env.restart(seeds, row.obs)
            found = []
        row.metrics[:] = 1e9  # old contents must not shine through
        env.send(np.zeros(env.num_streams, np.int64))
        env.recv(row)
        for stream in np.flatnonzero(row.terminated | row.truncated) if number else ():
            seed, episode, _ = row.obs["obs"].reshape(env.num_streams, -1)[stream, -3:].tolist()
            found.append((seed, episode, row.metrics[stream].tolist()))
    return found


@pytest.mark.parametrize("way", WAYS)
def test_every_ending_has_what_the_script_says(way: str) -> None:
    resolved = of(WAYS[way](), frame_stack=2, reward_clip="abs_one")
    env = make_group_env(resolved, 3)
    assert env.description.metrics == tuple(term.name for term in read_terms(ASKED))
    found = endings(env)
    env.close()
    assert len(found) > 20
    for seed, episode, metrics in found:
        np.testing.assert_allclose(metrics, np.float32(expected(seed, episode)), err_msg=way)
    rare = [metrics[-1] for seed, _, metrics in found if seed == 8]
    assert 0 < np.isnan(rare).sum() < len(rare)


def test_without_metrics_there_is_no_memory_and_nothing_reads() -> None:
    for asked in ("none", "auto"):
        env = make_group_env(of(Game, asked), 3)
        assert env.description.metrics == ()
        assert env.infos is None
        assert allocate_row(env.spaces.observation, 3).metrics is None


@pytest.mark.parametrize("env", [Game, lambda num_envs: Native(num_envs)])
def test_auto_takes_the_numbers_at_the_end_of_an_episode(env: Any) -> None:
    ends = {"cost:last", "speed:last", "deep/er:last", "deep/least:last", "flat/key:last"}
    found = set(settled(env).split(", "))
    assert found == ends | {"end:last"} or env is not Game
    assert found >= {"cost:last", "end:last"}


class Says(gymnasium.Env):
    """Ends after three steps, and says the same at each."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,))

    def __init__(self, info: Any) -> None:
        self.info, self.at = info, 0

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.at += 1
        return np.zeros(2, np.float32), 0.0, self.at == 3, False, self.info


MACHINERY = {
    "env_id": 3, "elapsed_steps": 7, "elapsed_step": 7, "lives": 3, "TimeLimit.truncated": False,
    "players": {"env_id": 1}, "episode": {"r": 1.0, "l": 3, "t": 0.1}, "final_info": {"x": 1.0},
    "name": "walk", "vector": np.zeros(3), "none": None, "a,b": 1.0, "_mask": True, "seed": 4,
    "nested": {"lives": 2}, "object": object(),
}  # fmt: skip


def test_auto_leaves_out_what_is_no_number_of_the_environment_and_more_than_32() -> None:
    assert settled(lambda: Says(MACHINERY)) == "none"
    assert settled(lambda: Says(None)) == "none"
    assert settled(lambda: Says(MACHINERY | {"crashed": np.False_})) == "crashed:last"
    env = with_metrics(of(lambda: Says({f"k{i}": i for i in range(40)}), "auto"), keys_in_info)
    assert len(env.terms) == 32
    assert "8 more are left out" in env.notes[0]
    assert settled(wrapped(NEXT)) == "none", "there is no other one to look at"


def test_patterns_stand_for_the_keys_that_they_fit() -> None:
    info = {"achievements": {"wood": 1, "iron": 0}, "achieved": 2.0, "cost": 1.0, "name": "x"}
    found = settled(lambda: Says(info), "achievements/*:max, cost:sum, *:mean")
    assert found == "cost:sum, achievements/wood:max, achievements/iron:max, achieved:mean"
    with pytest.raises(ConfigError, match=r"'x\*' must match .* actions were achievements/w"):
        settled(lambda: Says(info), "x*")
    with pytest.raises(ConfigError, match="name the keys, since no second"):
        settled(wrapped(NEXT), "*:sum")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (
            "cost:sums",
            "KEY:REDUCTION, got 'cost:sums': write them as 'cost:sum, speed:mean', with one of",
        ),
        ("a:sum,", "got ''"),
        ("a.b:sum, a/b", "must name each key once, got 'a.b' twice"),
    ],
)
def test_what_can_not_be_read(asked: str, says: str) -> None:
    with pytest.raises(ValueError, match="metrics") as caught:
        EnvConfig(id="x", metrics=asked)
    assert says in str(caught.value)
    assert EnvConfig(id="x", metrics=" a ,b.c:max").metrics == "a:last, b.c:max"


@pytest.mark.parametrize("way", ["callable", "wrapped next-step", "wrapped same-step"])
def test_a_text_is_refused(way: str) -> None:
    env = make_group_env(of(WAYS[way](), "name:sum"), 3)
    with pytest.raises(ConfigError, match=r"env\.metrics name:sum must have one number in info"):
        endings(env)
    env.close()


def test_numbers_that_are_not_finite_do_not_count() -> None:
    info = {"a": np.nan, "b": np.inf, "c": None, "d": 2}
    env = make_group_env(of(lambda: Says(info), "a:sum, b:max, c:mean, d:sum"), 1)
    row = allocate_row(env.spaces.observation, 1, 4)
    env.restart([1], row.obs)
    for _ in range(3):
        env.send(np.zeros((1, 1), np.float32))
        env.recv(row)
    np.testing.assert_array_equal(row.metrics, [[np.nan, np.nan, np.nan, 6.0]])


class Counting(agents_helpers.Game):
    def step(self, actions):
        *rest, infos = super().step(actions)
        return *rest, {agent: {"n": 1, "t": self.t} for agent in infos}


@pytest.mark.parametrize("limit", [None, 4])
def test_a_game_that_is_cut_counts_each_info_once(limit: int | None) -> None:
    options = {"backend": "pettingzoo", "max_episode_steps": limit}
    env = make_group_env(of(lambda: Counting(), "n:sum, t", **options), 3)
    row = allocate_row(env.spaces.observation, 3, 2)
    env.restart(SEEDS, row.obs)
    length, count = limit or 9, 0
    for _ in range(24):
        env.send(np.zeros(3, np.int64))
        env.recv(row)
        if row.truncated.any():
            count += 1
            assert row.metrics.tolist() == [[length, length]] * 3
    assert count >= 2
    env.close()


def test_pools_of_envpool() -> None:
    pytest.importorskip("envpool")
    assert settled("CartPole-v1", backend="envpool") == "none"
    env = make_group_env(of("CartPole-v1", "elapsed_step:max, env_id", backend="envpool"), 3)
    row = allocate_row(env.spaces.observation, 3, 2)
    env.restart(SEEDS, row.obs)
    steps = np.zeros(3)
    for _ in range(40):
        env.send(np.zeros(3, np.int64))
        env.recv(row)
        steps = (steps + 1) * row.valid
        for stream in np.flatnonzero(row.terminated):
            assert row.metrics[stream].tolist() == [steps[stream], stream]
    env.close()


class Floats:
    """Two streams on a device, whose first ends at every third step."""

    def __init__(self) -> None:
        made = make_group_env(of(lambda: Says({}), "none"), 2)
        self.spaces, self.description, self.num_streams = made.spaces, made.description, 2
        self.device, self.autoreset = torch.device("cpu"), SAME
        self.restarts, self.generators, self.at = True, None, 0

    def restart(self, seed):
        self.at = 0
        return {"obs": torch.zeros(2, 2)}

    def step(self, action):
        self.at += 1
        x = torch.tensor([self.at, -self.at])
        info = {"cost": x, "deep": {"x": x.double()}, "rare": torch.where(x == 2, 1.0, torch.nan)}
        over, never = torch.tensor([self.at % 3 == 0, False]), torch.zeros(2, dtype=torch.bool)
        obs = {"obs": torch.zeros(2, 2)}
        return TensorStep(obs, torch.zeros(2), over, never, None, None, info)

    def close(self):
        pass


def test_tensors() -> None:
    asked = "cost:sum, deep/x:mean, rare:sum, cost2, deep.x2:max"
    env = make_group_env(of(Floats(), asked.replace("cost2", "deep"), num_streams=2), 2)
    row = allocate_row(env.spaces.observation, 2, 5)
    env.restart([1, 2], row.obs)
    with pytest.raises(Exception, match="deep:last must have one number"):
        env.send(np.zeros((2, 1), np.float32))
    env = make_group_env(
        of(Floats(), "cost:min, deep/x:mean, rare:sum, deep.none", num_streams=2), 2
    )
    env.restart([1, 2], row.obs)
    row = allocate_row(env.spaces.observation, 2, 4)
    found = []
    for _ in range(7):
        env.send(np.zeros((2, 1), np.float32))
        env.recv(row)
        found += [row.metrics[0].tolist()] if row.terminated[0] else []
    # The second episode begins with the step after its reset row.
    np.testing.assert_array_equal(found, [[1, 2, 1, np.nan], [5, 5.5, np.nan, np.nan]])
