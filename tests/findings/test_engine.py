"""Rows of findings are evaluated by their facts, ranked, and named in the documentation."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quintet.errors import ConfigError
from quintet.findings import engine
from quintet.findings.engine import Rows, evaluate, names, ranked
from quintet.findings.record import PAGE, Finding
from quintet.options.layers import Layer
from quintet.options.saved import load_config

ROOT = Path(__file__).parents[2]


def test_every_finding_has_a_section():
    sections = set(re.findall(r"^### (\S+)$", (ROOT / PAGE).read_text(), re.MULTILINE))
    assert sections == names()


def test_links_lead_to_sections():
    assert Finding("", name="slow").link == "docs/not-learning.md#slow"


def test_findings_are_ranked_and_each_is_told_once():
    a, b = Finding("", weight=0.1, name="slow"), Finding("", weight=0.7, name="gamma")
    assert ranked([a, b, a]) == [b, a]
    assert [each.degree for each in (a, b)] == ["note", "likely"]


@dataclass
class Facts:
    """A record of facts."""

    heat: float | None = None
    fuel: float | None = None
    rows: int = 0


plugin = Rows("run", "burned")


@plugin("hot", weight=0.6, rows=10)
def hot(heat: float) -> Iterator[Finding]:
    if heat > 100:
        yield Finding(f"it is {heat:g} degrees hot", {"heat": heat})


@plugin("odd", needs="fuel", unless=("hot",))
def odd(seen: Facts, heat: float | None = None) -> Iterator[Finding]:
    yield Finding(f"{seen.fuel} and {heat}", weight=0.3, subject="fuel")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that adds the rows above, and quintet's own left out."""
    monkeypatch.setattr(engine.SETS, "loaded", {"hot": plugin})
    monkeypatch.setitem(engine._OWN, "run", ())


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (Facts(), []),
        (Facts(heat=200.0, rows=9), []),
        (Facts(heat=200.0, rows=10), [("hot", "", 0.6)]),
        (Facts(heat=50.0, rows=10), []),
        (Facts(fuel=1.0), [("odd", "fuel", 0.3)]),
        (Facts(heat=200.0, fuel=1.0, rows=10), [("hot", "", 0.6)]),
    ],
)
def test_rows_of_a_package_are_evaluated_where_their_facts_are_known(facts: Facts, found: list):
    assert [(x.name, x.subject, x.weight) for x in evaluate("run", facts)] == found
    assert evaluate("environment", facts) == []


def test_a_row_of_a_package_that_raises_is_left_out(
    installed: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(seen: Facts) -> Iterator[Finding]:
        yield Finding("it is odd")
        raise KeyError(seen.rows)

    monkeypatch.setattr(plugin, "rows", [*plugin.rows])
    plugin("broken")(broken)
    assert [x.name for x in evaluate("run", Facts(fuel=1.0))] == ["odd", "broken"]
    said = capsys.readouterr().err
    assert "broken are left out, as it raised KeyError" in said


@pytest.mark.usefixtures("installed")
def test_names_of_a_package_may_be_known():
    assert {"hot", "odd", "burned", "gamma", "raises"} <= names()
    layer = {"env.id": "CartPole-v1", "doctor.known": ["odd:fuel", "time-limit"]}
    loaded = load_config("ppo", [], Layer("call", layer))
    assert loaded.config.doctor.known == ("odd:fuel", "time-limit")


@pytest.mark.parametrize(
    ("name", "said"),
    [("gama", "did you mean gamma"), ("time_limit", "time-limit"), ("xyz", "lists them"),
     ("statistics", "statistics")],
)  # fmt: skip
def test_names_of_no_finding_are_refused(name: str, said: str):
    with pytest.raises(ConfigError, match=said):
        engine.require_names("--known", ["gamma", name])
