"""Prints a random sample of sentences: documents, docstrings and messages, 24 of each.

python benchmarks/sentences.py [--seed 1] [--each 24] [--kind documents]

A reader reads each sentence once. Sentences that have to be read twice are counted and rewritten.
Messages are texts of `raise` and help texts; expressions of f-strings stand in braces.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"*(\d])")
ABBREVIATED = ("e.g.", "i.e.", "vs.", "etc.", "...")
LEAST_WORDS = 4


class Sentence(NamedTuple):
    place: str
    text: str


def documents() -> list[Path]:
    folders = (ROOT, ROOT / "docs", ROOT / "benchmarks")
    return [path for folder in folders for path in sorted(folder.glob("*.md"))]


def sources() -> list[Path]:
    return sorted((ROOT / "quintet").rglob("*.py"))


def split(text: str) -> list[str]:
    """The sentences of a paragraph, each on one line."""
    parts = END.split(" ".join(text.split()))
    joined: list[str] = []
    for part in parts:
        if joined and joined[-1].endswith(ABBREVIATED):
            joined[-1] += f" {part}"
        else:
            joined.append(part)
    return [each for each in joined if _words(each) >= LEAST_WORDS]


def _words(text: str) -> int:
    """The number of words outside of code and of the targets of links."""
    return len(re.findall(r"[A-Za-z]{2,}", re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)))


def _cells(row: re.Match[str]) -> str:
    return "\n\n".join(["", *row[1].split(" | "), ""])


def of_documents() -> Iterator[Sentence]:
    """Sentences of paragraphs, list items and table cells; no code, headings or pictures."""
    for path in documents():
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
        text = re.sub(r"<!-- table .*?<!-- end .*? -->", "", text, flags=re.S)
        text = re.sub(r"^(#|!\[|<!--|\|[-|]+$).*$", "", text, flags=re.M)
        text = re.sub(r"^\|(.*)\|$", _cells, text, flags=re.M)
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
            for sentence in split(re.sub(r"^\s*[-*] ", "", paragraph)):
                yield Sentence(str(path.relative_to(ROOT)), sentence)


def of_docstrings() -> Iterator[Sentence]:
    """Sentences of docstrings, those of attributes included."""
    for path in sources():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if not isinstance(node, ast.Expr):
                continue
            for paragraph in re.split(r"\n\s*\n|\n(?=\s*[\w, ]+: )", written(node.value)):
                for sentence in split(paragraph):
                    yield Sentence(f"{path.relative_to(ROOT)}:{node.lineno}", sentence)


def of_messages() -> Iterator[Sentence]:
    """Texts of errors and help, with expressions in braces."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            texts: list[ast.expr] = []
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                texts = [*node.exc.args]
            elif isinstance(node, ast.keyword) and node.arg in ("help", "description", "doc"):
                texts = [node.value]
            for text in texts:
                for sentence in split(written(text)):
                    yield Sentence(f"{path.relative_to(ROOT)}:{text.lineno}", sentence)


def written(node: ast.expr) -> str:
    """A text or an f-string as it stands in the source; empty for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [
            f"{{{ast.unparse(each.value)}}}"
            if isinstance(each, ast.FormattedValue)
            else written(each)
            for each in node.values
        ]
        return "".join(parts)
    return ""


KINDS = {"documents": of_documents, "docstrings": of_docstrings, "messages": of_messages}


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints a random sample of sentences.")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample")
    parser.add_argument("--each", type=int, default=24, help="sentences of each kind")
    parser.add_argument("--kind", choices=KINDS, help="only this kind of sentences")
    given = parser.parse_args()
    print(f"seed {given.seed}")
    number = 0
    for name in [given.kind] if given.kind else KINDS:
        pool = list(dict.fromkeys(KINDS[name]()))
        print(f"\n{name}: {given.each} of {len(pool):,}")
        for sentence in random.Random(f"{given.seed} {name}").sample(pool, given.each):
            number += 1
            print(f"{number:3} {sentence.place}\n    {sentence.text}")


if __name__ == "__main__":
    main()
