"""Errors and output of environments, as a command prints and keeps them."""

import json
from pathlib import Path

import pytest

from quintet.commands import cli

KINDS = {"serial": [], "lockstep": ["--runtime.num-workers", "1"]}


@pytest.fixture
def ended(tmp_path, capfd):
    """Exit status, printed text and folder of a run with these arguments of `Loud`."""

    def run(kind: str, **given) -> tuple[int, str, Path]:
        status = cli.main([
            "train", "ppo", "--env", "loud_helpers:Loud", "--env.kwargs", json.dumps(given),
            "--run-dir", str(tmp_path / "run"), "--total-steps", "256", "--env.num-streams", "2",
            "--unroll-steps", "16", "--runtime.compile", "off", "--eval.episodes", "0",
            "--runtime.kind", kind, *KINDS[kind],
        ])  # fmt: skip
        return status, "".join(capfd.readouterr()), tmp_path / "run"

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_error_is_printed_and_kept_without_its_middle(ended, kind):
    status, printed, folder = ended(kind, text="large")
    assert status == 1
    assert "ValueError: xxx" in printed
    assert "characters left out" in printed
    assert "mend the environment" in printed
    assert len(printed) < 10_000
    log = (folder / "log.txt").read_text()
    assert len(log) < 100_000
    assert "in in_step_five\n    raise ValueError(self.text)" in log
    assert len((folder / "run.json").read_text()) < 20_000


@pytest.mark.parametrize("kind", KINDS)
def test_control_characters_of_an_error_are_printed_and_kept_by_name(ended, kind):
    status, printed, folder = ended(kind, text="commands")
    assert status == 1
    for text in (printed, (folder / "log.txt").read_text()):
        assert r"\x1b[2J\x1b]0;title\x07 over\rwritten \x9b2J\u202e" in text
        assert not {*"\x1b\x07\r\x9b\u202e"} & {*text}


def test_control_characters_that_workers_print_are_passed_on_by_name(ended):
    status, printed, folder = ended("lockstep", text="commands", prints=True)
    assert status == 0
    passed_on = [line for line in printed.splitlines() if line.startswith("[")]
    assert any(r"written \x9b2J\u202e" in line for line in passed_on)  # after the return
    for text in (*passed_on, (folder / "log.txt").read_text()):
        assert not {*"\x1b\x07\r\x9b\u202e"} & {*text}
