"""What `quintet train ddpg` refuses: one sentence for each mistake, and nothing is written."""

import re
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from quintet.commands import cli
from quintet.system import memory

Refused = Callable[..., str]


class OfActions(gymnasium.Env):  # type: ignore[type-arg]
    """Only its spaces matter: it is refused before its first step."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, action_space: spaces.Space):  # type: ignore[type-arg]
        self.action_space = action_space


def below() -> OfActions:
    return OfActions(spaces.Box(np.float32([-1, -np.inf]), np.float32([1, 1])))


def above() -> OfActions:
    return OfActions(spaces.Box(np.float32([0, -1]), np.float32([np.inf, 1])))


def unbounded() -> OfActions:
    return OfActions(spaces.Box(-np.inf, np.inf, (2,), np.float32))


def discrete() -> OfActions:
    return OfActions(spaces.Discrete(3))


def choices() -> OfActions:
    return OfActions(spaces.MultiDiscrete([2, 3]))


def whole_numbers() -> OfActions:
    return OfActions(spaces.Box(0, 3, (2,), np.int32))


def several() -> OfActions:
    return OfActions(spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32)}))


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """Gives the one sentence on standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*options: str, env: str = "Pendulum-v1") -> str:
        words = ["train", "ddpg", "--env", env, "--total-steps", "1100", "--run-dir", "r"]
        assert cli.main([*words, "--eval.episodes", "0", *options]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert not list(tmp_path.iterdir())
        return err

    return call


@pytest.mark.parametrize("env", ["below", "above", "unbounded"])
def test_infinite_bounds(env: str, refused: Refused) -> None:
    said = refused(env=f"test_ddpg_refusals:{env}")
    assert "ddpg must have finite bounds of actions, got Box(" in said
    assert "gymnasium.wrappers.TransformAction" in said


@pytest.mark.parametrize("env", ["discrete", "choices", "whole_numbers", "several"])
def test_actions_that_are_no_box_of_floats(env: str, refused: Refused) -> None:
    """It says what it must be and what the environment has."""
    said = refused(env=f"test_ddpg_refusals:{env}")
    assert re.search(
        r"must (have|be) .*Box.*, got .*(Discrete|MultiDiscrete|Box\(0, 3|Dict)", said
    ), said


NEEDED = r"must have room for ([\d,]+) bytes (\S+ \S+).*, got ([\d,]+); lower the replay capacity"


def test_a_capacity_that_does_not_fit_the_disk(refused: Refused, tmp_path: Path) -> None:
    said = refused("--replay-capacity-steps", str(10**15))
    found = re.search(NEEDED, said)
    assert found is not None
    needed, there = (int(found[at].replace(",", "")) for at in (1, 3))
    assert needed > 10**15 > there
    assert f"on the disk of {tmp_path}/r/replay" in said or "on the disk of r/replay" in said


def test_a_capacity_that_does_not_fit_in_memory(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are in files; the index of eight bytes for each of them is not."""
    monkeypatch.setattr(memory, "free_bytes", lambda: 5_000_000)
    said = refused("--replay-capacity-steps", "1000000")
    index = r"the index of a replay must have ([\d,]+) bytes of memory, got 5,000,000 free"
    found = re.search(index, said)
    assert found is not None
    assert 8_000_000 <= int(found[1].replace(",", "")) < 9_000_000


UNKNOWN, ALONE, ONCE = "is none of these", "must stand alone", "may stand in it once"
FAR = "would move actions by more than 1"
MISTAKES = {
    "nothing": ("", "", UNKNOWN),
    "only commas": (",", "", UNKNOWN),
    "a comma too many": ("normal_0.1,", "", UNKNOWN),
    "two commas": ("normal_0.1,,ou_0.1", "", UNKNOWN),
    "a semicolon": ("normal_0.1;ou_0.1", "normal_0.1;ou_0.1", UNKNOWN),
    "a decimal comma": ("normal_0,1", "normal_0", UNKNOWN),
    "an unknown name": ("normal_0.1,gauss_0.1", "gauss_0.1", UNKNOWN),
    "capitals": ("Normal_0.1", "Normal_0.1", UNKNOWN),
    "half a name": ("param_0.2", "param_0.2", UNKNOWN),
    "an underscore for the hyphen": ("adaptive_param_0.2", "adaptive_param_0.2", UNKNOWN),
    "a name alone": ("ou_0.1,normal", "normal", UNKNOWN),
    "no number": ("normal_", "normal_", UNKNOWN),
    "no underscore": ("normal0.1", "normal0.1", UNKNOWN),
    "another sign": ("normal=0.1", "normal=0.1", UNKNOWN),
    "a number alone": ("_0.1", "_0.1", UNKNOWN),
    "the number first": ("0.1_normal", "0.1_normal", UNKNOWN),
    "a word for the number": ("ou_much", "ou_much", UNKNOWN),
    "zero": ("ou_0", "ou_0", UNKNOWN),
    "negative": ("adaptive-param_-0.2", "adaptive-param_-0.2", UNKNOWN),
    "not a number": ("normal_nan", "normal_nan", UNKNOWN),
    "infinite": ("normal_inf", "normal_inf", UNKNOWN),
    "too large for a float": ("normal_1e999", "normal_1e999", UNKNOWN),
    "too small for a float": ("normal_1e-999", "normal_1e-999", UNKNOWN),
    "farther than actions reach": ("adaptive-param_1.5", "adaptive-param_1.5", FAR),
    "none with a number": ("none_0.1", "none_0.1", UNKNOWN),
    "none beside another": ("normal_0.1,none", "none", ALONE),
    "none twice": ("none,none", "none", ALONE),
    "two sizes": ("normal_0.1,ou_0.1,normal_0.2", "normal", ONCE),
    "twice the same": ("adaptive-param_0.2,adaptive-param_0.2", "adaptive-param", ONCE),
}


@pytest.mark.parametrize(("text", "wrong", "why"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_noise(text: str, wrong: str, why: str, refused: Refused) -> None:
    """The message has the grammar, the entry that is wrong, and what was given."""
    entry = wrong if why == ONCE else f"the word {wrong!r}"
    assert refused("--exploration", text) == (
        "error: exploration: must be a list of none, normal_S, ou_S, adaptive-param_S, with a "
        f"number S > 0, separated by commas; {entry} {why}, got {text!r}\n"
    )
