"""An extension of mkdocstrings: docstrings of quintet's form as Markdown.

Records name their fields in lines ``field: meaning``; formulas stand in lines of their own;
``Returns:``, ``Raises:`` and ``Source:`` may be followed by a sentence.
"""

import re
from typing import Any

import griffe

SHARED = re.compile(r"^    (\w+(?:, \w+)+): (.*(?:\n {8}.*)*)", re.M)
FIELD = re.compile(r"^(\w+(?:, \w+)*): \S")
SENTENCE = re.compile(r"^(Returns|Raises|Source|Yields): (\S.*)$")


def markdown(text: str) -> str:
    """The text of a docstring with lists, line breaks and names of sections of Markdown."""
    lines: list[str] = []
    inside = ""
    # Arguments that share a meaning get a line each.
    for line in SHARED.sub(_each, text).split("\n"):
        continued = line.startswith(" ")
        if inside and not continued:
            inside = ""
        if inside and line.strip():
            lines.append(("    " if inside == "field" else "") + line.strip())
        elif found := SENTENCE.match(line):
            inside = "sentence"
            lines += ["", f"**{found[1]}:** {found[2]}"]
        elif lines and (found := FIELD.match(line)):
            inside = "field"
            if not lines or not lines[-1].startswith(("- **", "    ")):
                lines.append("")
            lines.append(f"- **{found[1]}**: {line[len(found[1]) + 2 :]}")
        elif line.startswith("``") and lines and lines[-1].startswith("``"):
            lines[-1] += "  "
            lines.append(line)
        else:
            lines.append(re.sub(r"::$", ":", line))
    return "\n".join(lines)


def _each(found: re.Match[str]) -> str:
    return "\n".join(f"    {name}: {found[2]}" for name in found[1].split(", "))


class Docstrings(griffe.Extension):
    """Changes every docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
