"""Every option that changes a graph has a case, which is compiled; tests/gpu captures them."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import quick_helpers
from conformance_helpers import LEARNERS
from graph_options_helpers import ALGOS, Missing, packed, rows
from pydantic import Field

from quintet.algorithms.ppo.config import PPOConfig
from quintet.options.declaration import Options


@pytest.mark.parametrize("algo", ALGOS)
def test_every_option_has_a_case(algo: str) -> None:
    found = rows(algo)
    assert len(found) > 30
    if LEARNERS[algo].acts_in(found["doubles"]["task"].action) and algo not in ("ddpg", "sac"):
        assert "model.action_bounds=squash" in found
    assert {n for names in packed(algo) for n in found if n in names} == found.keys()


def test_a_new_option_without_a_case_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Switch(PPOConfig.__base__):  # type: ignore[misc,name-defined]
        gamma: float = Field(0.99, ge=0, le=1)
        switch: bool = False

    class Word(Switch):
        word: str = "this"

    assert issubclass(Switch, Options)
    for name, config in {"future": Switch, "later": Word}.items():
        monkeypatch.setitem(LEARNERS, name, replace(LEARNERS["a2c"], config=config))
    assert "switch=True" in rows("future")
    with pytest.raises(Missing, match="word"):
        rows("later")


def run(how: str, *cases: str) -> None:
    """In a process without the shape checks of these tests, which are no part of a graph."""
    words = [Path(__file__).with_name("graph_options_helpers.py"), how, *cases]
    path = os.pathsep.join(filter(None, sys.path))
    with quick_helpers.begin(words, {"PYTHONPATH": path}) as process:
        said, _ = process.communicate(timeout=3600)
    assert said.strip().splitlines()[-1:] == ["same"], said[-3000:]


def test_some_cases_are_traced_and_give_what_is_eager() -> None:
    run("traced", *QUICK)


QUICK = ["acer:model.action_bounds=squash"]
"""The longest loss.  Of the others, whose acts and losses share these parts, the slow tests."""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["traced", "compiled"])
@pytest.mark.parametrize("algo", ALGOS)
def test_every_case_gives_what_is_eager(algo: str, how: str) -> None:
    run(how, algo)
