"""Docstrings and comments begin with a noun or a verb."""

import ast
import io
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quintet

HEADLESS = """
what of how where which by who whose when why that than as for to with from in on if because since
while and or but it its they them these those there so before after
"""
"""First words of clauses that name no subject."""

ROOT = Path(quintet.__file__).parents[1]
FILES = sorted([*ROOT.glob("quintet/**/*.py"), *ROOT.glob("plugins/*/*/*.py")])


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of modules, classes, functions, and of the names that one follows."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(ast.Constant(str(text))):
                    yield text


def comments(source: str) -> Iterator[str]:
    """The first lines of comments, and further lines that begin a sentence."""
    last_line, last_column, ended = 0, 0, True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            alone = not token.line[:column].strip()
            if ended or not alone or (last_line, last_column) != (line - 1, column):
                yield token.string.lstrip("#")
            last_line, last_column = line if alone else 0, column
            ended = token.string.endswith((".", "!", "?"))


def headless(texts: Iterator[str]) -> list[str]:
    found = (text.split()[0].strip("`,.;:()").lower() for text in texts if text.strip())
    return [word for word in found if word in HEADLESS.split()]


def faults(files: list[Path], texts: Callable[[str], Iterator[str]]) -> dict[str, list[str]]:
    found = {str(path): headless(texts(path.read_text())) for path in files}
    return {path: words for path, words in found.items() if words}


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    assert len(FILES) > 300
    assert not faults(FILES, docstrings)


def test_comments_begin_with_a_noun_or_a_verb() -> None:
    assert not faults(FILES, comments)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('"""Of the speed of updates."""', ["of"]),
        ('def f():\n    """What could not be sent."""', ["what"]),
        ('class A:\n    x = 1\n    """How far."""', ["how"]),
        ('def f():\n    """Returns what could not be sent."""\n    return "of"', []),
    ],
)
def test_docstrings_that_are_found(source: str, words: list[str]) -> None:
    assert headless(docstrings(source)) == words


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1  # of the time", ["of"]),
        ("x = '# of'\n# Which is large.\n", ["which"]),
        ("# Large numbers lose digits.\n# In float32 most do.\nx = 1\n", ["in"]),
        ("# Large numbers lose digits\n# in float32\nx = 1  #\n", []),
        ("x = 1  # large\ny = 2  # as x\n# so is z\nz = 3\n", ["as", "so"]),
        ("if x:\n    y = 1\n    # large\n# (before z)\nz = 2\n", ["before"]),
    ],
)
def test_comments_that_are_found(source: str, words: list[str]) -> None:
    assert headless(comments(source)) == words
