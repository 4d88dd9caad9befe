"""From names to environments, and the messages when that fails."""

import importlib.util
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from envs_helpers import record
from toys_helpers import EndlessPay

from quintet.envs.config import EnvConfig
from quintet.envs.ids import list_envs, resolve_backend
from quintet.envs.make import make_group_env
from quintet.envs.public import make_vector_env
from quintet.envs.resolved import resolve_env
from quintet.envs.toy import Contextual, FinitePay, Target
from quintet.errors import ConfigError


@pytest.fixture
def hide(monkeypatch):
    """Makes packages look as if they weren't installed."""
    found, hidden = importlib.util.find_spec, []
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name in hidden else found(name, *a)
    )
    return hidden.extend


@pytest.fixture
def without_envpool(hide):
    hide(["envpool"])


def test_auto_prefers_envpool_and_can_be_overruled():
    assert resolve_backend("CartPole-v1") == "envpool"
    assert resolve_backend("CartPole-v1", "gymnasium") == "gymnasium"
    assert resolve_backend("CliffWalking-v1") == "envpool"
    assert resolve_backend("quintet.envs.toy:Target") == "gymnasium"
    with pytest.raises(ConfigError, match="needs one of EnvPool's ids"):
        resolve_backend("quintet.envs.toy:Target", "envpool")
    with pytest.raises(ConfigError, match="needs one of EnvPool's ids"):
        make_vector_env(Target, 2, backend="envpool")


def test_an_unknown_id_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"got 'CartPoll-v1'; nearest are .*CartPole-v1"):
        make_vector_env("CartPoll-v1")
    with pytest.raises(ConfigError, match=r"nearest are .*Pong-v5"):
        make_vector_env("pong")
    with pytest.raises(ConfigError, match="backend 'gymnasium' knows; got 'GoToDoor-v7'"):
        resolve_backend("GoToDoor-v7", "gymnasium")
    with pytest.raises(ConfigError, match="backend 'envpool' knows; got 'GymV21Environment-v0'"):
        resolve_backend("GymV21Environment-v0", "envpool")
    with pytest.raises(ConfigError, match=r"no known id is similar; .* package:id"):
        make_vector_env("qqqqqqqqqqqqqqqq")
    with pytest.raises(ConfigError, match=r"nearest are CartPole-v1, "):
        make_vector_env("cart_pole_v1")  # which is not taken for a game
    with pytest.raises(
        ConfigError, match=r"rps_v2:parallel_env, and games in turn as .*tictactoe_v3:env; "
    ):
        make_vector_env("simple_spread_v3")
    with pytest.raises(ConfigError, match=r"as pettingzoo.mpe.simple_spread_v3:parallel_env"):
        make_vector_env("pettingzoo.mpe.simple_spread_v3")


def test_an_id_of_another_version_is_answered_with_the_known_ones():
    taxi = [known for known in gymnasium.registry if known.startswith("Taxi-")]
    if "Taxi-v3" in taxi:
        pytest.skip("Gymnasium 1.1 has EnvPool's version")
    assert taxi
    here = f"depends on Gymnasium's, {gymnasium.__version__} here"
    with pytest.raises(
        ConfigError,
        match=rf"got 'Taxi-v3'; known ids of that name are {taxi[0]}; which .* {here}; "
        "backend 'envpool' knows it; see",
    ):  # fmt: skip
        resolve_backend("Taxi-v3", "gymnasium")
    for unknown in ("Taxi-v12", "Taxi"):
        with pytest.raises(ConfigError, match=rf"known ids of that name are {taxi[0]}, Taxi-v3"):
            resolve_backend(unknown)
    with pytest.raises(ConfigError, match=r"known ids of that name are (Taxi-v4, )?Taxi-v3; see"):
        resolve_backend("Taxi-v12", "envpool")


@pytest.mark.parametrize("backend", ["auto", "envpool", "ale", "gymnasium"])
@pytest.mark.parametrize("name", ["PongNoFrameskip-v4", "Pong-v4", "ALE/PongDeterministic-v0"])
def test_old_names_of_atari_games_are_answered_with_the_new_one(name, backend):
    for _ in range(2):  # the first answer may import ale-py, which registers such ids
        with pytest.raises(ConfigError, match=r"this game is Pong-v5 here, with its prep.*stack"):
            resolve_backend(name, backend)


def test_an_argument_that_only_gymnasium_has_is_told_with_the_backend():
    with pytest.raises(
        ConfigError, match=r"unknown env.kwargs \['is_slippery'\]; Gymnasium's FrozenLake-v1 takes "
        r"\['is_slippery'\]; use --env.backend gymnasium; known",
    ):  # fmt: skip
        make_vector_env("FrozenLake-v1", kwargs={"is_slippery": False})
    # EnvPool 1.2.7 has the argument too, Gymnasium 1.1 lacks it.
    if [backend for name, backend in list_envs("Taxi") if name == "Taxi-v4"] == ["gymnasium"]:
        with pytest.raises(ConfigError, match=r"--env.backend gymnasium --env Taxi-v\d; known"):
            make_vector_env("Taxi-v3", kwargs={"is_rainy": True})
    with pytest.raises(ConfigError, match=r"'sise': did you mean \['size'\]\?; known"):
        make_vector_env("FrozenLake-v1", kwargs={"sise": 8})


def test_what_a_package_declares_for_gymnasium_is_registered(tmp_path, monkeypatch):
    (tmp_path / "stray_games.py").write_text(
        "import gymnasium\n\n\ndef register():\n"
        "    gymnasium.register('Stray/Pole-v0', gymnasium.spec('CartPole-v1').entry_point)\n"
    )
    info = tmp_path / "stray_games-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stray-games\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gymnasium.envs]\nStray = stray_games:register\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        make_vector_env("stray_games:Stray/Pole-v0").close()
    finally:
        gymnasium.registry.pop("Stray/Pole-v0", None)


@pytest.mark.usefixtures("without_envpool")
def test_without_envpool_gymnasium_is_taken_and_the_install_line_told():
    assert resolve_backend("CartPole-v1") == "gymnasium"
    with pytest.raises(ConfigError, match=r'pip install "quintet-rl\[envpool\]"'):
        make_vector_env("CartPole-v1", backend="envpool")
    with pytest.raises(ConfigError, match=r"EnvPool, not installed, .*quintet-rl\[envpool\]"):
        make_vector_env("PickCube-v7")
    assert {backend for _, backend in list_envs("CartPole-v1")} == {"gymnasium", "pytorch"}


def test_atari_games_go_to_the_fastest_backend_that_is_there(hide):
    for env_id in ("Pong-v5", "ALE/Pong-v5"):
        assert resolve_backend(env_id) == "envpool"
        for backend in ("envpool", "ale", "gymnasium"):
            assert resolve_backend(env_id, backend) == backend
    hide(["envpool"])
    assert resolve_backend("Pong-v5") == "ale"
    assert ("ALE/Pong-v5", "ale") in list_envs("pong")
    hide(["ale_py"])
    assert "ale" not in {backend for _, backend in list_envs("pong")}
    with pytest.raises(ConfigError, match=r"not installed; run: pip install .quintet-rl\[atari\]"):
        resolve_backend("ALE/Pong-v5", "ale")
    with pytest.raises(ConfigError, match=r"EnvPool, not installed"):
        resolve_backend("Pong-v5")
    with pytest.raises(ConfigError, match="needs one of ALE's ids"):
        resolve_backend("quintet.envs.toy:Target", "ale")
    with pytest.raises(ConfigError, match="needs EnvPool, which is not installed"):
        resolve_backend("ALE/Pong-v5", "envpool")


def test_a_missing_package_of_gymnasium_is_told_with_its_install_line(monkeypatch):
    def missing(*_, **__):
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed")

    monkeypatch.setattr(gymnasium, "make", missing)
    with pytest.raises(ConfigError, match=r'needs a package .* pip install "quintet-rl\[mujoco\]"'):
        make_vector_env("HalfCheetah-v5", backend="gymnasium")
    with pytest.raises(ConfigError, match=r'pip install "quintet-rl\[box2d\]"'):
        make_vector_env("LunarLander-v3", backend="gymnasium")
    with pytest.raises(ConfigError, match=r'pip install "gymnasium\[toy-text\]"'):
        make_vector_env("FrozenLake-v1", backend="gymnasium")


def test_import_strings():
    env = make_vector_env("envs_helpers:make_box_env", 2, kwargs={"size": 5})
    got = record(env, [1, 2], np.zeros((2, 2), np.int64))
    assert got.obs["obs"].shape == (3, 2, 5)
    assert env.description.id == "envs_helpers:make_box_env"
    record(make_vector_env("gymnasium:CartPole-v1", 2), [1, 2], np.zeros((2, 2), np.int64))
    for name, says in (
        ("envs_helpers:make_bx_env", r"has neither; did you mean \['make_box_env'"),
        ("envs_helpers:not_callable", "must name a function or class"),
        ("no_such_module:make", "can't be imported: No module named 'no_such_module'"),
        (
            ":",
            r"must name a module as Python.s import does",
        ),
        ("quintet.nothing:make", "can't be imported: No module named 'quintet.nothing'"),
    ):
        with pytest.raises(ConfigError, match=says):
            make_vector_env(name, 2)
    with pytest.raises(ConfigError, match="raised TypeError"):
        make_vector_env("envs_helpers:make_box_env", 2, kwargs={"colour": 5})


def test_modules_of_the_working_folder_are_found(tmp_path, monkeypatch):
    (tmp_path / "my_local_env.py").write_text("from quintet.envs.toy import Target as Mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    assert make_vector_env("my_local_env:Mine", 2).num_streams == 2


def test_list_envs():
    assert ("Pong-v5", "envpool") in list_envs("pong")
    assert list_envs("CartPole-v?") == [
        ("CartPole-v0", "envpool"),
        ("CartPole-v0", "gymnasium"),
        ("CartPole-v1", "envpool"),
        ("CartPole-v1", "gymnasium"),
    ]
    assert list_envs("no such thing") == []
    assert len(list_envs()) > 900


def test_options_out_of_range_are_told_together():
    with pytest.raises(ConfigError, match=r"kwargs: .*dictionary, got 5"):
        make_vector_env("CartPole-v1", kwargs=5)
    with pytest.raises(ConfigError, match=r"num_streams: .* got 0.*; reward_clip: .* got 'some'"):
        make_vector_env("CartPole-v1", 0, reward_clip="some")


def test_a_group_is_made_of_as_many_streams_as_asked_for():
    resolved = resolve_env(EnvConfig(id="CartPole-v1", num_streams=8, frame_stack=2))
    env = make_group_env(resolved, 4)
    assert (env.num_streams, env.spaces.observation.shape) == (4, (2, 4))


def test_importing_does_not_import_the_backends():
    code = (
        "import sys, quintet.envs.make, quintet.envs.toy; "
        "sys.exit('envpool' in sys.modules or 'mujoco' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_toys_pay_their_known_optimum():
    endless = record(make_vector_env(EndlessPay, 1), [1], np.zeros((11, 1), np.int64))
    assert endless.reward.sum() == 10
    assert endless.truncated[:, 0].tolist() == [False] * 9 + [True, False]
    assert not endless.terminated.any()
    finite = record(make_vector_env(FinitePay, 1, kwargs={"n": 4}), [1], np.zeros((5, 1), np.int64))
    assert finite.terminated[:, 0].tolist() == [False, False, False, True, False]
    np.testing.assert_array_equal(finite.obs["obs"][:, 0, 0], [0, 0.25, 0.5, 0.75, 1, 0])

    def best_return(env, policy):
        obs, _ = env.reset(seed=3)
        total, over = 0.0, False
        while not over:
            obs, reward, over, _, _ = env.step(policy(obs))
            total += reward
        return total

    assert best_return(Contextual(5, 3), lambda obs: int(obs.argmax()) % 3) == 10
    assert best_return(Contextual(5, 3), lambda _: 0) < 10
    assert best_return(Target(2), lambda obs: obs / 2) == pytest.approx(0)
    assert best_return(Target(2), lambda obs: obs) < -0.1
