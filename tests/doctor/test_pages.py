"""The documentation has a section for every finding, and no other."""

import ast
import re
from pathlib import Path

from quintet.config.run import FINDINGS
from quintet.doctor import finding, run_learning

ROOT = Path(__file__).parents[2]
PAGE = ROOT / finding.PAGE


def names() -> set[str]:
    """Names of findings that the code has."""
    found = {name.replace("_", "-") for name in finding.WEIGHTS}
    found |= {f"health-{name.replace('_', '-')}" for name in (*run_learning.PARTS, "part")}
    for file in (ROOT / "quintet" / "doctor").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                first = node.args[0] if node.func.id == "Finding" and node.args else None
                if isinstance(first, ast.Constant):
                    found.add(str(first.value))
    return found | {"raises"}  # or not-finite, by its text


def test_every_finding_may_be_known():
    assert names() == FINDINGS


def test_every_finding_has_a_section():
    sections = set(re.findall(r"^### (\S+)$", PAGE.read_text(), re.MULTILINE))
    assert sections == names()


def test_links_lead_to_sections():
    assert finding.Finding("slow", 0.1, "").link == "docs/not-learning.md#slow"


def test_findings_are_ranked_and_each_is_told_once():
    a, b = finding.Finding("slow", 0.1, ""), finding.Finding("gamma", 0.7, "")
    assert finding.ranked([a, None, b, a]) == [b, a]
    assert [each.degree for each in (a, b)] == ["note", "likely"]
