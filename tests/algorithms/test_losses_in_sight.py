"""The loss of every learner can be read: one short function, with its sum written out."""

import ast
import inspect
import io
import textwrap
import tokenize
from pathlib import Path

import pytest
from conformance_helpers import Case

import quintet

MOST_LINES = 30

FILES = Path(quintet.__file__).parent.glob("algorithms/*/learner.py")
OURS = sorted(file.parent.name for file in FILES)

SILENT = tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT
"""Tokens that make no line of code."""


def body_of(algo: str) -> tuple[str, ast.FunctionDef]:
    """The source of a learner's `loss`, and its tree."""
    source = textwrap.dedent(inspect.getsource(type(Case(algo).learner()).loss))
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return source, function


@pytest.mark.parametrize("algo", OURS)
def test_a_loss_has_at_most_30_lines(algo: str) -> None:
    """Of code: without the docstring, comments and blank lines."""
    source, function = body_of(algo)
    assert ast.get_docstring(function), "it names the paper and the equation"
    first = function.body[1].lineno
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line
        for token in tokens
        if token.type not in SILENT
        for line in range(token.start[0], token.end[0] + 1)
        if line >= first
    }
    assert 10 < len(lines) <= MOST_LINES


@pytest.mark.parametrize("algo", OURS)
def test_the_sum_stands_in_one_line(algo: str) -> None:
    """The total is a sum of named terms, and is what the function returns first."""
    _, function = body_of(algo)
    (total,) = (
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "total"
    )
    terms = ast.unparse(total).split(" + ")
    assert len(terms) >= 3
    assert terms[0] in ("policy_loss", "critic_loss")
    assert isinstance(total, ast.BinOp)
    result = function.body[-1]
    assert isinstance(result, ast.Return)
    assert ast.unparse(result).startswith("return (total, Outputs(")


@pytest.mark.parametrize("algo", OURS)
def test_the_docstring_names_the_papers_equation(algo: str) -> None:
    _, function = body_of(algo)
    docstring = " ".join((ast.get_docstring(function) or "").split())
    assert "equation" in docstring
    assert "``total = " in docstring
