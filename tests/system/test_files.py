"""Files that are nested without end, are none, or can't be written; what survives a crash."""

import errno
import os
from pathlib import Path

import pytest

from quintet.errors import ConfigError, FileFault
from quintet.system import files

DEEP = {
    "json": "[" * 50_000 + "]" * 50_000,
    "json, open": "[" * 200_000,
    "objects": '{"a":' * 50_000,
    "large": "[" * 500_001,
    "just too deep": "[" * 101 + "]" * 101,
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("parse", [files.parse_json, files.parse_yaml])
def test_what_is_nested_without_end_is_one_sentence(parse, text):
    with pytest.raises(ValueError, match=r"it is nested more than 100 deep|at most 500,000 bytes"):
        parse(text)


def test_what_may_be_deep_is_read():
    text = "[" * 100 + "]" * 100
    assert files.parse_json(text) == files.parse_yaml(text)


def test_aliases_do_not_grow_without_end():
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    with pytest.raises(ValueError, match="at most 1,000,000 values"):
        files.parse_yaml("\n".join(lines))
    with pytest.raises(ValueError, match="100 deep"):
        files.parse_yaml("a: &a [*a]")


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "c:\n  a: 1\n\n  'a': 1"])
def test_a_name_that_stands_twice_is_refused_with_its_lines(text):
    first, second = (1, 3) if text[0] == "a" else (2, 4)
    with pytest.raises(ValueError, match=rf"'a' must .* lines {first} and {second}; leave one out"):
        files.parse_yaml(text)


def test_names_of_a_merged_mapping_may_be_given_again():
    text = "b: &b {x: 2, y: 3}\ndeep: {inner: &a {<<: *b, x: 1}}\nother: {<<: *a, y: 4}"
    held = files.parse_yaml(text)
    assert held["deep"]["inner"] == {"x": 1, "y": 3}
    assert held["other"]["y"] == 4


@pytest.mark.parametrize(
    "text", ["a: [", "\x00", "a: *b", "a: !!int x", "a: !!python/name:os.system"]
)
def test_every_fault_of_a_yaml_file_names_it_in_one_line(tmp_path, text):
    (tmp_path / "options.yaml").write_text(text)
    with pytest.raises(FileFault, match=r"options\.yaml is not valid YAML") as raised:
        files.read_yaml(tmp_path / "options.yaml")
    assert "\n" not in str(raised.value)


def test_what_is_no_file_is_named_and_waited_for_by_nobody(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, says in (("pipe", "Invalid arg"), ("folder", "Is a dir"), ("absent", "No such file")):
        with pytest.raises(FileFault, match=rf"{name} can't be read: {says}"):
            files.read_bytes(tmp_path / name)


def test_advice_is_the_errno_s_own():
    room = files.advice(OSError(errno.ENOSPC, ""))
    assert "make room" in room
    others = (errno.EIO, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE)
    told = [files.advice(OSError(number, "")) for number in (*others, errno.ENOENT)]
    assert len({room, *told}) == 8
    assert not any("room" in each for each in told)
    assert "ulimit -n" in files.advice(OSError(errno.EMFILE, ""))
    assert "ulimit -f" in files.advice(OSError(errno.EFBIG, ""))
    assert files.advice(OSError(9999, "")) != ""


@pytest.fixture
def synced(monkeypatch):
    """Names of what was synced, in order."""
    found: list[str] = []
    whole = os.fsync

    def fsync(handle: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        whole(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_what_is_written_is_synced_with_its_folder(tmp_path, synced):
    files.make_folder(tmp_path / "a/b/c")
    assert synced == [tmp_path.name, "a", "b"]
    files.make_folder(tmp_path / "a/b/c")
    assert synced[3:] == []
    files.write_whole(tmp_path / "a/file", b"content")
    assert synced[3:] == [".tmp-file", "a"]
    assert (tmp_path / "a/file").read_bytes() == b"content"


def test_what_can_not_be_written_leaves_the_old_file_alone(tmp_path, monkeypatch):
    files.write_whole(tmp_path / "file", b"old")

    def full(handle: int, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_whole(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_setting_aside_overwrites_nothing(tmp_path):
    for number in (1, 2):
        (tmp_path / "x").write_text(str(number))
        assert files.set_aside(tmp_path / "x").name == f"x.damaged-{number}"
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["1", "2"]


def test_brackets_without_end_on_the_command_line():
    from quintet.options.command import parse

    with pytest.raises(ConfigError, match="nested more than 100 deep"):
        parse("train", ["ppo", "--env", "CartPole-v1", "--env.kwargs", "[" * 20_000])
