"""Refusals say what must be: "X must Y, got Z; do W"; what users read has the field's words."""

import ast
import re
from pathlib import Path

import pytest

import quintet

REQUIRED = re.compile(r"\b(is|are) required\b|\brequires?\b")

OWN_WORDS = re.compile(
    r"\b((same|other|result's) bytes(?!: )|bytes of (a|the) \w*(run|serial|eager)\w*|sound|"
    r"rungs?(?! must)|films?|filmed|publications?|(an|the|no) entry(?!$| point)|entries of)\b"
)
"""Words that only makers know: of results, health, videos, rounds, weights and candidates;
a race's file has the names `rung` and `entry`."""

ROOT = Path(__file__).parent.parent
FOR_DEVELOPERS = ("architecture", "decisions", "notation", "adding-a-learner")


def texts(node: ast.AST) -> list[str]:
    """The texts in a tree, but docstrings and what an AssertionError says to developers; values
    within a text are {}.
    """
    match node:
        case ast.Expr(ast.Constant()) | ast.Call(func=ast.Name("AssertionError")):
            return []
        case ast.Constant(str(text)):
            return [text]
        case ast.JoinedStr(parts):
            shown = [str(x.value) if isinstance(x, ast.Constant) else "{}" for x in parts]
            values = [x for x in parts if not isinstance(x, ast.Constant)]
            return ["".join(shown), *(text for value in values for text in texts(value))]
    return [text for child in ast.iter_child_nodes(node) for text in texts(child)]


def required(source: str) -> list[str]:
    return [text for text in texts(ast.parse(source)) if REQUIRED.search(text)]


FILES = sorted(Path(quintet.__file__).parent.rglob("*.py"))


def test_no_message_says_that_something_is_required() -> None:
    found = {str(path): required(path.read_text()) for path in FILES}
    assert not {path: said for path, said in found.items() if said}


def test_what_users_read_has_the_words_of_the_field() -> None:
    said = {str(path): texts(ast.parse(path.read_text())) for path in FILES}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    said |= {str(x): x.read_text().splitlines() for x in pages if x.stem not in FOR_DEVELOPERS}
    found = [
        (path, text)
        for path, each in said.items()
        for text in each
        if " " in text and OWN_WORDS.search(text) and "FiLM" not in text
    ]
    assert not found


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('raise ValueError("a number is required")', 1),
        ('raise ValueError(f"numbers are required, got {x}")', 1),
        ('raise ValueError(f"{name} requires " f"{x}")', 1),
        ('wrong = "pooling and size require each other"', 1),
        (
            'def f():\n    """Returns what is required."""\n    raise AssertionError("requires x")',
            0,
        ),
        ('raise ValueError(f"{name} must have {required} numbers, got {x}")', 0),
    ],
)
def test_what_is_found(source: str, count: int) -> None:
    assert len(required(source)) == count
