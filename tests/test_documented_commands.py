"""Every command of the documents runs, in their order, with budgets cut down (slow).

`test_docs.py` parses the same commands in the gate.
"""

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_docs import DOCUMENTS, ROOT, blocks, commands, written_files

STEPS, MORE_STEPS = 2048, 4096
"""Where a command gives no budget, and where it gives one, so that a run can go on; four times as
many where a batch of a game has more.
"""

EARLIER = ["train", "ppo", "--env", "CartPole-v1"]
"""What a reader has done before; the first command of some documents."""

MODULES = {
    "my_package/__init__.py": """
import gymnasium
import numpy as np

class MyEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=20):
        self.length = length
        self.reward_shaping = {"energy": 0.01}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        info = {"won": bool(action), "cost": 0.5, "speed": self.steps / 20, "portfolio_value": 9.0}
        info["achievements"] = {"wood": float(action)}
        return np.zeros(3, np.float32), float(action), self.steps == self.length, False, info
""",
    "my_package/envs.py": "from my_package import MyEnv as make_env\n",
    "my_package/nets.py": """
from torch import nn

class MyEncoder(nn.Module):
    def __init__(self, leaves, width=32):
        super().__init__()
        self.hidden, self.feature_size = nn.Linear(leaves["obs"].shape[0], width), width

    def forward(self, obs):
        return self.hidden(obs["obs"]).tanh()
""",
    "their_package.py": """
import gymnasium

def make_env():
    return gymnasium.make("CartPole-v1")
""",
}


def run(words: list[str], folder: Path) -> tuple[int, str]:
    """A command as a user gives it; its exit status and all that it prints."""
    variables = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'examples'}"}
    done = subprocess.run(
        [sys.executable, "-m", "quintet", *words],
        cwd=folder, env=variables, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def shortened(words: list[str]) -> list[str]:
    """The command with a small budget, if it trains or plays."""
    if words[0] == "train" and "--minutes" in words:
        place = words.index("--minutes") + 1
        minutes = "0.5" if words[1] == "auto" else "0.1"
        return [*words[:place], minutes, *words[place + 1 :], "--eval.episodes", "1"]
    if words[0] == "train" and "--help" not in words:
        steps = MORE_STEPS if "--total-steps" in words else STEPS
        steps *= 4 if any(word.endswith(("parallel_env", ":env")) for word in words) else 1
        steps *= int(words[words.index("--population") + 1]) if "--population" in words else 1
        sizes = [words.index(x) for x in ("--env.num-streams", "--unroll-steps") if x in words]
        steps = max(steps, math.prod(int(words[place + 1]) for place in sizes))
        # Greedy and untrained, an Atari game may go on for 27,000 steps.
        episodes = "0" if any(word.endswith("-v5") for word in words) else "1"
        return [*words, "--total-steps", str(steps), "--eval.episodes", episodes]
    if words[0] == "sweep":
        few = ["--trials", "2", "--best", "1", "--seeds-of-best", "1"]
        return [*words, *few, "--total-steps", str(STEPS), "--eval.episodes", "1"]
    return [*words, "--episodes", "2"] if words[0] == "eval" else words


def of_the_hub(words: list[str]) -> bool:
    """Whether a command needs the package plugins/hub, and its service."""
    return words[0] in ("push", "pull") or any(word.startswith("hf:") for word in words)


def fault(words: list[str], status: int, told: str) -> str:
    """How a command ended that should not have ended so; "" if it ended as it should."""
    wanted, says = 0, ""
    if "cuda" in words and torch.cuda.device_count() < 4:
        wanted, says = 2, r"must (be|have) (a|4) (CUDA )?GPU"
    elif "--cluster" in words:  # clusters have tests of their own
        wanted, says = 2, "must name a running Ray cluster"
    elif of_the_hub(words):  # and so has the package
        wanted, says = 2 if words[0] in ("push", "pull") else 1, r"pip install \./plugins/hub"
    elif words[0] == "doctor":  # cut down, a run has findings, as has `MyEnv`
        wanted = int(bool(re.search(r'\d likely|"likely"', told)))
    good = status == wanted and re.search(says, told)
    return "" if good else f"quintet {' '.join(words)}: {status}\n{told}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder, with the modules that the documents call the user's own."""
    (class_,) = (
        x
        for x in blocks((ROOT / "docs" / "impala.md").read_text(), "python")
        if "class Reconstructs" in x
    )
    for name, text in {**MODULES, "reconstructs.py": class_}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [p for p in DOCUMENTS if commands(p.read_text())], ids=lambda path: path.name
)
def test_every_command_of_a_document_runs(path: Path, folder: Path):
    text = path.read_text()
    written_files(text, folder)
    given = commands(text)
    if given[0] != EARLIER:
        assert run(shortened(EARLIER), folder)[0] == 0
    if importlib.util.find_spec("quintet_hub"):
        given = [words for words in given if not of_the_hub(words)]
    for words in given:
        if "downloads/policy" in words and not (folder / "downloads").exists():
            (folder / "downloads").mkdir()
            (folder / "runs" / "ppo-CartPole-v1-s0" / "policy").rename(folder / "downloads/policy")
        status, told = run(shortened(words), folder)
        assert not fault(words, status, told)
        if status == 2:
            continue
        for option in ("--out", "--video"):
            if option in words:
                assert (folder / words[words.index(option) + 1]).stat().st_size > 1000, words
