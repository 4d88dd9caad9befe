"""What a command refuses without its environment it refuses at once: before PyTorch is imported."""

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

import quintet
from quintet.envs.envpool_library import RECORDED

PROGRAM = """
import sys
from quintet.cli import main
try:
    status = main(sys.argv[1:])
except SystemExit as end:
    status = end.code
print(status, *[name for name in ("torch", "envpool") if name in sys.modules])
"""
CARTPOLE = "train ppo --env CartPole-v1"


@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        ("train", 2, "requires an algorithm first"),
        ("train pppo --env CartPole-v1", 2, "did you mean 'ppo'?"),
        ("train ppo", 2, "an environment is required"),
        (f"{CARTPOLE} --n-envs 3", 2, "here it is 'env.num_streams'"),
        ("train ppo --env quintet.envs.toy:Target --n-envs 3", 2, "here it is 'env.num_streams'"),
        (f"{CARTPOLE} --learning-rate x --env.backend foo", 2, "2 faults"),
        ("train ppo --env quintet.envs.toy:Target --learning-rate -1", 2, "learning_rate"),
        (f"{CARTPOLE} --minibatch-steps 100", 2, "minibatch_steps must divide"),
        (f"{CARTPOLE} --preset none --value-coef 0 --value-clip 1", 2, "has no effect"),
        (f"{CARTPOLE} --config nothing.yaml", 2, "nothing.yaml can't be read"),
        (f"{CARTPOLE} --run-dir project", 2, "requires a new or empty folder"),
        (f"{CARTPOLE} --seeds 1,1", 2, "none twice"),
        ("train ddpg --env Pendulum-v1 --exploration ou", 2, "exploration"),
        ("config acer --env CartPole-v1 --replay-ratio -1", 2, "replay_ratio"),
        ("eval runs/nothing", 1, "runs/nothing does not exist"),
        ("plot runs/nothing --out a.png", 1, "has no metrics.jsonl"),
        ("train impala --help all", 0, "--batch-unrolls"),
        ("train impala --help", 0, "--learning-rate"),
    ],
)
def test_no_refusal_waits_for_pytorch(command: str, status: int, says: str, tmp_path: Path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "thesis.tex").touch()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command.split()],
        cwd=tmp_path,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert says in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == str(status), done.stdout[-300:]


TOY = "quintet.envs.toy"
WITH_ENVPOOL = pytest.mark.skipif(find_spec("envpool") is None, reason="EnvPool is not installed")
RECORDED_ENVPOOL = pytest.mark.skipif(
    sys.platform != "linux"
    or find_spec("envpool") is None
    or any(version(name) != known for name, known in RECORDED.items()),
    reason="an EnvPool whose ids are not recorded is asked for them",
)


@pytest.mark.parametrize(
    ("command", "imported", "says"),
    [
        pytest.param(
            "ppo --env CartPoll-v1 --nope 3",
            [],
            ("nearest are CartPole", "unknown option 'nope'"),
            marks=RECORDED_ENVPOOL,
        ),
        (f"ddpg --env {TOY}:EndlessPay", [], ("ddpg requires Box actions",)),
        pytest.param(
            "ddpg --env CartPole-v1",
            ["envpool"],
            ("ddpg requires Box actions",),
            marks=WITH_ENVPOOL,
        ),
        (f"ppo --env {TOY}:Target --model.encoder impala_cnn", [], ("requires a uint8 picture",)),
        (f"ppo --env {TOY}:Target --model.encoder film_grid", [], ("the leaves direction",)),
        pytest.param(
            "ppo --env Pendulum-v1 --model.encoder nature_cnn",
            ["envpool"],
            ("a uint8 picture",),
            marks=WITH_ENVPOOL,
        ),
        (f"ppo --env {TOY}:Target --model.core-size 9", [], ("requires a recurrent core",)),
    ],
)
def test_ids_and_spaces(command: str, imported: list[str], says: tuple[str, ...], tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "train", *command.split()],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for each in says:
        assert each in done.stderr
    assert done.stdout.split() == ["2", *imported]
    assert not any(tmp_path.iterdir())


@RECORDED_ENVPOOL
def test_a_folder_that_is_taken(tmp_path: Path):
    small = {"eval.episodes": 0, "report.progress": False, "num_epochs": 1}
    quintet.train("ppo", "CartPole-v1", 4096, run_dir=tmp_path / "run", config=small)
    for option, says in (("--gamma", "the run has"), ("--gama", "did you mean 'gamma'?")):
        words = ["train", "ppo", "--env", "CartPole-v1", "--run-dir", "run", option, "0.5"]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert says in done.stderr
        assert done.stdout.split() == ["2"]


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
    for says in ("must be one of", "here it is 'env.num_streams'", "at least one rollout"):
        assert says in done.stderr
    assert done.stdout.split() == ["False"]
