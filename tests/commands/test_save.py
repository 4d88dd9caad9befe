"""Checkpoints on request: ``quintet save``, SIGUSR1, and an interval in seconds."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import damage_helpers
import pytest
import quick_helpers
from small_run_helpers import hashes

import quintet
from quintet.checkpoints import checkpoint
from quintet.checkpoints.lock import Holder, holder_of, run_lock
from quintet.commands import cli, save

SMALL: dict[str, Any] = {
    "env.num_streams": 4, "unroll_steps": 16, "minibatch_steps": 32, "num_epochs": 1,
    "model.policy_hidden": [4], "eval.episodes": 0, "report.interval_s": 0.0,
    "report.sinks": ["jsonl"], "report.progress": False, "checkpoint.interval_iterations": 100,
    "checkpoint.max_cut_frac": 1.0, "checkpoint.keep": 99,
}  # fmt: skip


def train(folder: Path, on_report: Any = None, **more: Any) -> Any:
    config = SMALL | {name.replace("__", "."): x for name, x in more.items()}
    return quintet.train("ppo", damage_helpers.ENV, 64 * 12, 3, folder, config, on_report=on_report)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_a_signal_saves_and_the_run_keeps_its_bytes(tmp_path, capsys):
    def report(metrics: dict[str, float]) -> None:
        if metrics["iterations"] == 3:
            os.kill(os.getpid(), signal.SIGUSR1)

    train(tmp_path / "asked", report, report__progress=True)
    assert f"saved as asked: {tmp_path / 'asked/checkpoints/000000003'}" in capsys.readouterr().out
    assert names(tmp_path / "asked") == ["000000003", "000000014"]
    train(tmp_path / "plain")
    assert names(tmp_path / "plain") == ["000000014"]
    assert hashes(tmp_path / "asked") == hashes(tmp_path / "plain")
    held = checkpoint.read(tmp_path / "asked/checkpoints/000000003")
    assert held.meta["exact"] is False
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_handler_of_the_users_own_stays(tmp_path):
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    try:
        train(tmp_path / "run", lambda _: os.kill(os.getpid(), signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard
    assert names(tmp_path / "run") == ["000000014"]


def test_an_interval_in_seconds(tmp_path):
    train(tmp_path / "often", checkpoint__interval_s=1e-6)
    assert len(names(tmp_path / "often")) == 14
    train(tmp_path / "plain")
    assert hashes(tmp_path / "often") == hashes(tmp_path / "plain")
    train(tmp_path / "often", checkpoint__interval_s=3600.0)  # which may change on a resume


@pytest.fixture
def running(tmp_path):
    """A real run, which goes on for long."""
    folder = tmp_path / "run"
    words = damage_helpers.arguments(folder)
    words[words.index("--total-steps") + 1] = str(10**8)
    words[words.index("--checkpoint.interval-iterations") + 1] = "1000000"
    words[words.index("--eval.episodes") + 1] = "0"
    del words[words.index("--eval.interval") :][:2]
    words += ["--runtime.compile", "off"]
    process = quick_helpers.begin(["-m", "quintet", *words])
    until = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)
    yield process, folder
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_quintet_save_has_a_running_run_save(running, capsys, monkeypatch):
    process, folder = running
    for _ in range(2):
        assert cli.main(["save", str(folder)]) == 0
        newest = names(folder)[-1]
        assert f"saved {folder / 'checkpoints' / newest}, " in capsys.readouterr().out
        assert not checkpoint.read(folder / "checkpoints" / newest).meta["exact"]
    assert len(names(folder)) == 2
    assert process.poll() is None
    with monkeypatch.context() as patched:
        patched.setattr(save.socket, "gethostname", lambda: "elsewhere")
        assert cli.main(["save", str(folder)]) == 1
        assert "not on this one (elsewhere)" in capsys.readouterr().err
    with monkeypatch.context() as patched:

        def refuse(*_: object) -> None:
            raise PermissionError

        patched.setattr(save.os, "kill", refuse)
        assert cli.main(["save", str(folder)]) == 1
        assert f"process {process.pid} of another user" in capsys.readouterr().err
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    assert cli.main(["save", str(folder)]) == 1
    assert "no process trains in" in capsys.readouterr().err


def test_who_can_not_be_asked(tmp_path, capsys):
    assert cli.main(["save", str(tmp_path / "absent")]) == 1
    assert "must be the folder of a run" in capsys.readouterr().err
    assert cli.main(["save", str(tmp_path)]) == 1
    assert "no process trains in" in capsys.readouterr().err
    with run_lock(tmp_path):  # but has no handler: the signal would end this process
        assert holder_of(tmp_path) == Holder(os.getpid(), save.socket.gethostname(), os.getppid())
        assert cli.main(["save", str(tmp_path)]) == 1
        assert "does not handle SIGUSR1" in capsys.readouterr().err
    assert holder_of(tmp_path) is None
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").symlink_to(tmp_path / "else")
    assert cli.main(["save", str(tmp_path)]) == 1
    assert "a link to" in capsys.readouterr().err
    assert cli.main(["save"]) == 2
    assert cli.main(["save", str(tmp_path), "--wait-s", "0"]) == 2


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        ("nothing", "has no new checkpoint after 0.2 s; process "),
        ("save", "saved "),
        ("end", "has no new checkpoint, since its process "),
        ("save and end", "saved "),
    ],
)
def test_a_command_waits_for_a_new_checkpoint_only(
    asks: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """What the process that is asked does."""
    checkpoint.write(tmp_path / "checkpoints", "000000001", {}, {"iteration": 1})
    holder: list[Holder | None] = [Holder(4321, save.socket.gethostname(), 1)]

    def kill(pid: int, number: int) -> None:
        assert (pid, number) == (4321, signal.SIGUSR1)
        if "save" in asks:
            checkpoint.write(tmp_path / "checkpoints", "000000002", {}, {"iteration": 2})
        if "end" in asks:
            holder[0] = None

    monkeypatch.setattr(save, "holder_of", lambda _: holder[0])
    monkeypatch.setattr(save, "_catches", lambda _: True)
    monkeypatch.setattr(save.os, "kill", kill)
    assert cli.main(["save", str(tmp_path), "--wait-s", "0.2"]) == int("save" not in asks)
    shown = capsys.readouterr()
    assert said in shown.out + shown.err
    assert ("000000002" in shown.out) == ("save" in asks)


def test_a_folder_of_several_runs_is_told_from_a_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/s1").mkdir(parents=True)
    Path("runs/s1/config.yaml").write_text("algo: ppo\n")
    Path("runs/s1/log.txt").touch()
    assert cli.main(["save", "runs"]) == 1
    assert "give one of the runs in it, as runs/s1" in capsys.readouterr().err
