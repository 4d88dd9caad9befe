"""`make check` finds the tests of a changed file."""

from pathlib import Path

import pytest
from tests_of import ALWAYS, MOST, ROOT, selected, tests_of


def test_a_file_with_a_test_of_its_name_is_tested_by_it():
    assert tests_of("quintet/ops/vtrace.py") == ["tests/ops/test_vtrace.py"]
    assert tests_of("tests/ops/test_vtrace.py") == ["tests/ops/test_vtrace.py"]


def test_files_of_a_learner_are_tested_by_the_tests_of_its_name():
    found = tests_of("quintet/algorithms/acer/network.py")
    assert "tests/algorithms/test_acer.py" in found
    assert all("acer" in each for each in found)


def test_other_files_are_tested_by_a_few_that_import_them():
    found = tests_of("quintet/types.py")
    assert 0 < len(found) <= MOST
    assert all("quintet.types" in (ROOT / each).read_text() for each in found)


@pytest.mark.parametrize(
    ("source", "test"),
    [("docs/ppo.md", "tests/test_docs.py"), ("benchmarks/rows.py", "tests/test_benchmarks.py")],
)
def test_documents_and_scripts_have_tests(source: str, test: str):
    assert tests_of(source) == [test]


def test_without_a_test_the_quick_folders_are_run():
    assert selected([]) == list(ALWAYS)
    assert selected(["LICENSE", "tests/conftest.py"]) == list(ALWAYS)
    assert selected(["quintet/ops/vtrace.py", "LICENSE"]) == ["tests/ops/test_vtrace.py"]


def test_most_files_of_the_package_have_tests():
    """Those without one are few: `python tests/tests_of.py FILE` says that there is none."""
    sources = [str(path.relative_to(ROOT)) for path in (ROOT / "quintet").rglob("*.py")]
    without = [each for each in sources if not tests_of(each) and Path(each).stem != "__init__"]
    assert len(without) < len(sources) / 6, without
