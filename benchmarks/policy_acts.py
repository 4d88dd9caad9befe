"""What `Policy.act` costs for one observation, beside Stable-Baselines3's `predict`.

    python benchmarks/policy_acts.py [--rounds 20] [--peer-python PATH] [--record FILE]

Both have PPO's network of 64 and 64 tanh units for the policy, as many for the value, on one thread
of PyTorch; CartPole-v1 has Discrete actions, Pendulum-v1 a Box.  The two sides take turns, each
round in a process of its own; printed are the minimum and the median over all rounds, in
microseconds of wall time per call.  quintet's Pendulum normalises observations, as its presets of
such environments do.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ENVS = ("CartPole-v1", "Pendulum-v1")
CALLS, WARM_UP = 2_000, 300
FORMS = {"greedy": True, "sampled": False}


def policy_of(env: str, folder: str) -> tuple[Callable[[Any, bool], object], Any]:
    """quintet's act, and an observation."""
    import numpy as np

    import quintet

    config = {"env.num_streams": 4, "report.progress": False, "eval.episodes": 0}
    small = {"unroll_steps": 16, "minibatch_steps": 32, "num_epochs": 1, "preset": "none"}
    network = {"model.policy_hidden": (64, 64), "normalize_observations": env == "Pendulum-v1"}
    run_dir = Path(folder) / env
    policy = quintet.train("ppo", env, 300, 1, run_dir, {**config, **small, **network}).policy
    obs = np.zeros(policy.spaces.observation.shape, np.float32)
    return lambda obs, greedy: policy.act(obs, None, greedy), obs


def peer_of(env: str) -> tuple[Callable[[Any, bool], object], Any]:
    """Stable-Baselines3's predict, and an observation."""
    import numpy as np
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    model = PPO("MlpPolicy", env, device="cpu")
    obs = np.zeros(model.observation_space.shape, np.float32)
    return lambda obs, greedy: model.predict(obs, deterministic=greedy), obs


def measure(side: str) -> dict[str, list[float]]:
    """Microseconds of each call, by environment and form."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for env in ENVS:
            act, obs = policy_of(env, folder) if side == "quintet" else peer_of(env)
            for form, greedy in FORMS.items():
                for _ in range(WARM_UP):
                    act(obs, greedy)
                times = []
                for _ in range(CALLS):
                    begin = time.perf_counter()
                    act(obs, greedy)
                    times.append(1e6 * (time.perf_counter() - begin))
                found[f"{env}, {form}"] = [min(times), median(times)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peer-python", type=Path, help="that has stable-baselines3")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--one", choices=("quintet", "sb3"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one)))
        return
    pythons = {"quintet": sys.executable}
    if args.peer_python:
        pythons["sb3"] = str(args.peer_python)
    rounds: dict[str, list[dict[str, list[float]]]] = {side: [] for side in pythons}
    for _ in range(args.rounds):
        for side, python in pythons.items():
            command = [python, __file__, "--one", side]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rounds[side].append(json.loads(done.stdout.strip().splitlines()[-1]))
    found = {
        side: {
            what: {
                "min_us": round(min(each[what][0] for each in several), 1),
                "median_us": round(median(each[what][1] for each in several), 1),
            }
            for what in several[0]
        }
        for side, several in rounds.items()
    }
    for side, costs in found.items():
        for what, cost in costs.items():
            print(f"{side:8} {what:22} {cost['min_us']:7.1f} min {cost['median_us']:7.1f} median")
    if args.record:
        record = {"rounds": args.rounds, "load": os.getloadavg(), "us": found}
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
