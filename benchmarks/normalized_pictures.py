"""What normalised pictures cost in an update of each learner, in milliseconds of one thread.

    python benchmarks/normalized_pictures.py [LEARNER ...] [--precision bf16] [--record FILE]

An optimizer step on an unroll of 20 steps of 16 streams, with pictures of 4 x 84 x 84, nature_cnn
and six actions, eager and compiled: with normalize_pictures and without take turns, and medians of
processor time count.  Taking the batch into the statistics is part of it; ACER's is done after a
fresh batch only, so its updates are told of a replayed batch and of a fresh one.
"""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from acer_step import Update, in_turns
from gymnasium import spaces as gym_spaces

from quintet.algorithms import registry
from quintet.options.layers import Layer
from quintet.options.machine import has_compiler
from quintet.options.resolve import compose, resolve
from quintet.options.run import RunConfig
from quintet.run.learners import make_learner
from quintet.system.provenance import revision
from quintet.types import Rollout, Spaces

STEPS, STREAMS, ACTIONS = 20, 16, 6
ROWS = STEPS * STREAMS
SPACES = Spaces(gym_spaces.Box(0, 255, (4, 84, 84), np.uint8), gym_spaces.Discrete(ACTIONS))
OPTIONS: dict[str, dict[str, Any]] = {
    "ppo": {"minibatch_steps": ROWS, "num_epochs": 1, "reward_normalizer": "none"},
    "impala": {"batch_unrolls": STREAMS},
    "appo": {"minibatch_steps": ROWS, "minibatches_per_iteration": 1, "num_epochs": 1},
    "acer": {},
}
"""By learner, for one step with the whole batch."""


def configured(algo: str, precision: str, compiled: bool, normalized: bool) -> RunConfig:
    asked = {
        "env.id": "Pong-v5",
        "env.num_streams": STREAMS,
        "total_env_steps": 10**7,
        "unroll_steps": STEPS,
        "normalize_pictures": normalized,
        "runtime.kind": "serial",
        "runtime.precision": precision,
        "runtime.compile": "on" if compiled else "off",
        "preset": "none",
        **OPTIONS[algo],
    }
    composed = compose(algo, [Layer("benchmark", asked)])
    return resolve(composed, SPACES).config


def rollout_of(config: RunConfig) -> Rollout:
    """Random rows of a uniform policy, one in thirty the last of an episode."""
    rows = (STEPS + 1, STREAMS)
    runtime = config.runtime
    actor = registry.find(config.algo).make_actor(
        config.learner, config.model, SPACES, replace(runtime.compute, compile=False)
    )
    known = {"logp_mu": -np.log(ACTIONS), "params_mu": 0.0, "value": 0.0}
    record = {
        name: torch.full((STEPS, STREAMS, *spec.shape), known[name], dtype=spec.dtype)
        for name, spec in actor.record_specs.items()
    }
    nobody, never = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.bool)
    return Rollout(
        obs={"obs": torch.randint(0, 256, (*rows, 4, 84, 84), dtype=torch.uint8)},
        action=torch.randint(0, ACTIONS, (STEPS, STREAMS)),
        reward=torch.randn(STEPS, STREAMS),
        terminated=torch.rand(STEPS, STREAMS) < 1 / 30,
        truncated=never[1:],
        valid=~never[1:],
        is_first=never,
        record=record,
        version=nobody[1:],
        policy_id=nobody[1:],
        stream_id=torch.arange(STREAMS),
        group_id=nobody[0],
        episode_id=nobody[0],
        last_action=nobody[0],
        last_reward=torch.zeros(STREAMS),
        state={},
    )


def updates(algo: str, precision: str, compiled: bool) -> dict[str, Update]:
    """Calls by what they are told of."""
    torch.manual_seed(0)
    batch = rollout_of(configured(algo, precision, compiled, normalized=True))
    batches = {"": batch}
    if algo == "acer":
        batches = {" replayed": replace(batch, replayed=True), " fresh": batch}
    calls: dict[str, Update] = {}
    for normalized in (False, True):
        learner: Any = make_learner(configured(algo, precision, compiled, normalized), SPACES)
        learner.update(batch, 0)
        for name, each in batches.items():
            label = f"{algo}{name}, {'compiled' if compiled else 'eager'}"
            with_or_not = "normalised" if normalized else "plain"
            calls[f"{label}, {with_or_not}"] = lambda x=each, of=learner: of.update(x, 0)
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("learner", nargs="*", default=[], help=" or ".join(OPTIONS))
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for algo in args.learner or OPTIONS:
        for compiled in (False, True) if has_compiler() else (False,):
            times = in_turns(updates(algo, args.precision, compiled), 1, args.rounds)
            found |= {name: median(each) / 1000 for name, each in times.items()}
    for name in [name for name in found if name.endswith(", plain")]:
        label = name.removesuffix(", plain")
        plain, normalized = found[name], found[f"{label}, normalised"]
        print(
            f"{label:24} {plain:8.1f} ms {normalized:8.1f} ms normalised {normalized / plain:6.2f}x"
        )
    if args.record:
        facts = {
            "cores": len(os.sched_getaffinity(0)),
            "load": os.getloadavg(),
            "precision": args.precision,
            "commit": revision(Path(__file__).parent, 12),
        }
        args.record.write_text(json.dumps({**facts, "ms": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
