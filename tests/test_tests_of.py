"""`make check` finds the tests of a changed file."""

from pathlib import Path

import pytest
from tests_of import ALWAYS, MOST, ROOT, files_for, selected


def test_a_file_with_a_test_of_its_name_is_tested_by_it():
    assert files_for("quintet/ops/discrete.py") == ["tests/ops/test_discrete.py"]
    assert files_for("tests/ops/test_discrete.py") == ["tests/ops/test_discrete.py"]


def test_files_of_a_learner_are_tested_by_the_tests_of_its_name():
    found = files_for("quintet/algorithms/acer/network.py")
    assert "tests/algorithms/test_acer.py" in found
    assert all("acer" in each for each in found)


def test_other_files_are_tested_by_a_few_that_import_them():
    found = files_for("quintet/types.py")
    assert 0 < len(found) <= MOST
    assert all("quintet.types" in (ROOT / each).read_text() for each in found)


@pytest.mark.parametrize(
    ("source", "test"),
    [("docs/ppo.md", "tests/test_docs.py"), ("benchmarks/rows.py", "tests/test_benchmarks.py")],
)
def test_documents_and_scripts_have_tests(source: str, test: str):
    assert files_for(source) == [test]


def test_without_a_test_the_quick_folders_are_run():
    assert selected([]) == list(ALWAYS)
    assert selected(["LICENSE", "tests/conftest.py"]) == list(ALWAYS)
    assert selected(["quintet/ops/discrete.py", "LICENSE"]) == ["tests/ops/test_discrete.py"]


def test_most_files_of_the_package_have_tests():
    """Those without one are few: `python tests/tests_of.py FILE` says that there is none."""
    sources = [str(path.relative_to(ROOT)) for path in (ROOT / "quintet").rglob("*.py")]
    without = [each for each in sources if not files_for(each) and Path(each).stem != "__init__"]
    assert len(without) < len(sources) / 6, without
