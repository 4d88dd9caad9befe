"""The distribution ``quintet-rl``: its name in every message, what its files hold, and its use in a
virtual environment of its own, away from the sources.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from test_docs import ROOT

import quintet

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = [
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "constraints.txt",
]
NAME = f"quintet_rl-{quintet.__version__}"

# The name


def tracked() -> list[Path]:
    """Every file that git knows."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a git repository, which knows its files")
    return [file for name in listed.split("\0") if name and (file := ROOT / name).is_file()]


OLD = re.compile(r"""quintet\[[a-z,-]*\]|install [^\n`]*(?<![\w./-])quintet(?![\w.-])""")
"""``quintet[plot]``, or quintet as a package to install; ``quintet`` is another project's name."""


def old_forms(text: str) -> list[str]:
    return [each[0] for each in OLD.finditer(text)]


def test_no_message_or_document_installs_the_other_quintet() -> None:
    found = {}
    for file in tracked():
        if file.suffix in {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".cff", ".ipynb", ""}:
            text = file.read_text(errors="replace")
            if old := old_forms(text):
                found[str(file.relative_to(ROOT))] = old
    found.pop("tests/test_distribution.py")
    assert found == {}


@pytest.mark.parametrize(
    "text", ['pip install "quintet[plot]"', "pip install quintet", "uv pip install -U quintet\n"]
)
def test_the_old_form_is_found(text: str) -> None:
    assert old_forms(text)


@pytest.mark.parametrize(
    "text",
    ['pip install "quintet-rl[plot]"', "pip install quintet-rl", "pip install ./quintet-a2c"],
)
def test_the_new_form_is_left_alone(text: str) -> None:
    assert old_forms(text) == []


def test_the_extras_that_messages_name_exist() -> None:
    extras = PROJECT["optional-dependencies"]
    named = set()
    for file in (ROOT / "quintet").rglob("*.py"):
        for words in re.findall(r"quintet-rl\[([a-z,]+)\]", file.read_text()):
            named |= set(words.split(","))
    assert named
    assert named <= set(extras)


# The versions


def pinned(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    pins = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {name.lower(): version for name, version in pins}


def bounds() -> dict[str, str]:
    """The oldest version of every package that users get by name."""
    extras = PROJECT["optional-dependencies"]
    asked = PROJECT["dependencies"] + [
        each
        for name, of_extra in extras.items()
        if name not in ("dev", "docs")
        for each in of_extra
    ]
    found = (re.match(r"([\w-]+)>=([\d.]+)", each) for each in asked)
    return {each[1].lower(): each[2] for each in found if each is not None}


def test_the_lowest_versions_are_those_that_the_project_admits() -> None:
    """``make test-lowest`` tests every bound, up to fixes of the same version."""
    lowest, admitted = pinned("constraints-lowest.txt"), bounds()
    assert set(lowest) == set(admitted)
    for name, bound in admitted.items():
        parts = [[int(part) for part in each.split(".")] for each in (lowest[name], bound)]
        same = [[*each, 0, 0][:2] for each in parts]
        assert same[0] == same[1], name
        assert parts[0] >= parts[1], name


def test_the_tested_versions_are_pinned() -> None:
    tested = pinned("constraints.txt")
    assert set(bounds()) <= set(tested)
    dev = {re.match(r"[\w-]+", each)[0].lower() for each in PROJECT["optional-dependencies"]["dev"]}
    assert dev - {"quintet-rl"} <= set(tested)


# The files


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it; nothing is downloaded."""
    for needed in ("build", "twine", "setuptools"):
        pytest.importorskip(needed)
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        shutil.copy(ROOT / name, copy)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "quintet", copy / "quintet", ignore=ignored)
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


def of_package() -> set[str]:
    files = (file for file in (ROOT / "quintet").rglob("*") if file.is_file())
    return {str(file.relative_to(ROOT)) for file in files if file.suffix != ".pyc"}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_no_more(built: Path) -> None:
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        commands = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
        about = wheel.read(f"{NAME}.dist-info/METADATA").decode()
    own = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
    assert names == of_package() | {f"{NAME}.dist-info/{each}" for each in own}
    assert commands.split() == ["[console_scripts]", "quintet", "=", "quintet.commands.start:main"]
    assert "\nName: quintet-rl\n" in about
    assert f"\nVersion: {quintet.__version__}\n" in about


@pytest.mark.slow
def test_the_sdist_holds_what_builds_the_package(built: Path) -> None:
    with tarfile.open(built / f"{NAME}.tar.gz") as sdist:
        names = {each.name.removeprefix(f"{NAME}/") for each in sdist if each.isfile()}
    made = {name for name in names if name.startswith("quintet_rl.egg-info/")}
    assert names - made == of_package() | {*SOURCES, "PKG-INFO", "setup.cfg"}


@pytest.mark.slow
def test_an_index_would_take_them(built: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_every_file_of_the_package_is_known_to_git() -> None:
    """What is built from a clone is what was tested."""
    known = {str(file.relative_to(ROOT)) for file in tracked()}
    assert of_package() <= known


# A stranger's machine

PLUGIN = ROOT / "examples" / "quintet-a2c"


@pytest.mark.slow
def test_a_fresh_environment_has_all_that_a_stranger_needs(built: Path, tmp_path: Path) -> None:
    """From a wheel and Python to a policy; prints the seconds of each step."""
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    programs = home / ("Scripts" if os.name == "nt" else "bin")
    variables = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run(program: str, *words: str | Path) -> str:
        began = time.monotonic()
        command = [programs / program, *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=1800
        )
        said = done.stdout + done.stderr
        print(f"{time.monotonic() - began:.1f} s: {program} {' '.join(map(str, words[:4]))}")
        if program == "pip" and done.returncode and "Could not find a version" in said:
            pytest.skip(f"no package index can be reached: {said[-300:]}")
        assert done.returncode == 0, said[-3000:]
        return done.stdout

    limits = ["--quiet", "-c", ROOT / "constraints.txt"]
    run("pip", "install", *limits, "torch")
    run("pip", "install", *limits, f"quintet-rl[envpool,plot] @ {wheel_of(built).as_uri()}")
    run("pip", "check")
    where = run("python", "-c", "import quintet; print(quintet.__file__)")
    assert where.startswith(str(home))
    assert f"quintet {quintet.__version__}\n" in run("quintet", "--version")
    small = ["--total-steps", "20000", "--report.progress", "false"]
    run("quintet", "train", "ppo", "--env", "CartPole-v1", "--run-dir", "ppo", *small)
    assert (tmp_path / "ppo" / "policy" / "policy.safetensors").is_file()
    run("quintet", "eval", "ppo", "--episodes", "10")
    run("quintet", "plot", "ppo", "--out", "curve.png")
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    plugin = shutil.copytree(PLUGIN, tmp_path / "plugin")
    run("pip", "install", *limits, plugin)  # whose dependency is the installed quintet-rl
    assert "a2c" in run("quintet", "--help")
    run("quintet", "train", "a2c", "--env", "CartPole-v1", "--run-dir", "a2c", *small)


def wheel_of(built: Path) -> Path:
    return built / f"{NAME}-py3-none-any.whl"
