"""The entries of learners, and what findings change."""

import math
import sys
from pathlib import Path

import pytest
from installed_helpers import install

from quintet.algorithms import registry
from quintet.checkpoints.manifest import content_fault
from quintet.errors import ConfigError
from quintet.findings.record import Finding
from quintet.options.facts import EnvKind
from quintet.options.layers import options
from quintet.search import portfolio
from quintet.search.portfolio import Change, Entry
from quintet.search.race_journal import Runner


@pytest.mark.parametrize("kind", EnvKind.__args__)
def test_every_kind_has_entries_of_known_options(kind: str) -> None:
    found = portfolio.entries(kind)
    assert found[0].name == "ppo"
    assert len({each.algo for each in found}) >= 3
    for each in found:
        assert each.options.keys() <= options(each.algo).keys()
        assert each.why


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{place: 1, why: it is odd, kinds: [grid]}", ""),
        ("{place: first, why: it is odd}", "candidate odd-one of odd for a race must be valid"),
        ("{why: it is odd}", "candidate odd-one of odd for a race must be valid"),
        (
            "{place: 1, why: it is odd, options: {model.encoder: 'odd:Net'}}",
            "must be valid, got options.model.encoder: must name no code",
        ),
    ],
)
def test_an_installed_learner_brings_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    code = (
        "from dataclasses import replace\nfrom pathlib import Path\n"
        "from quintet.algorithms.ppo import ENTRY as PPO\n"
        "ENTRY = replace(PPO, presets=Path(__file__).with_name('odd.yaml'))\n"
    )
    files = {"odd_race.py": code, "odd.yaml": f"race: {{odd-one: {text}}}\n"}
    install(tmp_path, "quintet-odd", "[quintet.learners]\nodd = odd_race:ENTRY\n", files)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry.LEARNERS, "loaded", {})
    monkeypatch.delitem(sys.modules, "odd_race", raising=False)
    if said:
        with pytest.raises(ConfigError, match=said):
            portfolio.entries("grid")
        return
    assert portfolio.entries("grid")[0] == Entry("odd-one", "odd", {}, "it is odd")
    assert "odd-one" not in [each.name for each in portfolio.entries("pixels")]


def finding(name: str, weight: float, words: str) -> dict[str, object]:
    command = f"quintet train ppo --env X {words}" if words else "quintet check-env X"
    said, numbers = f"{name} is seen", {"x": math.pi}
    return Finding(said, numbers, "do", command=command, weight=weight, name=name).as_json()


def test_likely_findings_with_an_option_change_entries() -> None:
    found = portfolio.changes(
        [
            finding("gamma", 0.8, "--gamma 0.999"),
            finding("observation-memory", 0.9, "--model.core lstm  # or --env.frame-stack 4"),
            finding("reward-noise", 0.7, "--total-steps 10000000"),
            finding("slow-step", 0.6, "--runtime.kind lockstep"),
            finding("reward-rare", 0.4, "--gamma 0.9"),
            finding("not-repeatable", 0.9, ""),
        ]
    )
    assert [each.options for each in found] == [{"gamma": 0.999}, {"model.core": "lstm"}]


def test_a_change_is_made_in_all_entries_that_have_the_option_and_memory_runs_beside() -> None:
    listed = [
        Entry("a", "ppo", {}, "first"),
        Entry("b", "ppo", {"gamma": 0.999}, "far"),
        Entry("c", "ddpg", {}, "third"),
    ]
    gamma = Change("gamma", "episodes are long", {"gamma": 0.999})
    scale = Change("scale", "numbers are large", {"reward_normalizer": "return_std"})
    core = Change("memory", "it is hidden", {"model.core": "lstm"})
    late = Change("late", "it is late", {"model.core": "lstm"})
    changed, told = portfolio.changed(listed, [gamma, scale, core, late], {})
    assert [each.name for each in changed] == ["a", "a-lstm", "b", "c"]
    assert [each.options.get("gamma") for each in changed] == [0.999] * 4
    assert ["reward_normalizer" in each.options for each in changed] == [True, True, True, False]
    assert [each.options.get("model.core") for each in changed] == [None, "lstm", None, None]
    assert told[0] == "a, c: gamma=0.999, since episodes are long"
    assert told[2].startswith("a-lstm runs too, with model.core=lstm, since")
    # What the user typed stays.
    same, nothing = portfolio.changed(listed, [gamma, core], {"gamma": 0.5, "model.core": "none"})
    assert same == listed
    assert nothing == []


@pytest.mark.parametrize("name", ["env.kwargs", "eval.env.id", "init_from"])
def test_a_journal_leaves_what_is_called_to_the_user(name: str) -> None:
    held = {"name": "a", "algo": "ppo", "why": "it is there", "options": {"gamma": 0.9}}
    assert content_fault(Runner, held) is None
    fault = content_fault(Runner, held | {"options": {name: {"config": {"type": "evil.Vehicle"}}}})
    assert f"must leave {name} to the user" in str(fault)
