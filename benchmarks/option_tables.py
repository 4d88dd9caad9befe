"""Writes the options that are tuned by default into docs/populations.md, from their fields.

python benchmarks/option_tables.py            rewrite them
python benchmarks/option_tables.py --check    exit with 1 if they are not what the fields say
"""

import re
import sys
from pathlib import Path

from records import ROOT, write_whole

from quintet.algorithms import registry
from quintet.options import tunable


def tuned(text: str) -> str:
    """The document of populations, with the options that each learner's fields say."""
    for algo in registry.LEARNERS.own:
        ways = tunable(registry.find(algo).config)
        names = ", ".join(f"`{name}`" for name, way in ways.items() if way.usual)
        text = re.sub(rf"(?m)^\| {algo} \| `.*$", f"| {algo} | {names} |", text)
    return text


def documents() -> dict[Path, str]:
    """The documents as the fields say, by their paths."""
    path = ROOT / "docs" / "populations.md"
    return {path: tuned(path.read_text())}


def main() -> int:
    """Writes the documents that differ, or names them."""
    stale = {path: now for path, now in documents().items() if now != path.read_text()}
    for path, now in stale.items():
        if "--check" in sys.argv:
            print(f"{path} is not what the fields say; run: python benchmarks/option_tables.py")
        else:
            write_whole(path, now)
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
