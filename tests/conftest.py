"""For all tests."""

import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest

# Read when NumPy and PyTorch are loaded: threads wait for each other on cores that another test
# process uses.  Runs choose their own number.
NUMPY_CAME_FIRST = "numpy" in sys.modules
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(scope="session", autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory):
    """The key that signs runs is made in a folder of the tests' own, not in the user's."""
    before = os.environ.get("XDG_STATE_HOME")
    folder: Path = tmp_path_factory.mktemp("state")
    os.environ["XDG_STATE_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["XDG_STATE_HOME"]
    else:
        os.environ["XDG_STATE_HOME"] = before


@pytest.fixture(scope="session", autouse=True)
def nobody_waits_for_the_disk():
    """Syncs of this process leave the disk alone: they take milliseconds, dozens of them for a
    small run, and only a power cut tells the difference, which tests make in processes of their
    own.  Tests of when something is synced replace the same function.
    """

    def fsync(handle: int) -> None:
        os.fstat(handle)  # which must be open

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        yield


@pytest.fixture(scope="session", autouse=True)
def git_is_asked_once():
    """Every run tells its revision; in this repository, which no test changes, git takes longer for
    it than a small run does.
    """
    from quintet.system import provenance

    ask, here = provenance._git, Path(__file__).parent.parent
    told: dict[tuple[Path | str, ...], str | None] = {}

    def git(folder: Path, *words: str) -> str | None:
        if not folder.is_relative_to(here):
            return ask(folder, *words)
        if (folder, *words) not in told:
            told[folder, *words] = ask(folder, *words)
        return told[folder, *words]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(provenance, "_git", git)
        yield


@pytest.fixture(scope="session", autouse=True)
def workers_import_once():
    """Workers are forks of the process that forks all else."""
    from quick_helpers import PRELOAD

    from quintet.runtime.processes import process

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process, "PRELOAD", PRELOAD)
        yield


@pytest.fixture(scope="session", autouse=True)
def few_steps_show_whether_episodes_repeat():
    """The check at the start of an exact run makes dozens of steps, not hundreds, which take longer
    than a small run; where workers step none, as it has a process of its own.  Tests of the check
    have the real number, or the next fixture.
    """
    from quintet.envs import repeating
    from quintet.envs.settled import KeysInInfo
    from quintet.run import repeat_check, sampling

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(repeating, "_ROWS", 8)
        patched.setattr(repeating, "_USED", 24)
        real = repeat_check.unrepeatable_apart
        patched.setattr(repeat_check, "unrepeatable_apart", lambda *_: "")
        keys = repeat_check.keys_apart
        patched.setattr(repeat_check, "keys_apart", lambda *_: KeysInInfo())
        # Many tests count the steps and the makings of their environments.
        patched.setattr(sampling, "keys_in_info", lambda _: KeysInInfo())
        yield real, keys


@pytest.fixture
def checked_apart(
    few_steps_show_whether_episodes_repeat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where workers step, a process of its own checks whether episodes repeat, as in use."""
    name = "quintet.run.repeat_check.unrepeatable_apart"
    monkeypatch.setattr(name, few_steps_show_whether_episodes_repeat[0])


@pytest.fixture
def keys_apart(few_steps_show_whether_episodes_repeat: Any) -> Any:
    """Looks in a process of its own which numbers are in info, as in use where workers step."""
    return few_steps_show_whether_episodes_repeat[1]


@pytest.fixture(autouse=True)
def clocks_move_no_environments(monkeypatch: pytest.MonkeyPatch):
    """Environments are stepped by the process that made them, whatever their steps take: on a busy
    machine some steps take long, and where others then step the environments, what a test counts in
    this process, or every step of, is something else.  Tests of the choice have the real one.
    """
    from quintet.runtime import spread

    monkeypatch.setattr(spread, "best_num_processes", lambda *_: 1)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that this process finds; `installed.install` writes some there."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: no search for garbage need look at it, and
    with Python's own threshold of 700 objects searches take 5% of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """Skips, aloud, what the installed PyTorch is too old for, as quintet's own refusal says."""
    from quintet.system.compiler import too_old

    try:
        return (yield)
    except Exception as error:
        fault = too_old()
        if fault is None or fault not in str(error):
            raise
        pytest.skip(fault)
