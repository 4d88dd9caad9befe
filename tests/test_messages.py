"""Refusals say what must be: "X must Y, got Z; do W"."""

import ast
import re
from pathlib import Path

import pytest

import quintet

REQUIRED = re.compile(r"\b(is|are) required\b|\brequires?\b")


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
