"""What a command refuses without its environment it refuses at once: before PyTorch is imported."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

import quintet
from quintet.envs.envpool_library import RECORDED

PROGRAM = """
import json, os, sys
import quintet.options.command, quintet.options.saved
from quintet.commands.cli import main
for folder, words in json.load(sys.stdin):
    if os.fork():
        os.wait()
        continue
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code
    print(status, *[name for name in ("torch", "envpool") if name in sys.modules], flush=True)
    os._exit(0)
"""
"""Runs commands, each in a fork of a process that has imported what all of them begin with."""


class Answer(NamedTuple):
    out: str
    err: str
    left: set[str]
    """Names in the folder of the command."""

    @property
    def end(self) -> list[str]:
        """Its exit status and what it has imported of PyTorch and EnvPool."""
        return self.out.splitlines()[-1].split()


def answers(commands: Sequence[str], root: Path) -> dict[str, Answer]:
    """What commands answer, each given in a folder of its own with a subfolder ``project``."""
    folders = [root / str(number) for number in range(len(commands))]
    for folder in folders:
        (folder / "project").mkdir(parents=True)
        (folder / "project" / "thesis.tex").touch()
    words = [(str(folder), each.split()) for folder, each in zip(folders, commands, strict=True)]
    subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(words),
        env=os.environ | {"COLUMNS": "200"},
        text=True,
        check=True,
    )
    return {
        command: Answer(
            (folder / "out").read_text(),
            (folder / "err").read_text(),
            {path.name for path in folder.iterdir()} - {"out", "err", "project"},
        )
        for command, folder in zip(commands, folders, strict=True)
    }


CARTPOLE = "train ppo --env CartPole-v1"
REFUSED: list[tuple[str, int, str]] = [
    ("train", 2, "needs an algorithm first"),
    ("train pppo --env CartPole-v1", 2, "did you mean 'ppo'?"),
    ("train ppo", 2, "there is no environment"),
    (f"{CARTPOLE} --n-envs 3", 2, "here it is 'env.num_streams'"),
    ("train ppo --env quintet.envs.toy:Target --n-envs 3", 2, "here it is 'env.num_streams'"),
    (f"{CARTPOLE} --learning-rate x --env.backend foo", 2, "2 faults"),
    ("train ppo --env quintet.envs.toy:Target --learning-rate -1", 2, "learning_rate"),
    (f"{CARTPOLE} --minibatch-steps 100", 2, "minibatch_steps must divide"),
    (f"{CARTPOLE} --preset none --value-coef 0 --value-clip 1", 2, "has no effect"),
    (f"{CARTPOLE} --config nothing.yaml", 2, "nothing.yaml can't be read"),
    (f"{CARTPOLE} --run-dir project", 2, "must be a new or empty folder"),
    (f"{CARTPOLE} --seeds 1,1", 2, "none twice"),
    ("train ddpg --env Pendulum-v1 --exploration ou", 2, "exploration"),
    ("config acer --env CartPole-v1 --replay-ratio -1", 2, "replay_ratio"),
    ("eval runs/nothing", 1, "runs/nothing, which does not exist"),
    ("plot runs/nothing --out a.png", 1, "has no metrics.jsonl"),
    ("train impala --help all", 0, "--batch-unrolls"),
    ("train impala --help", 0, "--learning-rate"),
]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """The answers to all commands below, of one process."""
    commands = [command for command, *_ in REFUSED]
    commands += [each.values[0] for each in OF_SPACES]
    return answers(commands, tmp_path_factory.mktemp("refused"))


@pytest.mark.parametrize(("command", "status", "says"), REFUSED)
def test_no_refusal_waits_for_pytorch(
    command: str, status: int, says: str, refused: dict[str, Answer]
):
    answer = refused[command]
    assert says in answer.out + answer.err
    imported = answer.end[1:] if IS_RECORDED else [n for n in answer.end[1:] if n != "envpool"]
    assert [*answer.end[:1], *imported] == [str(status)], answer.out[-300:]


TOY = "quintet.envs.toy"
WITH_ENVPOOL = pytest.mark.skipif(find_spec("envpool") is None, reason="EnvPool is not installed")
IS_RECORDED = (
    sys.platform == "linux"
    and find_spec("envpool") is not None
    and all(version(name) == known for name, known in RECORDED.items())
)
RECORDED_ENVPOOL = pytest.mark.skipif(
    not IS_RECORDED,
    reason="an EnvPool whose ids are not recorded is asked for them",
)
OF_SPACES = [
    pytest.param(
        "train ppo --env CartPoll-v1 --nope 3",
        [],
        ("nearest are CartPole", "unknown option 'nope'"),
        marks=RECORDED_ENVPOOL,
    ),
    pytest.param(f"train ddpg --env {TOY}:Contextual", [], ("ddpg must have Box actions",)),
    pytest.param(
        "train ddpg --env CartPole-v1",
        ["envpool"],
        ("ddpg must have Box actions",),
        marks=WITH_ENVPOOL,
    ),
    pytest.param(
        f"train ppo --env {TOY}:Target --model.encoder impala_cnn",
        [],
        ("must have a uint8 picture",),
    ),
    pytest.param(
        f"train ppo --env {TOY}:Target --model.encoder film_grid", [], ("the leaves direction",)
    ),
    pytest.param(
        "train ppo --env Pendulum-v1 --model.encoder nature_cnn",
        ["envpool"],
        ("a uint8 picture",),
        marks=WITH_ENVPOOL,
    ),
    pytest.param(
        f"train ppo --env {TOY}:Target --model.core-size 9", [], ("without a recurrent core",)
    ),
]


@pytest.mark.parametrize(("command", "imported", "says"), OF_SPACES)
def test_ids_and_spaces(
    command: str, imported: list[str], says: tuple[str, ...], refused: dict[str, Answer]
):
    answer = refused[command]
    for each in says:
        assert each in answer.err
    assert answer.out.split() == ["2", *imported]
    assert not answer.left


@RECORDED_ENVPOOL
def test_a_folder_that_is_taken(tmp_path: Path):
    small = {"eval.episodes": 0, "report.progress": False, "num_epochs": 1}
    run = tmp_path / "run"
    quintet.train("ppo", "CartPole-v1", 4096, run_dir=run, config=small)
    says = {"--gamma": "the run has", "--gama": "did you mean 'gamma'?"}
    commands = [f"{CARTPOLE} --run-dir {run} {option} 0.5" for option in says]
    answered = answers(commands, tmp_path)
    for command, each in zip(commands, says.values(), strict=True):
        assert each in answered[command].err
        assert answered[command].out.split() == ["2"]


def test_train_refuses_without_pytorch_too():
    program = """
import sys, quintet
for algo, env, options in (
    ("pppo", "CartPole-v1", {}), ("ppo", "CartPole-v1", {"n_envs": 3}), ("ppo", "CartPole-v1", {})
):
    try:
        quintet.train(algo, env, 10, config=options)
    except quintet.errors.ConfigError as error:
        print(error, file=sys.stderr)
print("torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    for says in ("must be one of", "here it is 'env.num_streams'", "at least one batch"):
        assert says in done.stderr
    assert done.stdout.split() == ["False"]
