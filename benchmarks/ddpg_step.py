"""What DDPG's updates cost, in microseconds, on one thread: a step eager, compiled and four in one
call, and a draw by itself and read together with others.

    python benchmarks/ddpg_step.py [--rows 1000000] [--precision fp32|bf16]

Observations of 17 floats, 6 actions.  Steps are those of `Trained`, of both networks and the
targets.  A draw is of as many windows of one step as the batch has, from a full replay of --rows;
of the draws of one round, 8, all are read together.  Variants take turns in one process; printed
are medians of processor time.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor

from quintet.algorithms.ddpg.config import DDPGConfig, Knobs
from quintet.algorithms.ddpg.learner import DDPGLearner
from quintet.algorithms.ddpg.transitions import Transitions
from quintet.algorithms.parts.setup import Compute, Setup
from quintet.algorithms.parts.trained import StepOptions, Trained, knobs_of
from quintet.algorithms.parts.windows import Windows
from quintet.models.compiled import Graph
from quintet.models.config import ModelConfig, resolve_model
from quintet.models.precision import Precision
from quintet.protocols import DataPlan, ReplayPlan
from quintet.runtime.replay import replay as replays
from quintet.runtime.slots import RowSpecs
from quintet.types import Rollout, Spaces, TensorSpec

FLOATS, ACTIONS, ROUND, TOGETHER = 17, 6, 8, 4
FOLDER = TemporaryDirectory()  # of the replay
SPACES = Spaces(
    gym_spaces.Box(-np.inf, np.inf, (FLOATS,), np.float32),
    gym_spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32),
)
SIZES = {"64-64 with LayerNorm": ((64, 64), True, 64), "256-256": ((256, 256), False, 256)}
"""By name: widths of the layers, LayerNorm, transitions of a batch."""

Call = Callable[[], object]


def make_learner(
    hidden: tuple[int, ...], layer_norm: bool, compiled: bool, precision: Precision
) -> DDPGLearner:
    model = ModelConfig(policy_hidden=hidden, activation="relu", layer_norm=layer_norm)
    setup = Setup(
        1, 10**6, (1, 2), torch.device("cpu"), Compute(compile=compiled, precision=precision)
    )
    config = DDPGConfig(action_layer=1, critic_l2_coef=0.0, exploration="normal_0.1")
    return DDPGLearner(config, resolve_model(model, SPACES), SPACES, setup)


def transitions(learner: DDPGLearner, rows: int) -> Transitions:
    windows = Windows(
        obs={"obs": torch.randn(2 * rows, FLOATS)},
        action=2.0 * torch.rand(rows, ACTIONS) - 1.0,
        reward=torch.randn(1, rows),
        valid=torch.ones(1, rows, dtype=torch.bool),
        terminal=torch.zeros(1, rows, dtype=torch.bool),
        cut=torch.zeros(1, rows, dtype=torch.bool),
        record={},
        rows=rows,
    )
    return Transitions(windows, None, learner.targets.numbers())


def numbers(learner: DDPGLearner) -> tuple[Knobs, list[StepOptions]]:
    """Of the learner's next step."""
    options = learner.trained.step_options(learner.config.critic_lr, learner.config)
    return knobs_of(Knobs, learner.config), [options, options]


class Several:
    """Several compiled steps as one graph."""

    def __init__(self, trained: Trained[Any, Any]):
        self.trained = trained
        self.graph = Graph(self._steps)

    def _steps(self, batches: tuple[Transitions, ...], packed: Tensor) -> Tensor:
        steps = zip(batches, packed.unbind(), strict=True)
        return torch.stack([self.trained._compiled_step(*each) for each in steps])


def step_variants(
    hidden: tuple[int, ...], layer_norm: bool, rows: int, precision: Precision
) -> dict[str, Call]:
    """Each makes TOGETHER steps."""
    found: dict[str, Call] = {}
    for name in ("eager", "compiled"):
        learner = make_learner(hidden, layer_norm, name == "compiled", precision)
        batches = tuple(transitions(learner, rows) for _ in range(TOGETHER))

        def steps(learner: DDPGLearner = learner, batches: Sequence[Any] = batches) -> None:
            for batch in batches:
                knobs, options = numbers(learner)
                learner.trained.step(batch, knobs, *options, polyak=learner.config.tau)
            learner.trained.fold()

        found[name] = steps
    several = Several(learner.trained)

    def together() -> Tensor:
        packed = [learner.trained._packed(*numbers(learner), learner.config.tau) for _ in batches]
        return several.graph(batches, torch.stack(packed))

    found[f"{TOGETHER} in one call"] = together
    return found


def full_replay(capacity: int, columns: int) -> replays.Replay:
    drawn = ReplayPlan("windows", capacity_steps=capacity, steps=1, columns=columns, draws="owed",
                       rate=1.0, start_steps=1)  # fmt: skip
    specs = RowSpecs(SPACES, TensorSpec((ACTIONS,), torch.float32), {}, {})
    replay = replays.Replay(DataPlan(ROUND, 1, replay=drawn), specs, 1, 0, Path(FOLDER.name))
    never, nobody = torch.zeros(ROUND + 1, 1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    for _ in range(capacity // ROUND + 1):
        batch = Rollout(
            obs={"obs": torch.randn(ROUND + 1, 1, FLOATS)},
            action=torch.rand(ROUND, 1, ACTIONS),
            reward=torch.randn(ROUND, 1),
            terminated=never[1:],
            truncated=never[1:],
            valid=~never[1:],
            is_first=never,
            record={},
            version=nobody.expand(ROUND, 1),
            policy_id=nobody.expand(ROUND, 1),
            stream_id=nobody,
            group_id=nobody,
            episode_id=nobody,
            last_action=torch.zeros(1, ACTIONS),
            last_reward=torch.zeros(1),
            state={},
        )
        replay.store(batch)
    return replay


def draw_variants(capacity: int, columns: int) -> dict[str, Call]:
    """Each makes the draws of a round."""
    replay, whole = full_replay(capacity, columns), replays._AHEAD_BYTES
    iteration = 0

    def draws(ahead_bytes: int) -> None:
        nonlocal iteration
        iteration += 1
        replays._AHEAD_BYTES = ahead_bytes
        assert len(list(replay.draws(ROUND, iteration))) >= ROUND

    return {"one by one": lambda: draws(0), "read together": lambda: draws(whole)}


def microseconds(variants: dict[str, Call], per_call: int, rounds: int = 25) -> dict[str, float]:
    """By variant: the median of the rounds, in which each takes its turn."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            begin = time.process_time()
            for _ in range(10):
                call()
            times[name].append((time.process_time() - begin) / (10 * per_call) * 1e6)
    return {name: median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--precision", choices=get_args(Precision), default="fp32")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, (hidden, layer_norm, rows) in SIZES.items():
        steps = step_variants(hidden, layer_norm, rows, args.precision)
        for label, call in steps.items():
            begin = time.perf_counter()
            call()
            print(f"{name}, {label}: first after {time.perf_counter() - begin:.1f} s")
        variants = draw_variants(args.rows, rows)
        for what, found in (
            ("step", microseconds(steps, TOGETHER)),
            ("draw", microseconds(variants, ROUND)),
        ):
            print(f"{name}, {what}: " + ", ".join(f"{k} {us:.0f} us" for k, us in found.items()))


if __name__ == "__main__":
    main()
