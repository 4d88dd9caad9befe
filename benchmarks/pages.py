"""Writes what follows from the code into the documents: all options and metrics, and the API.

python benchmarks/pages.py            rewrite them
python benchmarks/pages.py --check    exit with 1 if they are not what the code says
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import api_pages
import option_pages
from records import ROOT, write_whole

MARK = "<!-- written by benchmarks/pages.py -->\n"
"""All below it in a page is written here."""

WHOLE: dict[str, Callable[[], str]] = {
    "options": option_pages.of_options,
    "metrics": option_pages.of_metrics,
    **{f"api/{name}": partial(api_pages.page, name) for name in api_pages.PAGES},
}
"""Pages of docs/ that are written but for their beginning."""


def path_of(name: str) -> Path:
    return ROOT / "docs" / f"{name}.md"


def documents() -> dict[Path, str]:
    """The documents as the code says, by their paths."""
    found: dict[Path, str] = {}
    for name, make in WHOLE.items():
        begin, mark, _ = path_of(name).read_text().partition(MARK)
        assert mark, f"{path_of(name)} must have the line {MARK!r}"
        found[path_of(name)] = f"{begin}{MARK}{make()}"
    return found


def main() -> int:
    """Writes the documents that differ, or names them."""
    stale = {path: now for path, now in documents().items() if now != path.read_text()}
    for path, now in stale.items():
        if "--check" in sys.argv:
            print(f"{path} is not what the code says; run: python benchmarks/pages.py")
        else:
            write_whole(path, now)
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
