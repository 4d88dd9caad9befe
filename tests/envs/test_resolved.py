"""The record of an environment: what it says, and that nothing after it has to ask again."""

import pickle
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs_helpers import record
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv
from pydantic import ValidationError
from toys_helpers import EndlessPay

from quintet.envs import atari, backends, resolved
from quintet.envs.config import EnvConfig
from quintet.envs.env_source import EnvLike, settle
from quintet.envs.make import make_group_env
from quintet.envs.resolved import ResolvedEnv, resolve_env
from quintet.errors import ConfigError

TOY = "toys_helpers:EndlessPay"
SEVERAL = partial(gymnasium.make_vec, "CartPole-v1", vectorization_mode="sync", num_envs=1)


def resolve(given: EnvLike, **options: Any) -> ResolvedEnv:
    says, source = settle(given)
    return resolve_env(EnvConfig(**(says | options)), source)


@pytest.mark.parametrize(
    ("given", "options", "backend", "kind", "name", "family"),
    [
        ("CartPole-v1", {}, "envpool", "id", "CartPole-v1", "classic_control"),
        ("Hopper-v4", {}, "envpool", "id", "Hopper-v4", "mujoco"),
        ("CartPole-v1", {"backend": "gymnasium"}, "gymnasium", "id", "", ""),
        ("ALE/Pong-v5", {}, "envpool", "id", "Pong-v5", "atari"),
        ("Pong-v5", {"backend": "ale"}, "ale", "id", "pong", "atari"),
        ("Pong-v5", {"backend": "gymnasium"}, "gymnasium", "id", "pong", ""),
        (TOY, {}, "gymnasium", "maker", "", ""),
        ("gymnasium:CartPole-v1", {}, "gymnasium", "maker", "", ""),
        (EndlessPay, {}, "gymnasium", "maker", "", ""),
        (SEVERAL, {}, "gymnasium", "group maker", "", ""),
        (SyncVectorEnv([EndlessPay] * 3), {}, "gymnasium", "vector environment", "", ""),
    ],
)
def test_what_it_says(
    given: EnvLike, options: dict[str, Any], backend: str, kind: str, name: str, family: str
) -> None:
    env = resolve(given, **options)
    assert (env.config.backend, env.kind, env.name, env.family) == (backend, kind, name, family)
    assert (env.atari is not None) == ("Pong" in str(given))
    vector = kind == "vector environment"
    assert env.streams_of(1) == (3 if vector else 1)


def test_the_options_of_an_atari_game_are_those_in_force() -> None:
    for backend in ("envpool", "ale", "gymnasium"):
        env = resolve("Pong-v5", backend=backend, kwargs={"frame_skip": 2})
        assert env.atari is not None
        assert (env.atari.frame_skip, env.atari.stack_num) == (2, 4)
        with pytest.raises(ConfigError, match="noop_max: Input should be greater"):
            resolve("Pong-v5", backend=backend, kwargs={"noop_max": 0})
    assert resolve("Pong-v5", kwargs={"img_height": 42}).atari is not None  # EnvPool has more
    with pytest.raises(ConfigError, match="got \\['img_height'\\]"):
        resolve("Pong-v5", backend="ale", kwargs={"img_height": 42})


def test_a_users_id_of_a_games_name_is_no_game(monkeypatch: pytest.MonkeyPatch) -> None:
    own = EnvSpec("Pong-v5", entry_point=EndlessPay)
    monkeypatch.setitem(gymnasium.registry, "Pong-v5", own)
    assert resolve("Pong-v5", backend="gymnasium").atari is None
    assert resolve("ALE/Pong-v5", backend="gymnasium").atari is not None


def test_nothing_of_the_users_is_imported() -> None:
    env = resolve("no_such_module:make")
    assert env.config.backend == "gymnasium"
    with pytest.raises(ConfigError, match="can't be imported: No module named 'no_such_module'"):
        assert env.kind


def test_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, pictures in ((2, 8), (4, 4)):
        monkeypatch.setattr(backends, "usable_cores", lambda count=count: count)
        for env_id, options, size in (
            ("Pong-v5", {}, pictures),
            ("Pong-v5", {"backend": "ale"}, pictures),
            ("Pong-v5", {"backend": "gymnasium"}, 8),  # steps that this process takes itself
            ("Hopper-v4", {}, 4),
            ("Hopper-v4", {"num_streams": 7}, 7),
            ("Hopper-v4", {"streams_per_group": 2}, 2),
            ("CartPole-v1", {}, 8),  # cheap steps
            ("Hopper-v5", {"backend": "gymnasium"}, 8),
            ("some.module:make", {}, 8),
        ):
            env = resolve(env_id, **({"num_streams": 8} | options))
            assert env.group_size == size, (env_id, options)
            assert options.get("streams_per_group") or env.auto_num_groups in (1, 8 // size)
    assert EnvConfig(id="x", num_streams=9, streams_per_group=3).num_groups == 3
    with pytest.raises(ValidationError, match="must divide num_streams"):
        EnvConfig(id="x", num_streams=8, streams_per_group=3)
    with pytest.raises(ValidationError, match="Extra inputs"):
        EnvConfig(id="x", num_stream=8)


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "usable_cores", lambda: 8)
    for env_id, options, size, threads in (
        ("Pong-v5", {}, 16, 8),
        ("Pong-v5", {}, 8, 4),  # the other group has the other cores
        ("Pong-v5", {"backend": "ale"}, 16, 8),
        ("Pong-v5", {"num_threads": 3}, 16, 3),
        ("CartPole-v1", {}, 16, 1),
        (TOY, {}, 16, 1),
    ):
        env = resolve(env_id, num_streams=16, **options)
        assert env.num_threads(size) == threads, (env_id, options)
        assert env.auto_num_threads(size) == (8 if options.get("num_threads") else threads)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ("CartPole-v1", {}),
        ("Pong-v5", {}),
        ("Pong-v5", {"backend": "ale"}),
        ("Pong-v5", {"backend": "gymnasium"}),
        (TOY, {}),
        (EndlessPay, {}),
        (SEVERAL, {}),
    ],
)
def test_another_process_makes_the_same_without_asking_again(
    given: EnvLike, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = resolve(given, num_streams=2, **options)
    sent = pickle.dumps(env)
    actions = np.zeros((3, 2), np.int64)
    here = record(make_group_env(env, 2), [1, 2], actions)

    def asked(*_: object) -> None:
        raise AssertionError("resolved again")

    monkeypatch.setattr(resolved, "resolve_backend", asked)
    monkeypatch.setattr(atari, "rom_of", asked)
    there = record(make_group_env(pickle.loads(sent), 2), [1, 2], actions)
    for path, seen in here.obs.items():
        np.testing.assert_array_equal(seen, there.obs[path])


def test_other_options_leave_the_rest() -> None:
    env = resolve("Pong-v5", kwargs={"noop_max": 1}, reward_clip="abs_one")
    raw = env.with_options({"reward_clip": "none"})
    assert (raw.config.reward_clip, env.config.reward_clip) == ("none", "abs_one")
    assert (raw.name, raw.atari, raw.config.kwargs) == (env.name, env.atari, env.config.kwargs)
