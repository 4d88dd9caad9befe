"""The line of the user's code that an error names, and the traceback that it keeps."""

import json
import re
import time
import traceback
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from quintet.envs.public import make_vector_env
from quintet.envs.vector import allocate_obs
from quintet.errors import ConfigError, EnvironmentFault
from quintet.system import user_code
from quintet.system.user_code import place_in, raised, traced

HERE = __file__


def caught(function) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


def in_numpy() -> None:
    np.zeros(3).reshape(2, 2)


def in_json() -> None:
    json.loads("{")


def test_the_line_is_the_users_own_and_not_the_librarys_that_it_calls() -> None:
    line = in_json.__code__.co_firstlineno + 1
    error = caught(in_json)
    assert traceback.extract_tb(error.__traceback__)[-1].filename.endswith("decoder.py")
    assert raised(error).endswith(f"({HERE}:{line} in in_json)")
    assert raised(error).startswith("raised JSONDecodeError: Expecting property name")
    assert raised(caught(in_numpy), "reset").startswith("raised in reset ValueError: cannot resh")


def test_an_installed_environments_line_is_better_than_none() -> None:
    env = make_vector_env("CartPole-v1", 1, backend="gymnasium")
    frames = [
        traceback.FrameSummary(make_vector_env.__code__.co_filename, 1, "make_vector_env"),
        traceback.FrameSummary(gymnasium.__path__[0] + "/wrappers/common.py", 2, "step"),
        traceback.FrameSummary(gymnasium.__path__[0] + "/envs/toy_text/taxi.py", 3, "step"),
        traceback.FrameSummary("<frozen importlib._bootstrap>", 4, "load"),
    ]
    env.close()
    assert place_in(frames).endswith("taxi.py:3 in step")
    assert place_in(frames[:2]) == ""  # it only hands on
    assert place_in([]) == ""


def test_code_that_takes_long_is_named_with_its_line(capsys) -> None:
    with user_code.slow_notice("mine:Maze is made", after_s=0.05):
        time.sleep(0.5)
    first, second, *_ = capsys.readouterr().err.splitlines()
    place = rf"\(at .*{Path(__file__).name}:\d+ in test_code_that_takes_long_.*\)"
    assert re.fullmatch(rf"waiting for 0 s: mine:Maze is made {place}", first)
    assert first == second
    with user_code.slow_notice("mine:Maze is made", after_s=5.0):
        pass
    assert capsys.readouterr().err == ""


def test_a_traceback_is_kept_whole_but_for_the_middle_of_a_long_one() -> None:
    error = caught(in_json)
    fault = traced(EnvironmentFault("it fell"), error)
    assert str(fault) == "it fell"
    assert fault.detail.startswith("Traceback")
    assert 'json.loads("{")' in fault.detail
    assert fault.detail.rstrip().endswith(str(error))
    long = traced(EnvironmentFault("it fell"), ValueError("x" * 100_000)).detail
    assert long.startswith("ValueError: xxx")
    assert "characters left out" in long
    assert len(long) < 21_000
    assert EnvironmentFault("it fell").detail == ""


class Fragile(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at: str = "") -> None:
        if at == "make":
            raise RuntimeError("no wood")


def test_an_environment_that_can_not_be_made_names_its_line() -> None:
    with pytest.raises(
        ConfigError, match=rf"raised RuntimeError: no wood \({HERE}:\d+ in __init"
    ) as e:
        make_vector_env(lambda: Fragile("make"), 1)
    assert "no wood" in e.value.detail
    assert "Traceback" in e.value.detail


def test_what_a_pool_of_envpools_raises_is_told() -> None:
    pytest.importorskip("envpool")
    env = make_vector_env("CartPole-v1", 2, backend="envpool")

    class Broken:
        def send(self, action) -> None: ...

        def recv(self):
            raise RuntimeError("out of threads")

    env.restart([1, 2], allocate_obs(env.spaces.observation, (2,)))
    env._arrays, whole = Broken(), env._arrays  # type: ignore[attr-defined]
    env.send(np.zeros(2, np.int64))
    with pytest.raises(
        EnvironmentFault, match=r"CartPole-v1 \(envpool\).*RuntimeError: out of th"
    ) as e:
        env.recv(None)  # type: ignore[arg-type]
    assert "out of threads" in e.value.detail
    env._arrays = whole  # type: ignore[attr-defined]
    env.close()
