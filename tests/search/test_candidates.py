"""Entries that run, and what findings about the environment make of them."""

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from small_run_helpers import SMALL

from quintet.doctor import apart
from quintet.doctor.apart import Examined
from quintet.envs.env_source import settle
from quintet.errors import ConfigError
from quintet.findings.record import Finding
from quintet.options import machine
from quintet.options.layers import Layer
from quintet.run import launch
from quintet.search import candidates
from quintet.search.portfolio import Entry
from quintet.search.race_asked import Asked


def test_a_change_that_does_not_fit_an_entry_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory learns from sequences that are longer than these unrolls."""
    says, source = settle(lambda: gymnasium.make("CartPole-v1"))
    values: dict[str, Any] = {**SMALL, "env.id": says["id"], "run_dir": str(tmp_path / "a")}
    asked = Asked(10.0, (Layer("command line", {**values, "gamma": 0.9}),), source=source)
    lstm = "quintet train ppo --model.core lstm"
    memory = Finding("it is hidden", {}, "do", command=lstm, weight=0.9, name="memory")

    def examine(*given: Any) -> Examined:
        words = given[1]
        assert words[words.index("--gamma") + 1] == "0.9"
        assert not {"--seed", "--run-dir", "--run_dir", "--model.policy_hidden"} & {*words}
        own = pickle.loads(given[-1]["source"])
        assert own().spec.id == "CartPole-v1"
        return Examined([memory.as_json()], step_s=0.01)

    monkeypatch.setattr(apart, "examine_apart", examine)
    able = candidates.able(asked, [Entry("a", "ppo", {}, "a test")], print)
    found, told, step_s = candidates.examined(asked, able, print)
    assert step_s == 0.01
    assert found == able
    assert told[1].startswith("a-lstm runs too")
    assert told[2].startswith(
        "a-lstm: the change is left out, since it does not fit: unroll_steps must"
    )
    with pytest.raises(ConfigError, match="gae_lambda"):
        candidates.able(asked, [Entry("a", "ppo", {"gae_lambda": 2.0}, "a test")], print)


@pytest.mark.parametrize(
    ("typed", "leg_s", "compiles"),
    [
        ({"runtime.compile": "on"}, [1.0, 300.0], "on"),
        ({}, [119.0, 300.0], "off"),  # each leg would compile again
        ({}, [10_000.0], "on"),
        ({}, [10_000.0, 10_000.0], "on"),
        ({}, [0.001], "off"),
    ],
)
def test_all_legs_of_an_entry_compile_or_none(
    typed: dict[str, Any],
    leg_s: list[float],
    compiles: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "has_compiler", lambda: True)
    says, source = settle(lambda: gymnasium.make("CartPole-v1"))
    values = {"env.id": says["id"], "run_dir": str(tmp_path / "a"), **typed}
    asked = Asked(10.0, (Layer("command line", values),), source=source)
    (able,) = candidates.able(asked, [Entry("a", "ppo", {}, "a test")], print)
    assert candidates.compiles(able, leg_s) == compiles


@pytest.mark.parametrize("alone", [True, False])
def test_later_legs_ask_for_the_options_that_fitted_the_first(alone: bool, tmp_path: Path) -> None:
    """Rows fit the streams that were typed, streams the two agents of a game."""
    values: dict[str, Any] = {"run_dir": str(tmp_path / "a"), "report.progress": False}
    values |= {"eval.episodes": 0, "model.policy_hidden": (8,), "num_epochs": 1}
    values |= {"env.num_streams": 4} if alone else {}
    values["env.id"] = "CartPole-v1" if alone else "quintet.envs.games:parallel_env"
    asked = Asked(10.0, (Layer("command line", values),))
    fast = {"env.num_streams": 31, "unroll_steps": 8, "minibatch_steps": 248}
    (able,) = candidates.able(asked, [Entry("fast", "ppo", fast, "a test")], print)
    (able,), _ = candidates.shortened(asked, [able], 200.0)
    streams = 4 if alone else 32
    assert able.values["env.num_streams"] == streams
    assert able.entry.options["minibatch_steps"] == able.values["minibatch_steps"] <= 8 * streams
    launch.run(candidates.load(asked, able.entry, {"total_env_steps": 1_000}))
    later = candidates.load(asked, able.entry, {"total_env_steps": 2_000})
    assert later.config.total_env_steps == 2_000


def test_entries_that_typed_options_make_equal_run_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    says, source = settle(lambda: gymnasium.make("CartPole-v1"))
    values = {**SMALL, "gamma": 0.9, "env.id": says["id"], "run_dir": str(tmp_path / "a")}
    asked = Asked(10.0, (Layer("command line", values),), source=source)
    entries = [
        Entry("a", "ppo", {}, "a test"),
        Entry("far", "ppo", {"gamma": 0.999}, "a far horizon"),
        Entry("b", "ppo", {"entropy_coef": 0.5}, "another"),
    ]
    assert [each.entry.name for each in candidates.able(asked, entries, print)] == ["a", "b"]
    assert capsys.readouterr().out == "far is left out: its options are those of a\n"
