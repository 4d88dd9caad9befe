"""What an act costs when every stream has its own perturbed policy, beside one policy for all.

    python benchmarks/perturbed_acts.py [--streams 16] [--rounds 15] [--record FILE]

Observations have 17 floats and actions 6, as HalfCheetah's; the networks are the original's (64 and
64 with LayerNorm, observations normalised) and the usual modern one (256 and 256).  Shared: DDPG's
actor with Gaussian noise.  Perturbed: the same actor with parameter noise, whose streams begin
episodes of `EPISODE` steps at different times, so the weights that are drawn at each start are
counted; between starts: the same acts without any start.

All variants take turns in one process with one thread.  Printed are medians of the rounds: of
microseconds of processor time per act of all streams, and of their ratios within a round.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from quintet.algorithms.ddpg.actor import DDPGActor
from quintet.algorithms.ddpg.config import DDPGConfig
from quintet.algorithms.ddpg.learner import DDPGLearner
from quintet.algorithms.parts.setup import Compute, Setup
from quintet.models.config import ModelConfig, resolve_model
from quintet.types import Spaces

FLOATS, ACTIONS, EPISODE, ACTS = 17, 6, 1_000, 500
SPACES = Spaces(
    spaces.Box(-np.inf, np.inf, (FLOATS,), np.float32),
    spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32),
)
NETWORKS: dict[str, dict[str, Any]] = {
    "64-64, LayerNorm": {"policy_hidden": (64, 64), "layer_norm": True},
    "256-256": {"policy_hidden": (256, 256), "layer_norm": False},
}


def make_actor(network: dict[str, Any], exploration: str, compiled: bool) -> DDPGActor:
    """With the first publication of a learner."""
    config = DDPGConfig(exploration=exploration, normalize_observations=network["layer_norm"])
    model = resolve_model(ModelConfig(activation="relu", **network), SPACES)
    setup = Setup(1, 10**6, (1, 2), torch.device("cpu"), Compute(compile=False))
    learner = DDPGLearner(config, model, SPACES, setup)
    if learner.normalizer.names:
        rows = {"obs": torch.randn(100, 1, FLOATS)}
        learner.normalizer.merge(rows, torch.ones(100, 1, dtype=torch.bool))
    actor = DDPGActor(config, model, SPACES, Compute(compile=compiled))
    actor.load(learner.publication())
    return actor


def acts(actor: DDPGActor, streams: int, starts: bool) -> Callable[[], float]:
    """Microseconds of processor time per act, over `ACTS` acts that go on from the last ones.

    starts: whether episodes begin anew.
    """
    generator = torch.Generator().manual_seed(0)
    obs = [{"obs": x} for x in torch.randn(ACTS, streams, FLOATS, generator=generator)]
    moment = torch.arange(streams) * EPISODE // streams
    noise = actor.draw_noise(ACTS, streams, generator).unbind(0)
    state = actor.act(
        obs[0], actor.initial_state(streams), torch.ones(streams).bool(), noise[0]
    ).state
    done = 0

    def run() -> float:
        nonlocal state, done
        row = torch.arange(done, done + ACTS).unsqueeze(-1)
        first = ((row + moment) % EPISODE == 0) & torch.tensor(starts)
        rows, done = first.unbind(0), done + ACTS
        begin = time.thread_time()
        for t in range(ACTS):
            state = actor.act(obs[t], state, rows[t], noise[t]).state
        return 1e6 * (time.thread_time() - begin) / ACTS

    return run


def measured(
    network: dict[str, Any], compiled: bool, streams: int, rounds: int
) -> dict[str, dict[str, float]]:
    """By variant, ``us`` and ``x_shared``."""
    shared = make_actor(network, "normal_0.2", compiled)
    perturbed = make_actor(network, "adaptive-param_0.2", compiled)
    runs = {
        "shared": acts(shared, streams, True),
        "perturbed": acts(perturbed, streams, True),
        "perturbed, between starts": acts(perturbed, streams, False),
    }
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(run())
    return {
        name: {
            "us": median(each),
            "x_shared": median(a / b for a, b in zip(each, times["shared"], strict=True)),
        }
        for name, each in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, network in NETWORKS.items():
        for compiled in (False, True):
            what = f"{name}, {'compiled' if compiled else 'eager'}"
            found[what] = measured(network, compiled, args.streams, args.rounds)
            print(what)
            for variant, cost in found[what].items():
                print(f"    {variant:26} {cost['us']:8.1f} us  {cost['x_shared']:5.2f} x shared")
    if args.record:
        record = {"cores": len(os.sched_getaffinity(0)), "load": os.getloadavg(), "acts": found}
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
