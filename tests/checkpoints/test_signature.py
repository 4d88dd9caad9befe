"""The key that signs what this user's quintet writes: made once, kept closed, never guessed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quintet.checkpoints import signature


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    """A machine on which nothing was signed yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def key_file(state: Path) -> Path:
    return state / "quintet" / "signing-key"


def test_a_signature_holds_for_its_content_and_purpose_alone():
    mark = signature.sign("a", b"content")
    assert mark is not None
    assert signature.fault("a", b"content", mark) is None
    for purpose, content, given in (
        ("a", b"contend", mark),
        ("b", b"content", mark),
        ("a", b"content", mark[:-1] + ("0" if mark[-1] != "0" else "1")),
        ("a", b"content", ""),
        ("a", b"content", "v1:\udcff"),
    ):
        assert "another user or machine" in str(signature.fault(purpose, content, given))
    for none in (None, 3, [mark], {"v1": mark}):
        assert signature.fault("a", b"content", none) == "bears no signature"


def test_the_key_is_secret_and_made_only_to_sign(state):
    assert "another user" in str(signature.fault("a", b"", "v1:00"))
    assert not state.exists()
    mark = signature.sign("a", b"")
    file = key_file(state)
    assert file.stat().st_mode & 0o7777 == 0o600
    assert file.parent.stat().st_mode & 0o077 == 0
    assert os.listdir(file.parent) == [file.name]
    assert signature.sign("a", b"") == mark


def test_another_key_signs_otherwise(state, tmp_path, monkeypatch):
    mark = signature.sign("a", b"")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    other = signature.sign("a", b"")
    assert other != mark
    assert signature.fault("a", b"", other) is None
    assert "another user or machine" in str(signature.fault("a", b"", mark))


@pytest.mark.parametrize("value", [None, "", "relative/folder"])
def test_without_a_state_folder_it_is_the_one_at_home(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if value is None:
        monkeypatch.delenv("XDG_STATE_HOME")
    else:
        monkeypatch.setenv("XDG_STATE_HOME", value)
    assert signature.sign("a", b"") is not None
    assert (tmp_path / "home/.local/state/quintet/signing-key").exists()
    assert not (tmp_path / "relative").exists()


def test_processes_that_make_the_key_at_once_have_the_same(state):
    code = (
        "import sys; from quintet.checkpoints import signature; print('ready', flush=True); "
        "sys.stdin.readline(); print(signature.sign('a', b''))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    for each in started:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in started:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    said = {each.communicate(timeout=60)[0].strip() for each in started}
    assert said == {signature.sign("a", b"")}
    assert os.listdir(state / "quintet") == ["signing-key"]


def test_of_two_keys_made_at_once_the_first_stays(state, monkeypatch):
    """The other process comes between our look for a key and our own."""
    file = key_file(state)
    link = os.link

    def late(source, target):
        Path(target).write_bytes(b"k" * signature.KEY_BYTES)
        Path(target).chmod(0o600)
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    mark = signature.sign("a", b"")
    assert file.read_bytes() == b"k" * signature.KEY_BYTES
    assert signature.sign("a", b"") == mark
    assert os.listdir(file.parent) == [file.name]


def test_an_unusable_key_signs_nothing_and_says_why(state):
    mark = signature.sign("a", b"")
    file = key_file(state)

    def refused(why: str) -> None:
        assert signature.sign("a", b"") is None
        said = signature.why_no_key()
        assert said is not None
        assert why in said
        assert str(file) in said
        assert why in str(signature.fault("a", b"", mark))

    file.chmod(0o640)
    refused("is open to other users")
    file.chmod(0o600)
    assert signature.fault("a", b"", mark) is None
    key = file.read_bytes()
    for damaged in (b"", key[:-1], key + b"x"):
        file.write_bytes(damaged)
        refused("is damaged")
    file.unlink()
    os.mkfifo(file, 0o600)
    refused("does not belong to this user")
    file.unlink()
    file.mkdir()
    refused("does not belong to this user")


def test_a_key_of_another_user_is_none(state, monkeypatch):
    signature.sign("a", b"")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "does not belong to this user" in str(signature.why_no_key())


def test_without_a_place_for_the_key_nothing_is_signed(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert signature.sign("a", b"") is None
    assert "can't be" in str(signature.why_no_key())
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "relative")
    assert "set HOME or XDG_STATE_HOME" in str(signature.why_no_key())


def test_a_full_disk_leaves_no_torn_key(state, monkeypatch):
    def full(handle: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as within:
        within.setattr(os, "write", full)
        assert "No space left on device" in str(signature.why_no_key())
    assert os.listdir(state / "quintet") == []
    assert signature.why_no_key() is None
