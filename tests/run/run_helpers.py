"""Small runs, what they leave behind, and an environment that makes trouble."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import small_run_helpers
from gymnasium import spaces
from small_run_helpers import TOY

import quintet
from quintet.checkpoints import checkpoint
from quintet.checkpoints.checkpoint import tensor_hashes
from quintet.envs.toy import Contextual
from quintet.options import resolve as resolution
from quintet.options.layers import Layer
from quintet.options.saved import load_config

SMALL = small_run_helpers.SMALL | {"report.interval_s": 0.0, "report.sinks": ("jsonl",)}


class Trouble(gymnasium.Env):
    """Pays 1 per step, and after `after` steps of its own does what `kind` says."""

    made = 0

    def __init__(self, kind: str = "", after: int = 50) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.kind, self.after, self.steps, self.total = kind, after, 0, 0
        type(self).made += 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        self.total += 1
        now = self.total > self.after
        reward = {"nan_reward": math.nan, "huge": 3e38, "seven": 7.0}.get(self.kind, 1.0)
        return self._obs(), reward if now else 1.0, self.steps >= 9, False, {}

    def _obs(self):
        obs = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        if self.total > self.after:
            if self.kind == "nan":
                obs[1] = math.nan
            elif self.kind == "shape":
                return np.zeros(5, np.float32)
            elif self.kind == "raise":
                raise ValueError("the floor gave way")
            elif self.kind == "slow":
                time.sleep(0.005)
        return obs


def make_contextual(num_contexts: int = 3) -> gymnasium.Env:
    """Found by an import string."""
    return Contextual(num_contexts)


def run(folder: Path, steps: int = 128, env: Any = TOY, on_report=None, **more: Any):
    config = {**SMALL, **{name.replace("__", "."): value for name, value in more.items()}}
    return quintet.train("ppo", env, steps, run_dir=folder, config=config, on_report=on_report)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def iterations(folder: Path) -> list[int]:
    found = [checkpoint.read(folder / "checkpoints" / name) for name in names(folder)]
    return [one.meta["iteration"] for one in found]


def hashes(folder: Path) -> dict[str, str]:
    """Of the newest checkpoint."""
    return tensor_hashes(checkpoint.read(folder / "checkpoints" / names(folder)[-1]))


def weights(result) -> dict[str, bytes]:
    return {name: x.numpy().tobytes() for name, x in result.policy.publication.tensors.items()}


def log(folder: Path) -> str:
    return (folder / "log.txt").read_text()


@dataclass
class Where:
    folder: Path
    monkeypatch: pytest.MonkeyPatch


def resolved(**values: Any) -> dict[str, Any]:
    given = {name.replace("__", "."): value for name, value in values.items()}
    config = {**SMALL, "env.id": TOY, "total_env_steps": 128, **given}
    return resolution.resolved(load_config("ppo", [], Layer("call", config)))[0]
