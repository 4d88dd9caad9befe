"""Prints the test files of source files; `make check` runs those of what has changed.

python tests/tests_of.py quintet/runtime/delivery.py    the tests of these files
python tests/tests_of.py --changed                      the tests of what differs from `main`, or
                                                        of ops, models and config without a change
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
ALWAYS = ("tests/ops", "tests/models", "tests/options")
"""What is tested where nothing has changed, or only what no test names."""

MOST = 6
"""Test files for a source file that no test is named after."""


def files_for(source: str) -> list[str]:
    """Test files of one file, by their paths in the repository.

    Those named after it, in the folder that mirrors its own (`test_NAME.py`, `test_NAME_*.py`);
    for a learner's files those named after the learner; else the first few that import it.
    """
    path = Path(source)
    if path.parts[:1] == ("tests",):
        return [source] if path.name.startswith("test_") and (ROOT / path).exists() else []
    if path.parts[:2] == ("benchmarks", "fixed_work") or path.name == "speed.py":
        return ["tests/bench/test_speed.py", "tests/bench/test_work.py"]
    if path.parts[:1] == ("benchmarks",) and path.suffix == ".py":
        return ["tests/test_benchmarks.py"]
    if path.suffix == ".md":
        return ["tests/test_docs.py"]
    if path.parts[:1] != ("quintet",):
        return []
    if path.suffix == ".yaml":
        return ["tests/options"]
    folder, stem = TESTS.joinpath(*path.parts[1:-1]), path.stem
    if path.parts[1:2] == ("algorithms",) and path.parts[2:3] != ("parts",) and len(path.parts) > 3:
        found = _named(TESTS / "algorithms", path.parts[2])
    else:
        found = _named(folder, stem)
    return found or _importers(".".join(path.with_suffix("").parts))[:MOST]


def changed() -> list[str]:
    """Files that differ from where the branch left `main`, and new ones."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    listed = _git("diff", "--name-only", *base) + _git("ls-files", "--others", "--exclude-standard")
    return sorted({*listed})


def selected(sources: list[str]) -> list[str]:
    """Test files of several files, each once; `ALWAYS` where there are none."""
    found = {test for source in sources for test in files_for(source)}
    return sorted(found) or list(ALWAYS)


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def _named(folder: Path, stem: str) -> list[str]:
    files = {*folder.glob(f"test_{stem}.py"), *folder.glob(f"test_{stem}_*.py")}
    return sorted(str(each.relative_to(ROOT)) for each in files)


def _importers(module: str) -> list[str]:
    """Test files that import a module, those that import least of quintet first."""
    package, _, name = module.removesuffix(".__init__").rpartition(".")
    form = re.compile(
        rf"^(from {re.escape(module)} import|import {re.escape(module)}\b"
        rf"|from {re.escape(package)} import .*\b{name}\b)",
        re.M,
    )
    found = {name: lines for name, lines in _imports().items() if form.search(lines)}
    return sorted(found, key=lambda name: (found[name].count("\n"), name))


@cache
def _imports() -> dict[str, str]:
    """The lines of each test file that import something of quintet."""
    line = re.compile(r"^(?:from|import) quintet.*\n", re.M)
    return {
        str(each.relative_to(ROOT)): "".join(line.findall(each.read_text()))
        for each in TESTS.rglob("test_*.py")
    }


if __name__ == "__main__":
    words = sys.argv[1:]
    if not words:
        sys.exit(__doc__)
    print("\n".join(selected(changed() if words == ["--changed"] else words)))
