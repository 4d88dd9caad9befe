"""The site builds without a warning and loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from installed_helpers import need

need("the site is built by the extra docs", "mkdocs", "material")

pytestmark = pytest.mark.slow

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
