"""Writes the rows of options in docs/LEARNER.md from the fields that declare them.

python benchmarks/option_tables.py            rewrite them
python benchmarks/option_tables.py --check    exit with 1 if they are not what the fields say

A row stands where its document has one, else after that of the field before it.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from records import ROOT, write_whole

from quintet.algorithms import registry
from quintet.options import about, default_of


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


def document(algo: str) -> Path:
    return ROOT / "docs" / f"{algo}.md"


def main() -> int:
    """Writes the documents that differ, or names them."""
    stale = 0
    for algo in registry.LEARNERS.names():
        path, text = document(algo), document(algo).read_text()
        now = rendered(text, registry.find(algo).config)
        stale += now != text
        if now != text and "--check" in sys.argv:
            print(f"{path} is not what the fields say; run: python benchmarks/option_tables.py")
        elif now != text:
            write_whole(path, now)
    return int("--check" in sys.argv and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
