"""Mutations of a run folder, drawn by a seed, and what commands may make of them.

Whatever a folder has suffered, no command may end in a traceback or hang, and none may give another
result without a word: either it fails or warns, or the result is that of the undamaged run.
"""

import contextlib
import io
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import quintet
from quintet.checkpoints import checkpoint, manifest
from quintet.checkpoints.checkpoint import tensor_hashes
from quintet.commands import cli
from quintet.errors import QuintetError
from quintet.observe.plots import plot_runs
from quintet.observe.report_files import read_metrics
from quintet.observe.run_summary import group_key

ENV = "quintet.envs.toy:Contextual"
TOTAL, STOP_AT = 64 * 6, 3
OPTIONS = {
    "env.num_streams": "4",
    "env.num_processes": "1",  # a busy machine would choose more, and reports tell how many
    "unroll_steps": "16",
    "minibatch_steps": "32",
    "num_epochs": "1",
    "model.policy_hidden": "[4]",
    "eval.episodes": "2",
    "eval.interval": "128",
    "report.interval_s": "0.0",
    "report.sinks": '["csv"]',
    "report.progress": "false",
    "checkpoint.interval_iterations": "2",
    "checkpoint.max_cut_frac": "1.0",
    "checkpoint.keep": "2",
}


def arguments(folder: Path) -> list[str]:
    """The command that begins a run, and that goes on with it."""
    words = ["train", "ppo", "--env", ENV, "--total-steps", str(TOTAL), "--seed", "3"]
    for name, value in OPTIONS.items():
        words += [f"--{name.replace('_', '-')}", value]
    return [*words, "--run-dir", str(folder)]


@dataclass(frozen=True)
class Outcome:
    """What a command did: its status, what it said, and its result in a comparable form."""

    status: int
    said: str
    result: object = None


def run_command(act: Callable[[], object]) -> Outcome:
    """Any other error than quintet's own goes through, and fails the test."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                result = act()
        except QuintetError as error:
            return Outcome(1, f"{err.getvalue()}error: {error}")
    if isinstance(result, int) and result != 0:
        return Outcome(result, err.getvalue())
    return Outcome(0, err.getvalue(), result)


def train(folder: Path) -> object:
    status = cli.main(arguments(folder))
    if status:
        return status
    newest = checkpoint.latest(folder / "checkpoints", warn=print)
    assert newest is not None
    rows = read_metrics(folder)
    timed = ("wall_s", "throughput/", "time/", "machine/", "process/")
    return (
        tensor_hashes(newest),
        tensor_hashes(checkpoint.read(folder / "policy")),
        tensor_hashes(checkpoint.read(folder / "best")),
        [{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows],
    )


def evaluate(folder: Path) -> object:
    return quintet.evaluate(quintet.load(folder), episodes=2, seed=5).returns.tolist()


def evaluate_best(folder: Path) -> object:
    return tensor_hashes(checkpoint.Checkpoint(folder, {"p": dict(
        quintet.load(folder, "best").publication.tensors)}, {}, None))  # fmt: skip


def load(folder: Path) -> object:
    policy = quintet.load(folder)
    obs = policy.spaces.observation.sample() * 0
    return [np.asarray(policy.act(obs)[0]).tolist()]


def reports(folder: Path) -> object:
    """Those at the newest checkpoint: of later ones, which a resume writes again, no checksum is
    known, and of none where the only checkpoint has lost its number."""
    if not manifest.numbered(folder / "checkpoints"):
        raise QuintetError("no checkpoint is there")
    rows = read_metrics(folder)
    return rows if len(rows) > STOP_AT else rows[: STOP_AT - 1]


def plot(folder: Path) -> object:
    from quintet.observe.plot_groups import options_of

    plot_runs([folder], folder.parent / "drawn.svg", kind="bars", metric="eval/return_mean")
    return group_key(options_of(folder))


COMMANDS = (train, evaluate, evaluate_best, load, reports)
DRAWING = (plot,)  # takes a third of a second


# Mutations: each takes a file (and where it needs one another file), and damages it.


def flip(file: Path, _: Path, rng: np.random.Generator) -> None:
    data = bytearray(file.read_bytes())
    if data:
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    file.write_bytes(bytes(data))


def truncate(file: Path, _: Path, rng: np.random.Generator) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(rng.integers(len(data) + 1))])


def drop_lines(file: Path, _: Path, rng: np.random.Generator) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: int(rng.integers(len(lines) + 1))]))


def remove(file: Path, _: Path, rng: np.random.Generator) -> None:
    file.unlink()


def empty(file: Path, _: Path, rng: np.random.Generator) -> None:
    file.write_bytes(b"")


def foreign(file: Path, _: Path, rng: np.random.Generator) -> None:
    file.write_bytes(rng.bytes(int(rng.integers(1, 300))))


def insert(file: Path, _: Path, rng: np.random.Generator) -> None:
    data = file.read_bytes()
    at = int(rng.integers(len(data) + 1))
    file.write_bytes(data[:at] + rng.bytes(int(rng.integers(1, 20))) + data[at:])


def folder_instead(file: Path, _: Path, rng: np.random.Generator) -> None:
    file.unlink()
    file.mkdir()
    if rng.integers(2):
        (file / "within").write_text("x")


def swap(file: Path, other: Path, rng: np.random.Generator) -> None:
    first, second = file.read_bytes(), other.read_bytes()
    file.write_bytes(second)
    other.write_bytes(first)


def brackets(file: Path, _: Path, rng: np.random.Generator) -> None:
    file.write_bytes(b"[" * 20_000)


def strange_number(file: Path, _: Path, rng: np.random.Generator) -> None:
    """Puts one in place of a number, as a person or a program may have done."""
    data = file.read_bytes()
    places = [i for i, byte in enumerate(data) if chr(byte).isdigit()]
    if not places:
        return
    at = int(rng.choice(places))
    end = at
    while end < len(data) and chr(data[end]) in "0123456789.":
        end += 1
    new = rng.choice([b"-1", b"NaN", b"1e999", b"9" * 400, b"0", b"null", b"true", b'"x"'])
    file.write_bytes(data[:at] + bytes(new) + data[end:])


def folder_gone(file: Path, _: Path, rng: np.random.Generator) -> None:
    if file.parent.name.isdigit() or file.parent.name in ("best", "policy"):
        shutil.rmtree(file.parent)
    else:
        file.unlink()


def folder_renamed(file: Path, _: Path, rng: np.random.Generator) -> None:
    """A checkpoint under the number of another, or of none."""
    if file.parent.name.isdigit():
        name = f"{int(rng.integers(9)):09d}x"[: 9 + rng.integers(2)]
        if not (file.parent.parent / name).exists():
            file.parent.rename(file.parent.with_name(name))


def file_instead_of_folder(file: Path, _: Path, rng: np.random.Generator) -> None:
    if file.parent.name.isdigit() or file.parent.name in ("best", "policy"):
        shutil.rmtree(file.parent)
        file.parent.write_bytes(rng.bytes(20))


MUTATIONS = (
    flip, flip, flip, flip, truncate, drop_lines, remove, empty, foreign, insert, folder_instead,
    swap, brackets, strange_number, strange_number, folder_gone, folder_renamed,
    file_instead_of_folder,
)  # fmt: skip


def mutate(folder: Path, rng: np.random.Generator) -> str:
    """Damages one file of the folder; says which and how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    file, other = (files[int(i)] for i in rng.choice(len(files), 2, replace=False))
    change = MUTATIONS[int(rng.integers(len(MUTATIONS)))]
    change(file, other, rng)
    return f"{change.__name__} {file.relative_to(folder)} ({other.relative_to(folder)})"


# Runs to damage


def make_runs(root: Path) -> dict[str, Path]:
    """A finished run, and one that was stopped half way."""
    from quintet.run.trainer import Trainer

    finished, half = root / "finished", root / "half"
    silent = io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
        assert cli.main(arguments(finished)) == 0
        whole = Trainer.after_iteration

        def stopping(self: Trainer, episodes: list) -> bool:
            if self.counters.iteration == STOP_AT + 1:
                raise KeyboardInterrupt  # as a kill: with a checkpoint at 2 and reports up to 3
            return whole(self, episodes)

        Trainer.after_iteration = stopping  # type: ignore[method-assign]
        try:
            assert cli.main(arguments(half)) == 130
        finally:
            Trainer.after_iteration = whole  # type: ignore[method-assign]
    return {"finished": finished, "half": half}


def undamaged(runs: dict[str, Path], root: Path) -> dict[tuple[str, str], object]:
    """The results of all commands on whole folders."""
    results = {}
    for name, run in runs.items():
        for command in (*COMMANDS, *DRAWING):
            folder = root / "sound" / name
            shutil.copytree(run, folder)
            done = run_command(lambda c=command, f=folder: c(f))
            if done.status:
                assert command is evaluate_best or name == "half", (name, command, done)
            results[name, command.__name__] = done.result
            shutil.rmtree(folder)
    return results


def judge(expected: object, done: Outcome) -> str | None:
    """What is wrong with an outcome, None if nothing is."""
    said_something = "warning:" in done.said or "error:" in done.said or done.status == 130
    if done.status and not said_something:
        return f"status {done.status} without a word"
    if done.status == 0 and done.result != expected and not said_something:
        return "another result without a word"
    return None
