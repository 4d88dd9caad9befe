"""Which environments bring the same episode again by ``reset(seed)`` alone."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from small_run_helpers import SMALL

import quintet
from quintet.envs import random_play, repeating
from quintet.envs.config import EnvConfig
from quintet.envs.make import make_group_env
from quintet.envs.repeating import unrepeatable
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.envs.vector import allocate_obs, allocate_row

REAL = {name: getattr(repeating, name) for name in ("_ROWS", "_USED")}


@pytest.fixture(autouse=True)
def all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in REAL.items():
        monkeypatch.setattr(repeating, name, number)


class Ten(gymnasium.Env):
    """Ten steps of random numbers; pays `pay` of the number of episodes so far."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    made = 0

    def __init__(self, pay: Any = lambda played: 1.0, saves: bool = True) -> None:
        Ten.made += 1
        self.pay, self.played, self.saves = pay, 0, saves

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        self.played += 1
        return self.np_random.random(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        obs = self.np_random.random(1, np.float32)
        return obs, float(self.pay(self.played)), self.left == 0, False, {}


class Saving(Ten):
    """Offers its state, if `saves`."""

    def state_dict(self) -> dict[str, Any]:
        return {"played": np.array([self.played]) if self.saves else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["played"] is not None:
            self.played = int(state["played"][0])


class Masked(Ten):
    """Its actions follow a mask that its observations give."""

    observation_space = spaces.Dict(x=Ten.observation_space, action_mask=spaces.MultiBinary(2))

    def reset(self, *, seed=None, options=None):
        return self.seen(super().reset(seed=seed)[0]), {}

    def seen(self, x):
        self.allowed = int(x[0] * 1_000) % 2
        return {"x": x, "action_mask": np.eye(2, dtype=np.int8)[self.allowed]}

    def step(self, action):
        assert action == self.allowed
        obs, *others = super().step(action)
        return self.seen(obs), *others


class Numbered(Ten):
    """What it pays depends on how many were made."""

    def __init__(self) -> None:
        number = Ten.made
        super().__init__(lambda _: number)


def vector_of(make: Any, num_envs: int) -> Any:
    return gymnasium.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv([make] * num_envs))


class Vector:
    """A maker of vector environments."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __call__(self, num_envs: int) -> Any:
        return vector_of(self.make, num_envs)


def own_noise() -> gymnasium.Env:
    draw = np.random.default_rng()
    return gymnasium.wrappers.TransformReward(Ten(), lambda r: r + draw.normal())


def statistics() -> gymnasium.Env:
    return gymnasium.wrappers.NormalizeObservation(Ten())


def levels(played: int) -> int:
    return played // 20


def linear(played: int) -> int:
    return played


def of(maker: Any, **options: Any) -> ResolvedEnv:
    return resolve_env(EnvConfig(id="given", backend="gymnasium", **options), maker)


KEEPS = "it keeps something over resets"

CASES: list[tuple[Any, dict[str, Any], str]] = [
    (statistics, {"fresh_at_checkpoints": True}, ""),
    (Ten, {}, ""),
    (partial(Ten, linear), {}, f"(reward at step 1): {KEEPS}"),
    (partial(Ten, levels), {}, f"(reward at step 1): {KEEPS}"),
    (own_noise, {}, f"(reward at step 1): {KEEPS}"),
    (statistics, {}, ""),  # the state of Gymnasium's wrappers is known
    (Vector(Ten), {}, ""),
    (Vector(partial(Ten, levels)), {}, KEEPS),
    (partial(Saving, levels), {}, ""),
    (partial(Saving, levels, False), {}, "its state_dict() lacks something"),
    (partial(Ten, levels), {"fresh_at_checkpoints": True}, ""),
    (Vector(partial(Ten, levels)), {"fresh_at_checkpoints": True}, ""),
    (Numbered, {"fresh_at_checkpoints": True}, "it leaves something in its class"),
    (partial(Ten, levels), {"frame_stack": 2, "reward_clip": "abs_one"}, KEEPS),
    (partial(Saving, levels), {"frame_stack": 2, "observe_last": True}, ""),
    (partial(Masked, levels), {}, KEEPS),
]


@pytest.mark.parametrize(("maker", "options", "said"), CASES)
def test_environments_that_do_not_repeat_are_found(maker: Any, options: Any, said: str) -> None:
    found = unrepeatable(of(maker, **options))
    assert (said in found) if said else not found, found


def test_a_pause_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under load, where other processes run meanwhile."""
    clock, pauses = random_play.perf_counter, iter([0.0, 0.0])
    paused = [0.0]

    def later() -> float:
        paused[0] += next(pauses, 0.15)
        return clock() + min(paused[0], 1.5)

    monkeypatch.setattr(random_play, "perf_counter", later)
    said: list[str] = []
    assert KEEPS in unrepeatable(of(partial(Ten, levels)), say=said.append)
    assert unrepeatable(of(Ten), say=said.append) == ""
    assert not said


@pytest.mark.parametrize("limit", ["_MOST_CPU_S", "_MOST_S"])
def test_a_check_that_a_limit_ends_says_so(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(random_play, limit, -1.0)
    said: list[str] = []
    assert unrepeatable(of(partial(Ten, levels)), say=said.append) == ""
    assert said == [
        "resumes seem exact after a check of 2 steps, not 464, since a step of given is slow; "
        "quintet check-env checks more"
    ]


def test_the_note_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_play, "_MOST_S", -1.0)
    quintet.train("ppo", Ten, 128, run_dir=tmp_path, config=SMALL)
    assert "resumes seem exact after a check of 2 steps" in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Taxi-v4", "Pendulum-v1", "Blackjack-v1"])
def test_environments_of_gymnasium_repeat(env_id: str) -> None:
    assert unrepeatable(resolve_env(EnvConfig(id=env_id, backend="gymnasium"))) == ""


def test_a_vector_environment_that_is_given_is_the_only_one() -> None:
    assert "can't be made again" in unrepeatable(of(vector_of(Ten, 2)))
    assert unrepeatable(of(SyncVectorEnv([Ten] * 2))) == "", "its makers make others"


def test_the_only_environment_that_can_be_made_is_not_known_to_repeat() -> None:
    ready = iter([Ten()])
    env = of(lambda: next(ready))
    made = make_group_env(env, 1)
    assert "no second environment can be made" in unrepeatable(env)
    made.close()


def test_the_working_folder_and_shared_generators_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    class Wandering(Ten):
        def reset(self, **given):
            (tmp_path / "there").mkdir(exist_ok=True)
            monkeypatch.chdir(tmp_path / "there")
            np.random.random()
            return super().reset(**given)

    np.random.seed(3)
    assert unrepeatable(of(Wandering)) == ""
    assert Path.cwd() == tmp_path
    got = np.random.random()
    np.random.seed(3)
    assert got == np.random.random()


@pytest.mark.parametrize("maker", [partial(Ten, linear), Vector(partial(Ten, linear))])
@pytest.mark.parametrize("fresh", [False, True])
def test_environments_live_over_restarts_unless_fresh_ones_are_asked_for(
    maker: Any, fresh: bool
) -> None:
    env = make_group_env(of(maker, fresh_at_checkpoints=fresh), 2)
    obs, row = allocate_obs(env.spaces.observation, (2,)), allocate_row(env.spaces.observation, 2)
    rewards = []
    for seeds in ([1, 2], [3, 4], [5, 6]):
        env.restart(seeds, obs)
        env.send(np.zeros(2, np.int64))
        env.recv(row)
        rewards.append(row.raw_reward.tolist())
    env.close()
    assert rewards == [[1, 1]] * 3 if fresh else rewards == [[1, 1], [2, 2], [3, 3]]
