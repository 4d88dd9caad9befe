"""One optimizer step of PPO, eager and compiled, in microseconds, on one thread.

    python benchmarks/update_step.py

Networks and minibatches of the CartPole and HalfCheetah workloads; eager and compiled take turns,
the best of five rounds of each counts.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from gymnasium import spaces as gym_spaces

from quintet.algorithms.parts.minibatches import Minibatch, Rows
from quintet.algorithms.parts.setup import Compute, Setup
from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.models.config import ModelConfig, resolve_model
from quintet.types import Spaces

BATCH, ITERATION = 2048, 320
"""Rows of a batch, and optimizer steps after which statistics are added up."""

TASKS = {
    "cartpole": (4, gym_spaces.Discrete(2), 256),
    "halfcheetah": (17, gym_spaces.Box(-1.0, 1.0, (6,), np.float32), 64),
}


def make_step(size: int, action: gym_spaces.Space, rows: int, compiled: bool) -> Callable[[], None]:
    spaces = Spaces(gym_spaces.Box(-np.inf, np.inf, (size,), np.float32), action)
    setup = Setup(8, 10**6, (1, 2), torch.device("cpu"), Compute(compile=compiled))
    learner = PPOLearner(PPOConfig(), resolve_model(ModelConfig(), spaces), spaces, setup)
    params = torch.zeros(BATCH, learner.family.param_size)
    taken = learner.family.mode(params)
    batch = Rows(
        {"obs": torch.randn(BATCH, size)},
        is_first=torch.zeros(BATCH, dtype=torch.bool),
        action=taken,
        logp_mu=learner.family.log_prob(params, taken),
        params_mu=params,
        value_mu=torch.zeros(BATCH),
        advantage=torch.randn(BATCH),
        target=torch.randn(BATCH),
        state={},
    )
    index = torch.randperm(BATCH)[:rows]
    weight = torch.full((rows,), 1.0 / rows)
    minibatch = Minibatch(batch, index, index, weight, batch.advantage[index])
    trained, config, knobs = learner.trained, learner.config, learner.knobs()

    def step() -> None:
        trained.step(minibatch, knobs, trained.step_options(config.learning_rate, config))
        if trained.pending == ITERATION:
            trained.fold()

    return step


def microseconds(step: Callable[[], None], calls: int = 500) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - begin) / calls * 1e6


def main() -> None:
    torch.set_num_threads(1)
    for name, (size, action, rows) in TASKS.items():
        steps = {}
        for label, compiled in (("eager", False), ("compiled", True)):
            begin = time.perf_counter()
            steps[label] = make_step(size, action, rows, compiled)
            steps[label]()
            print(f"{name} {label}: first step after {time.perf_counter() - begin:.1f} s")
        best = {label: float("inf") for label in steps}
        for _ in range(5):
            for label, step in steps.items():
                best[label] = min(best[label], microseconds(step))
        eager, compiled = best["eager"], best["compiled"]
        times = f"eager {eager:.0f} us, compiled {compiled:.0f} us"
        print(f"{name}: {times}, {eager / compiled:.2f}x")


if __name__ == "__main__":
    main()
