"""Environments that misbehave, and a run of them in a process of its own:
`troubles_helpers.py RUN_DIR KIND STEPS INFERENCE`.
"""

import sys
import time

import gymnasium
import numpy as np

import quintet

SMALL = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 64,
    "num_epochs": 1,
    "eval.episodes": 0,
    "report.interval_s": 0.0,
    "report.sinks": ["jsonl"],
    "checkpoint.interval_iterations": 10,
    "checkpoint.max_cut_frac": 1.0,
    "runtime.compile": "off",
}


class Drifting(gymnasium.Env):
    """Episodes end both ways, when depends on the seed; trouble comes at one step of each stream's
    life, once or whenever the process is a new one.
    """

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, trouble: str = "none", at_step: int = 100) -> None:
        self.trouble, self.at_step, self.life = trouble, at_step, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=3)
        self.steps = 0
        return self.place.clip(-10, 10), {}

    def step(self, action):
        self.steps += 1
        self.life += 1
        self.place = 0.9 * self.place + 0.3 * self.np_random.normal(size=3) + 0.2 * (action - 1)
        if self.life == self.at_step:
            self.make_trouble()
        over = bool(self.place.sum() > 3.0)
        return self.place.clip(-10, 10), float(-abs(self.place[0])), over, self.steps >= 40, {}

    def make_trouble(self) -> None:
        if self.trouble == "raise":
            raise ValueError("the floor gave way")
        if self.trouble == "hang":
            time.sleep(10_000)
        if self.trouble == "nan":
            self.place[1] = np.nan
        if self.trouble == "die":
            sys.stdout.write("farewell\n")
            sys.stdout.flush()
            import os

            os._exit(3)


def main(run_dir: str, kind: str, steps: str, inference: str) -> None:
    result = quintet.train(
        "ppo",
        Drifting,
        total_steps=int(steps),
        seed=7,
        run_dir=run_dir,
        config=SMALL
        | {"runtime.kind": kind, "runtime.num_workers": 2, "runtime.inference": inference},
        on_report=lambda _: print("report", flush=True),
    )
    print("status", result.status, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
