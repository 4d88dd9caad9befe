"""Writes what documents say of learners' options from the fields that declare them: the rows of
docs/LEARNER.md, and in docs/populations.md the options that are tuned by default.

python benchmarks/option_tables.py            rewrite them
python benchmarks/option_tables.py --check    exit with 1 if they are not what the fields say

An option's row stands where its document has one, else after that of the field before it.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from records import ROOT, write_whole

from quintet.algorithms import registry
from quintet.options import about, default_of, tunable


def row(options: type[BaseModel], name: str) -> str:
    """An option's row: name, default, and meaning with what it needs."""
    info = options.model_fields[name]
    needs = [re.sub(r",[^,{]*{.*", "", need.what) for need in about(info).needs]
    only = "; ".join(f"only with {_grouped(need)}" for need in needs if "{" not in need)
    meaning = "; ".join(part for part in (info.description or "", only) if part)
    return f"| `{name}` | {_shown(default_of(options, name))} | {meaning} |"


def _grouped(need: str) -> str:
    """A condition with parentheses around every `and` next to an `or`."""
    parts = need.split(" or ")
    return need if len(parts) == 1 else " or ".join(f"({x})" if " and " in x else x for x in parts)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def rendered(text: str, options: type[BaseModel]) -> str:
    """The document with all rows of options as the fields say; an option without a row gets one
    after that of the field before it.
    """
    lines = text.split("\n")
    place = lines.index("| option | default | meaning |") + 1
    for name in options.model_fields:
        rows = [at for at, line in enumerate(lines) if line.startswith(f"| `{name}` |")]
        if not rows:
            lines.insert(place + 1, "")
        place = rows[0] if rows else place + 1
        lines[place] = row(options, name)
    return "\n".join(lines)


def tuned(text: str) -> str:
    """The document of populations, with the options that each learner's fields say."""
    for algo in registry.LEARNERS.own:
        ways = tunable(registry.find(algo).config)
        names = ", ".join(f"`{name}`" for name, way in ways.items() if way.usual)
        text = re.sub(rf"(?m)^\| {algo} \| `.*$", f"| {algo} | {names} |", text)
    return text


def documents() -> dict[Path, str]:
    """The documents as the fields say, by their paths."""
    docs = ROOT / "docs"
    found = {docs / "populations.md": tuned((docs / "populations.md").read_text())}
    for algo in registry.LEARNERS.own:
        path = docs / f"{algo}.md"
        found[path] = rendered(path.read_text(), registry.find(algo).config)
    return found


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
