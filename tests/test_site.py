"""The site builds without a warning, tells of every public name and option, loads nothing from
elsewhere.
"""

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import quintet
from quintet import errors, ops, protocols
from quintet.config.layers import options

pytest.importorskip("mkdocs", reason="the site is built by the extra docs")
pytest.importorskip("material", reason="the site is built by the extra docs")
pytest.importorskip("mkdocstrings", reason="the site is built by the extra docs")

ROOT = Path(__file__).parent.parent
RESOURCE = re.compile(r"<(?:script|img|link|iframe|video|source)\b[^>]*?(?:src|href)=\"?([^\" >]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)]
    done = subprocess.run(
        words,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return folder


def test_every_public_name_has_an_entry(site: Path):
    text = zlib.decompress((site / "objects.inv").read_bytes().split(b"zlib.\n")[1]).decode()
    known = {line.split(" ")[0] for line in text.splitlines()}
    asked = {f"{home}.{name}" for name, home in quintet._HOME.items()}
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


def test_every_option_has_a_row(site: Path):
    text = (site / "options.html").read_text()
    named = set(re.findall(r"<tr>\s*<td><code>([\w.]+)</code>", text))
    for algo in ("ppo", "impala", "appo", "ddpg", "acer"):
        assert not set(options(algo)) - named - {"algo"}, algo


def test_nothing_is_loaded_from_elsewhere(site: Path):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        found = [x for x in RESOURCE.findall(page.read_text()) if re.match(r"(https?:)?//", x)]
        assert not found, page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url|@import)\W+(?:https?:)?//", style.read_text()), style


def test_pages_are_readable_without_the_site():
    """Pages lead to each other by links that also work in a checkout."""
    for page in (ROOT / "docs").rglob("*.md"):
        assert "outside/" not in page.read_text(), page
