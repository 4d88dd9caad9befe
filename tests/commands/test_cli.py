"""The command line as people meet it: output, one clear error for each mistake, exit status."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import quick_helpers
import yaml
from gymnasium import spaces

from quintet.commands import cli
from quintet.observe.report_files import read_metrics
from quintet.options.command import COMMON
from quintet.options.layers import options
from quintet.options.run import PARTS, prefix_of

TOY = "quintet.envs.toy:Contextual"
SMALL = (
    *("--env.num-streams", "4", "--unroll-steps", "16", "--minibatch-steps", "32"),
    *("--num-epochs", "1", "--report.interval-s", "0", "--model.policy-hidden", "8"),
)


LEARNERS = ("ppo", "impala", "appo", "ddpg", "acer")


class OfSpaces(gymnasium.Env):
    """Only its spaces matter: it is refused before its first step."""

    def __init__(self, action: spaces.Space | None = None, obs: spaces.Space | None = None):
        self.action_space = action or spaces.Discrete(2)
        self.observation_space = obs or spaces.Box(-1, 1, (2,), np.float32)


class Slowly(gymnasium.Env):
    """Draws itself, and takes minutes for an episode when it does."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode: str | None = None):
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.render_mode, self.steps = render_mode, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 600, False, {}

    def render(self):
        time.sleep(0.1)
        return np.zeros((40, 40, 3), np.uint8)


def box(*shape: int, bound: float = 1.0, dtype=np.float32) -> spaces.Box:
    return spaces.Box(-bound, bound, shape, dtype)


ACTIONS = {
    "Text": spaces.Text(5),
    "Sequence": spaces.Sequence(spaces.Discrete(2)),
    "Graph": spaces.Graph(box(1), None),
    "Tuple": spaces.Tuple((spaces.Discrete(2), spaces.Text(3))),
    "Dict": spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}),
}


OBSERVATIONS = {
    "Graph": spaces.Graph(box(1), None),
    "nested": spaces.Dict({"a": box(2), "b": spaces.Tuple((spaces.Graph(box(1), None),))}),
}


def make_spaces(action: str | None = None, obs: str | None = None) -> OfSpaces:
    """Found by an import string."""
    return OfSpaces(ACTIONS.get(action or ""), OBSERVATIONS.get(obs or ""))


def make_infinite() -> OfSpaces:
    return OfSpaces(box(2, bound=np.inf))


def not_an_env() -> int:
    return 3


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test has a working folder of its own, for the default ``runs/``."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def quintet(capsys):
    """Runs a command; gives its status, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = cli.main([str(a) for a in arguments])
        except SystemExit as end:  # tyro's own faults
            status = end.code
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return status, out, err

    return call


@pytest.fixture
def refused(quintet, folder):
    """Runs a command that must fail with one message and status 2, and must write nothing."""

    def call(*arguments: str, says: str, status: int = 2) -> str:
        before = tree(folder)
        got, out, err = quintet(*arguments)
        assert got == status, err
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("error: ") == 1
        assert re.search(says, err, re.DOTALL), err
        assert tree(folder) == before
        return err

    return call


def tree(folder: Path) -> set[tuple[str, bytes]]:
    """Every file with its content."""
    return {
        (str(path.relative_to(folder)), path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def train(*more: str, env: str = TOY, steps: str = "128") -> tuple[str, ...]:
    return ("train", "ppo", "--env", env, "--total-steps", steps, "--run-dir", "r", *SMALL, *more)


# Help and output


def test_help_names_every_command(quintet):
    status, out, err = quintet("--help")
    assert (status, err) == (0, "")
    assert all(f"  {name} " in out for name in cli.COMMANDS)
    assert quintet() == (2, out, "")
    assert quintet("help")[:2] == (0, out)


@pytest.mark.parametrize("algo", LEARNERS)
def test_help_shows_the_common_options_in_40_lines(quintet, monkeypatch, algo: str):
    monkeypatch.setenv("COLUMNS", "80")
    for words in (("--help",), ("--env", TOY, "-h")):
        status, out, _ = quintet("train", algo, *words)
        assert status == 0
        lines = out.splitlines()
        assert len(lines) <= 40
        assert max(map(len, lines)) <= 80
        assert {"--env", "--total-steps", "--seed", "--run-dir"} <= {*re.findall(r"--[\w-]+", out)}
        assert f"`quintet train {algo} --help all`" in out


def test_common_options_exist():
    assert all(any(name in options(algo) for algo in LEARNERS) for name in COMMON)


def test_all_help_lists_every_option(quintet, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = quintet("train", "ppo", "--help", "all")
    assert status == 0
    flags = set(re.findall(r"--[\w.-]+", out))
    wanted = {f"--{name.replace('_', '-')}" for name in options("ppo") if name != "algo"}
    assert wanted - flags == set()
    assert {"--env", "--total-steps", "--config"} <= flags
    assert "(default: 0.99)" in out
    sections = {part.split("\n")[0]: part for part in out.split("\n\n")[1:-1]}
    assert [name.split(":")[0] for name in sections] == [
        *("The command", "The run", "The learner, ppo"),
        *(f"--{prefix_of(part).replace('_', '-')}*" for part in PARTS),
    ]
    assert "--learning-rate" in sections["The learner, ppo"]
    for command in ("eval", "plot", "runs", "diff", "report", "envs"):
        status, out, _ = quintet(command, "--help")
        assert status == 0
        assert f"quintet {command}" in out


def test_help_is_quick_and_imports_neither_torch_nor_gymnasium():
    code = (
        "import sys; from quintet.commands.cli import main; main(['--help']); "
        "sys.exit(bool({'torch', 'gymnasium', 'numpy', 'tyro', 'envpool'} & set(sys.modules)))"
    )
    seconds = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        after = os.times()
        # of the processor, so that other work on the machine does not count
        seconds.append(after.children_user + after.children_system
                       - before.children_user - before.children_system)  # fmt: skip
    assert min(seconds) < 0.5


def test_a_closed_pipe_leaves_no_traceback():
    command = [sys.executable, "-m", "quintet", "envs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() != b""
        process.stdout.close()
        errors = process.stderr.read()
    assert errors == b""
    assert process.returncode == 141


def python(shell: str) -> subprocess.CompletedProcess[str]:
    """`shell` with QUINTET replaced by the command, as a person's shell would run it."""
    shell = shell.replace("QUINTET", f"{sys.executable} -m quintet")
    return subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("shell", "status", "says"),
    [
        pytest.param("QUINTET envs CartPole >&-", 0, "", marks=pytest.mark.slow),
        (
            "QUINTET envs CartPole >/dev/full",
            1,
            "error: .*No space left on device; make room there\n",
        ),
        ("(sleep 0.3; QUINTET --help) | true; exit ${PIPESTATUS[0]}", 141, ""),
    ],
    ids=["closed", "full disk", "no reader of help"],
)
def test_whatever_output_is_there_is_no_traceback(shell, status, says):
    done = python(shell)
    assert re.fullmatch(says, done.stderr, re.DOTALL), done.stderr
    assert done.returncode == status


@pytest.mark.slow
def test_a_folder_whose_name_the_locale_can_not_write(folder):
    train_more = f"QUINTET train ppo --env {TOY} {' '.join(SMALL)} --run-dir é --total-steps"
    for steps in (128, 256):  # and goes on
        done = python(f"PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 LC_ALL=C {train_more} {steps}")
        assert (done.returncode, done.stderr) == (0, "")
        # One character where names of files are UTF-8 all the same, its two bytes elsewhere.
        assert re.search(r"^policy: (\\xe9|\\udcc3\\udca9)/policy$", done.stdout, re.MULTILINE)
    assert len(list(folder.iterdir())) == 1


def test_sigterm_while_filming_leaves_no_file(quintet, folder):
    env = f"{Path(__file__).stem}:Slowly"
    train_it = ["train", "ppo", "--env", env, *SMALL, "--total-steps", "64", "--run-dir", "r"]
    quintet(*train_it, "--eval.episodes", "0")
    command = ["-m", "quintet", "eval", "r", "--episodes", "1", "--video", "v/v.mp4"]
    with quick_helpers.begin(command, {"PYTHONPATH": str(Path(__file__).parent)}) as process:
        waited = time.monotonic() + 60
        while not list(folder.glob("v/.*")) and time.monotonic() < waited:
            time.sleep(0.05)
        assert list(folder.glob("v/.*"))
        process.terminate()
        assert process.communicate()[0] == ""
    assert process.returncode == 128 + signal.SIGTERM
    assert list((folder / "v").iterdir()) == []


def test_envs_lists_ids_with_their_backends(quintet):
    status, out, _ = quintet("envs", "CartPole-v?")
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["CartPole-v1", "gymnasium"] in lines
    assert all(name in ("CartPole-v0", "CartPole-v1") for name, _ in lines)
    assert quintet("envs", "a", "b")[0] == 2


def test_config_is_a_configuration_file_with_sources(quintet, folder):
    given = ("--preset", "kl_penalty", "--env.backend", "gymnasium", "--gamma", "0.5")
    status, out, err = quintet("config", "ppo", "--env", "CartPole-v1", *given)
    assert (status, err) == (0, "")
    source = dict(re.findall(r"^([\w.]+): .*?  # (.*)$", out, re.MULTILINE))
    assert set(source) == set(options("ppo"))
    assert source["gamma"] == "command line"
    assert source["kl_coef_init"] == "preset kl_penalty"
    assert source["total_env_steps"] == "preset CartPole-*"
    assert source["num_epochs"] == "default"
    assert source["model.policy_hidden"] == "resolved (default)"
    assert source["env.backend"] == "command line"
    values = yaml.safe_load(out)
    assert values["gamma"] == 0.5
    assert values["clip_epsilon"] is None
    assert values["run_dir"] == str(folder / "runs/ppo-CartPole-v1-s0")
    assert tree(folder) == set()  # it only looks

    # the output, given back, is the same configuration
    (folder / "all.yaml").write_text(out)
    status, again, _ = quintet("config", "ppo", "--config", "all.yaml")
    assert status == 0
    assert yaml.safe_load(again) == values
    assert again.count("# file all.yaml") == len(values)


def test_config_shows_what_a_saved_run_has(quintet):
    assert quintet(*train("--eval.episodes", "0"))[0] == 0
    status, out, _ = quintet(*("config", "ppo", "--env", TOY, "--run-dir", "r", *SMALL))
    assert status == 0
    assert re.search(r"^total_env_steps: 128 +# saved run \(command line\)$", out, re.MULTILINE)
    assert re.search(r"^gamma: 0\.99 +# saved run \(default\)$", out, re.MULTILINE)
    assert re.search(r"^unroll_steps: 16 +# command line$", out, re.MULTILINE)


def test_config_keeps_sources_over_resumes_and_believes_no_stranger(quintet, folder):
    assert quintet(*train("--eval.episodes", "0"))[0] == 0
    assert quintet(*train("--eval.episodes", "0", "--total-steps", "256"))[0] == 0
    status, out, _ = quintet("config", "ppo", "--env", TOY, "--run-dir", "r")
    assert status == 0
    assert re.search(r"^total_env_steps: 256 +# saved run \(command line\)$", out, re.MULTILINE)
    assert re.search(r"^gamma: 0\.99 +# saved run \(default\)$", out, re.MULTILINE)
    record = json.loads((folder / "r/run.json").read_text())
    record["sources"]["gamma"] = "default\nseed: 9"
    (folder / "r/run.json").write_text(json.dumps(record))
    _, out, _ = quintet("config", "ppo", "--env", TOY, "--run-dir", "r")
    assert re.search(r"^gamma: 0\.99 +# saved run$", out, re.MULTILINE)
    assert yaml.safe_load(out)["seed"] == 0


# A run from its start to a picture


def test_train_eval_plot(quintet, folder):
    status, out, err = quintet(*train("--eval.episodes", "2", steps="300"))
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"ppo on {TOY} (gymnasium) -> r"
    assert out.splitlines()[-2:] == ["run:    r", "policy: r/policy"]
    assert read_metrics(folder / "r")[-1]["env_steps"] == 300

    status, out, _ = quintet("eval", "r", "--episodes", "3", "--seed", "5", "--json")
    assert status == 0
    scores = json.loads(out)
    assert len(scores["returns"]) == scores["episodes"] == 3
    assert scores["return_mean"] == pytest.approx(sum(scores["returns"]) / 3)
    assert (scores["env"], scores["deterministic"], scores["length_mean"]) == (TOY, True, 10)
    assert json.loads(quintet("eval", "r", "--episodes", "3", "--seed", "5", "--json")[1]) == scores
    for which in ("best", "latest", sorted(os.listdir("r/checkpoints"))[0], "r/best"):
        status, out, _ = quintet("eval", "r", "--episodes", "1", "--checkpoint", which)
        assert status == 0
        assert out.startswith(f"{TOY} (gymnasium): return ")
        assert out.endswith("over 1 episodes\n")
    status, out, _ = quintet("eval", "r", "--episodes", "2", "--stochastic", "--json")
    assert json.loads(out)["deterministic"] is False

    assert 0 < scores["entropy"] <= 1.1
    assert (
        f", entropy {scores['entropy']:.2f} nats, over 3 episodes"
        in (quintet("eval", "r", "--episodes", "3", "--seed", "5")[1])
    )
    chance = json.loads(quintet("eval", "r", "--episodes", "30", "--random", "--json")[1])
    assert (chance["random"], chance["deterministic"], scores["random"]) == (True, False, False)
    assert "entropy" not in chance
    assert 0 < sum(chance["returns"]) < 30 * 10  # neither always wrong nor always right
    status, _, err = quintet("eval", "r", "--random", "--stochastic")
    assert status == 2
    assert err == "error: --stochastic has no effect with --random: leave one of them out\n"
    err = quintet("eval", "r", "--random", "--device", "cuda")[2]
    assert err == "error: --device has no effect with --random: leave one of them out\n"

    pytest.importorskip("matplotlib")
    assert quintet("plot", "r", "--out", "curve.png")[:2] == (0, "curve.png\n")
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_success_rates(quintet, folder):
    """Of Contextual's ten steps the last one pays 1 or 0."""
    more = ("--eval.episodes", "2", "--env.success", "reward>0")
    status, out, err = quintet(*train(*more, steps="300"))
    assert (status, err) == (0, "")
    assert re.search(
        r" return [\d.]+ \([\d.]+% won\)  evaluation [\d.]+ \((0|50|100)% won\)$", out, re.M
    )
    scores = json.loads(quintet("eval", "r", "--episodes", "8", "--json")[1])
    assert scores["success"] == "reward>0"
    assert scores["success_rate"] == sum(scores["successes"]) / 8
    out = quintet("eval", "r", "--episodes", "8")[1]
    rate = f"{100 * scores['success_rate']:.3g}"
    assert out.startswith(f"{TOY} (gymnasium): success {rate}% (reward>0), return ")
    assert "(default: " in quintet("plot", "--help")[1]
    given = ("--seeds", "1,2", "--eval.episodes", "2", "--report.progress", "false")
    words = [word if word != "r" else "s" for word in train(*given, "--env.success", "reward>0")]
    status, out, _ = quintet(*words)
    assert out.splitlines()[-1].startswith("eval/success_rate: ")
    assert out.splitlines()[-2].startswith("eval/return_mean: ")


@pytest.mark.slow
def test_a_group_of_seeds_and_its_picture(quintet, folder):
    given = ("--seeds", "1,2", "--eval.episodes", "2", "--report.progress", "false")
    status, out, err = quintet(*train(*given))
    assert (status, err) == (0, "")
    head, one, two, summary = out.splitlines()
    assert head.split() == ["seed", "status", "env_steps", "evaluation", "training", "run"]
    scores = [read_metrics(folder / f"r/s{seed}")[-1]["eval/return_mean"] for seed in (1, 2)]
    for row, seed in ((one, 1), (two, 2)):
        cells = row.split()
        assert [*cells[:4], cells[5]] == [
            *(str(seed), "finished", "128", f"{scores[seed - 1]:.2f}"),
            f"r/s{seed}",
        ]
        assert float(cells[4]) > 0
    mean, spread = np.mean(scores), np.std(scores, ddof=1)
    assert summary.startswith(f"eval/return_mean: {mean:.2f} +- {spread:.2f} (")
    assert "2 finished of 2 seeds" in summary
    pytest.importorskip("matplotlib")
    assert quintet("plot", "r", "--out", "curve.svg")[:2] == (0, "curve.svg\n")
    # Texts are drawn as paths, each behind a comment that says it.
    assert "<!-- ppo (2 seeds, 95% band) -->" in (folder / "curve.svg").read_text()
    # One that fails is told with its seed, beside those that don't.
    for path in (folder / "r/s1/checkpoints").glob("*/learner.safetensors"):
        path.write_bytes(b"")
    status, out, err = quintet(*train(*given, steps="192"))
    assert status == 1
    where = folder / "r/s1/checkpoints"
    assert err.startswith(f"error: seed 1: no checkpoint in {where} can be read")
    assert [line.split()[:2] for line in out.splitlines() if line[:1] in "12"] == [
        ["1", "failed"],
        ["2", "finished"],
    ]
    assert "[s1] error: no checkpoint in" in out


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trian"], r"one of train, .*got 'trian'; did you mean 'train'\?"),
        (["train", "--env", "CartPole-v1"], "needs an algorithm first"),
        (["config", "ppo"], "there is no environment"),
        (["eval"], "quintet eval needs a run"),
        (["plot"], "must get at least one run and a file"),
        (["plot", "r"], "must get at least one run and a file"),
        (["plot", "--out", "a.png"], "must get at least one run and a file"),
        (
            ["plot", "r", "--out", "a.png", "--kind", "bars", "--x", "wall_s"],
            "--x wall_s has no effect on --kind bars",
        ),
        (train("--seeds", "1,2", "--seed", "3"), r"seed=3 has no effect with seeds=\[1, 2\]"),
        (train("--seeds", "1,x"), r"--seeds must be whole numbers, as in 1,2,3, got '1 x'"),
        (train("--seeds", "1", "--jobs", "many"), "--jobs must be a number, got 'many'"),
        (train("--jobs", "2"), "--jobs 2 has no effect without --seeds"),
        (train("--seeds", "1,2", "--gamma", "2"), "gamma: .*got 2"),
        (train("--env.success", "reward"), "env.success: .*must be 'reward>NUMBER'.*got 'reward'"),
        (train("--init-from", "absent"), "init_from must be a trained policy, got none: .*absent"),
        (train("--init-from-keys", "a"), "init_from_keys=.* has no effect without init_from"),
        (["config", "ppo", "--env", TOY, "--seeds", "1"], "--seeds is an option of quintet train"),
        (["config", "ppo", "--env", TOY, "--jobs", "1"], "--jobs is an option of quintet train"),
        (["config", "ppo", "--env", TOY, "--init-from", "absent"], "init_from must be a trained"),
        (train("--gamma", "2", "--env.num-stream", "1", "word"), "3 faults:"),
        (train(steps="63"), "one batch of env.num_streams x unroll_steps = 64, got 63"),
        (train(steps="many"), "total_env_steps: .*integer.*got 'many'"),
        (train("--preset", "klip", "--gamma", "2"), r"(?s)got 'klip'.*\ngamma: .*got 2"),
        (train("--runtime.device", "gpu"), r"runtime.device: .*\(auto\|cpu\|cuda.*got 'gpu'"),
        (train(env="test_cli:not_an_env"), "must make one gymnasium.Env .*got builtins.int"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(refused, arguments, says):
    """Others are in test_refusals.py and in the tests of what refuses them."""
    refused(*arguments, says=says)


@pytest.mark.parametrize("name", ACTIONS)
def test_action_spaces_that_can_not_be(refused, name):
    given = ("--env.kwargs", json.dumps({"action": name}))
    said = refused(*train(*given, env="test_cli:make_spaces"), says="action space")
    assert str(ACTIONS[name]) in said
    assert said.endswith("; wrap the environment so that it has one\n")


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observation_spaces_that_can_not_be(refused, name):
    given = ("--env.kwargs", json.dumps({"obs": name}))
    refused(
        *train(*given, env="test_cli:make_spaces"),
        says="observation leaf '.*' must be a Box, .*; got .*; (wrap the env|declare it as)",
    )


def test_squash_needs_bounds(refused):
    given = ("--model.action-bounds", "squash")
    says = r"squash must have finite action bounds.*Box\(-inf, inf.*--model.action-bounds clip"
    refused(*train(*given, env="test_cli:make_infinite"), says=says)


def test_a_gpu_that_is_not_there(refused, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    says = "runtime.device=cuda .*must have 1 CUDA GPU .*got 0: use --runtime.device cpu"
    refused(*train("--runtime.device", "cuda"), says=says)


def test_compiling_without_a_compiler(refused, quintet, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    says = r"runtime.compile=on needs a PyTorch and a C\+\+ compiler.*--runtime.compile off"
    refused(*train("--runtime.compile", "on"), says=says)
    status, out, _ = quintet("config", *train()[1:])
    assert status == 0
    assert "runtime.compile: 'off'" in out


def test_a_missing_envpool_is_told_with_what_to_install(refused, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name in ("envpool", "ale_py") else found(name, *a),
    )
    install = r'pip install "quintet-rl\[envpool\]"'
    refused(*train("--env.backend", "envpool", env="CartPole-v1"), says=install)
    refused(*train(env="Pong-v5"), says=f"EnvPool, not installed, .*{install}")


def test_a_missing_simulator_is_told_with_what_to_install(refused, monkeypatch):
    def missing(*_, **__):
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed")

    monkeypatch.setattr(gymnasium, "make", missing)
    arguments = train("--env.backend", "gymnasium", "--preset", "none", env="Hopper-v5")
    refused(*arguments, says=r'run: pip install "quintet-rl\[mujoco\]"')


def test_a_folder_of_something_else_or_of_another_run(refused, quintet, folder):
    (folder / "r").mkdir()
    (folder / "r/thesis.tex").write_text("x")
    refused(*train(), says="r with thesis.tex and no config.yaml: give another --run-dir")
    (folder / "r/thesis.tex").unlink()
    assert quintet(*train("--eval.episodes", "0"))[0] == 0
    said = refused(*train("--gamma", "0.5", env="quintet.envs.toy:Target"), says="another config")
    assert "gamma: the run has 0.99, this command has 0.5" in said
    assert f"env.id: the run has '{TOY}', this command has 'quintet.envs.toy:Target'" in said
    refused(*train("--resume", "never"), says="--resume never must have a folder without a run")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["eval", "absent"], r"policy folder, got \S+/absent, which does not exist"),
        (["eval", "empty"], r"policy folder, got \S+/empty, which holds no checkpoint yet"),
        (["eval", "empty", "--checkpoint", "best"], r"got \S+/empty, which holds no checkpoint"),
        (
            ["eval", "empty", "--checkpoint", "000000007"],
            r"no checkpoint at \S+/empty/checkpoints/000000007",
        ),
        (["plot", "empty", "--out", "a.png"], "empty has no metrics.jsonl"),
        (
            ["plot", "empty", "--out", "a.xyz"],
            r"must end in \.png or \.svg or \.pdf, got \S*a\.xyz",
        ),
        (["envs", "qqqq"], "must match an id, got 'qqqq'"),
    ],
)
def test_things_that_are_not_there(refused, folder, arguments, says):
    (folder / "empty").mkdir()
    refused(*arguments, says=says, status=1)


def test_a_donor_is_needed_until_the_run_has_begun(quintet):
    assert quintet(*train("--eval.episodes", "0"))[0] == 0
    config = ("config", "ppo", "--env", TOY, "--run-dir")
    assert quintet(*config, "new", "--init-from", "r")[0] == 0
    begun = train("--eval.episodes", "0", "--init-from", "r", "--run-dir", "begun")
    assert quintet(*begun)[0] == 0
    Path("r").rename("gone")
    assert quintet(*config, "begun")[0] == 0
    assert quintet(*config, "new", "--init-from", "r")[0] == 2


def test_what_eval_can_not_do(refused, quintet):
    assert quintet(*train("--eval.episodes", "0"))[0] == 0
    refused(
        "eval", "r", "--episodes", "0", says="episodes must be in 1 .. 1000000 and.*got episodes=0"
    )
    refused("eval", "r", "--seed", "-1", says="seed=-1")
    refused("eval", "r", "--env", "CartPol", says="nearest are CartPole")
    refused("eval", "r", "--env", "CartPole-v1", says="policy's observation space .*CartPole-v1")
    refused("eval", "r", "--checkpoint", "best", says="r/best does not exist", status=1)
    refused("eval", "r", "--video", "v.mp4", says="the environment of a video must .*Contextual")
    refused("eval", "r", "--video", "v.gif", says=r"must end in \.mp4, got \S*v\.gif", status=1)
    for arguments in (("eval", "r", "--bogus"), ("eval", "r", "s"), ("eval", "r", "--seed", "x")):
        status, out, _ = quintet(*arguments)
        assert status == 2
        assert "return" not in out
