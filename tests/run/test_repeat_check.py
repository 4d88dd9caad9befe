"""Whether episodes repeat, found out in a process of its own, where workers step."""

import time
from typing import Any

import pytest
from leaver_helpers import Leaver
from test_living_environments import Levels, Saving

from quintet.envs.config import EnvConfig
from quintet.envs.resolved import resolve_env

pytestmark = pytest.mark.usefixtures("checked_apart")


class Hangs(Saving):
    def step(self, action: Any) -> Any:
        time.sleep(1_000)


def exits() -> Leaver:
    """Calls sys.exit() in its tenth step."""
    return Leaver("exit")


def closes() -> Leaver:
    """Closes all files in its tenth step, and goes on."""
    return Leaver("close all files")


def found(env: Any, timeout_s: float = 60.0) -> str:
    from quintet.run.repeat_check import unrepeatable_apart  # as a run does it

    made = resolve_env(EnvConfig(id="made", num_streams=2), env)
    return unrepeatable_apart(made, timeout_s, print)


def test_what_differs_is_told_and_what_is_offered_is_taken() -> None:
    assert "reward at step" in found(Levels)
    assert found(Saving) == ""


@pytest.mark.parametrize("env", [exits, pytest.param(Hangs, marks=pytest.mark.slow)])
def test_an_environment_that_exits_or_hangs_is_left_to_the_workers(env: Any) -> None:
    assert found(env, timeout_s=0.2) == ""


def test_an_environment_that_closes_the_channel_is_not_waited_for(
    capfd: pytest.CaptureFixture[str],
) -> None:
    begin_s = time.monotonic()
    assert found(closes) == ""
    assert time.monotonic() - begin_s < 40  # of 66 s for the check, and 60 s of the step
    assert "[check] closed its channel" in capfd.readouterr().out
