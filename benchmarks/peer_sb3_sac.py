"""Speed of SAC beside Stable-Baselines3's, in turns, on fixed work.

    python benchmarks/peer_sb3_sac.py PEER_PYTHON [--pairs 3] [--threads 2] [--out FILE]
    PEER_PYTHON benchmarks/peer_sb3_sac.py --peer

PEER_PYTHON is a Python with stable-baselines3 and gymnasium[mujoco]; that of quintet must have
quintet-rl-sac installed. Both sides make one update of all networks for every env_step, without
evaluation; the peer is timed over whole steps after its warm-up, with PyTorch's fused Adam.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NAME = "halfcheetah-sac"
WORK = Path(__file__).with_name("fixed_work") / "workloads.toml"


def measure_peer(threads: int) -> dict[str, Any]:
    """The peer's speed, in the peer's own Python."""
    import gymnasium
    import stable_baselines3
    import torch
    from stable_baselines3 import SAC
    from stable_baselines3.common.callbacks import BaseCallback

    work = tomllib.loads(WORK.read_text())[NAME]
    torch.set_num_threads(threads)
    marks: list[tuple[float, int]] = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            now = time.perf_counter()
            if self.num_timesteps <= work["learning_starts"]:
                marks[:] = [(now, self.num_timesteps)]
            elif len(marks) == 1 and now - marks[0][0] >= work["warmup_seconds"]:
                marks.append((now, self.num_timesteps))
            done = len(marks) == 2 and now - marks[1][0] >= work["seconds"]
            if done:
                marks.append((now, self.num_timesteps))
            return not done

    model = SAC(
        "MlpPolicy",
        gymnasium.make(work["env_id"]),
        learning_rate=work["learning_rate"],
        buffer_size=work["buffer_size"],
        learning_starts=work["learning_starts"],
        batch_size=work["minibatch"],
        tau=work["tau"],
        gamma=work["gamma"],
        train_freq=1,
        gradient_steps=work["updates_per_step"],
        policy_kwargs={
            "net_arch": work["hidden"],
            "activation_fn": torch.nn.ReLU,
            "optimizer_kwargs": {"eps": work["adam_eps"], "fused": True},
        },
        device="cpu",
        seed=1,
    )
    model.learn(10**9, callback=Watch(), log_interval=10**9)
    (_, _), (begin, first), (end, last) = marks
    speed = (last - first) / (end - begin)
    return {"env_steps_per_s": speed, "peer": f"sb3 {stable_baselines3.__version__}"}


def last_json(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", nargs="?", metavar="PEER_PYTHON")
    parser.add_argument("--peer", action="store_true", help="measure the peer, in this Python")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch, on both sides")
    parser.add_argument("--out", type=Path, help="a file for all numbers, as JSON")
    args = parser.parse_args()
    if args.peer:
        print(json.dumps(measure_peer(args.threads)))
        return 0
    if args.python is None:
        parser.error("PEER_PYTHON is required")
    threads = str(args.threads)
    sides = {
        "quintet": [sys.executable, "benchmarks/speed.py", NAME, "--json", "--runtime.threads"],
        "peer": [args.python, __file__, "--peer", "--threads"],
    }
    pairs = []
    for _ in range(args.pairs):
        pair = {name: last_json([*command, threads]) for name, command in sides.items()}
        ours, theirs = (pair[name]["env_steps_per_s"] for name in sides)
        pairs.append({**pair, "ratio": ours / theirs, "load": os.getloadavg()[0]})
        print(f"quintet {ours:.1f}, peer {theirs:.1f} env_steps/s: {ours / theirs:.2f}", flush=True)
    print(f"median of the ratios: {statistics.median(x['ratio'] for x in pairs):.2f}")
    if args.out:
        args.out.write_text(json.dumps(pairs, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
