"""Whether a folder is the same one for other processes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quintet.errors import ConfigError
from quintet.jobs.shared import SharedFolder, fault_there


def in_another_process(folder: Path, token: str) -> str:
    code = (
        "import sys; from pathlib import Path; from quintet.jobs.shared import fault_there\n"
        "print(fault_there(Path(sys.argv[1]), sys.argv[2], 'b'))"
    )
    words = [sys.executable, "-c", code, str(folder), token]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_a_folder_that_all_share_is_left_as_it_was(tmp_path: Path) -> None:
    """Also one that had to be made."""
    for folder in (tmp_path, tmp_path / "new/deep"):
        shared = SharedFolder(folder)
        assert in_another_process(folder, shared.token) == "None"
        assert shared.fault("b") is None
        assert fault_there(folder, shared.token, "c") is None
        assert "got a file there that " in (shared.fault("d") or "")
        shared.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_another_one_there_is_named(tmp_path: Path) -> None:
    shared = SharedFolder(tmp_path / "here")
    (tmp_path / "there").mkdir()
    fault = fault_there(tmp_path / "there", shared.token, "b")
    assert fault is not None
    assert fault.startswith(f"must share the folder of the runs, {tmp_path}/there, got another ")
    assert "no such folder" in str(fault_there(tmp_path / "none", shared.token, "b"))
    shared.close()


def test_a_folder_without_common_locks_is_refused(tmp_path: Path) -> None:
    """Else two processes could train in one run folder."""
    (tmp_path / ".quintet-probe-t").touch()
    assert "must see locks of other machines" in str(fault_there(tmp_path, "t", "b"))


def test_a_folder_that_can_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, opened = SharedFolder(tmp_path), os.open

    def read_only(path: Any, flags: int, *others: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system", path)
        return opened(path, flags, *others, **more)

    monkeypatch.setattr(os, "open", read_only)
    fault = fault_there(tmp_path, shared.token, "b")
    assert fault is not None
    assert fault.startswith(f"must be able to write into {tmp_path}, got ")
    with pytest.raises(ConfigError, match="in which files can be made and locked"):
        SharedFolder(tmp_path / "new")
    shared.close()
    assert list(tmp_path.iterdir()) == []
