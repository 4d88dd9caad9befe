"""Pages that are written from the code: all options and metrics, and the API."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import quintet
from quintet import errors, ops, protocols
from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.registry import LEARNERS
from quintet.observe.metrics import OF_LEARNERS, OF_RUNS
from quintet.options.layers import options

ROOT = Path(__file__).parent.parent


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("pages")


def test_pages_are_what_the_code_says(pages, monkeypatch, capsys):
    """Also whatever learners are in use; rewritten by `python benchmarks/pages.py`."""
    stale = [path.name for path, text in pages.documents().items() if path.read_text() != text]
    assert not stale, f"run: python benchmarks/pages.py ({stale})"
    monkeypatch.setattr(PPOConfig.model_fields["minibatch_steps"], "description", "another one")
    monkeypatch.setattr("sys.argv", ["pages.py", "--check"])
    assert pages.main() == 1
    assert re.fullmatch(
        r"\S+options.md is not what the code says; run.*\n", capsys.readouterr().out
    )


def test_every_public_name_has_an_entry():
    text = "".join(path.read_text() for path in (ROOT / "docs/api").glob("*.md"))
    known = set(re.findall(r"^#+ `([\w.]+)`$", text, re.M))
    asked = {f"quintet.{name}" for name in quintet.__all__ if name[0] != "_"}
    modules = [
        importlib.import_module(f"quintet.ops.{x.name}") for x in pkgutil.iter_modules(ops.__path__)
    ]
    for module in (*modules, protocols, errors):
        for name, value in vars(module).items():
            if name[0] != "_" and (inspect.isclass(value) or inspect.isfunction(value)):
                asked.add(f"{value.__module__}.{name}")
    asked = {name for name in asked if name.startswith("quintet.")}
    assert len(asked) > 70
    assert not asked - known


def test_every_option_and_metric_has_a_row():
    text = (ROOT / "docs/options.md").read_text()
    named = set(re.findall(r"^\| `([\w.]+)` \|", text, re.M))
    for algo in LEARNERS.own:
        assert not set(options(algo)) - named - {"algo"}, algo
    metrics = (ROOT / "docs/metrics.md").read_text()
    rows = set(re.findall(r"^\| `([\w./*]+)` \|", metrics, re.M))
    own = {name for algo in LEARNERS.own for name in LEARNERS.find(algo).own_metrics}
    assert not {n for n in {*OF_RUNS, *OF_LEARNERS, *own} if n[-1] != "/"} - rows
