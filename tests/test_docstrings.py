"""Docstrings begin with a noun or a verb."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import quintet

HEADLESS = """
what of how where which by who whose when why that than as for to with from in on if because since
while and or but it its they them these those there so before after
"""
"""First words of clauses that name no subject."""


def docstrings(tree: ast.AST) -> Iterator[str]:
    """The docstrings of modules, classes, functions, and of the names that one follows."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    yield text


def headless(source: str) -> list[str]:
    found = (text.split()[0].strip("`,.;:()").lower() for text in docstrings(ast.parse(source)))
    return [word for word in found if word in HEADLESS.split()]


PACKAGE = Path(quintet.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = {str(path): headless(path.read_text()) for path in FILES}
    assert not {path: words for path, words in found.items() if words}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""Of the speed of updates."""', ["of"]),
        ('def f():\n    """What could not be sent."""', ["what"]),
        ('class A:\n    x = 1\n    """How far."""', ["how"]),
        ('def f():\n    """Returns what could not be sent."""\n    return "of"', []),
    ],
)
def test_what_is_found(source: str, words: list[str]) -> None:
    assert headless(source) == words
