"""A game of two by self-play, and two policies in the same games, on the coin race.

    python benchmarks/games.py [--seeds 17 18 19] [--steps 100000] [--jobs 1] [--folder DIR]

Trained by PPO are one policy that plays both agents, and two that share the games.  Each plays 300
games greedily against uniformly random actions, the one policy also against its checkpoint at half
of the budget, greedily and with sampled actions: moves are simultaneous, so two players without
chance block each other.  Runs are kept in --folder by steps and commit, and go on there; results go
to benchmarks/results/games.json, by the number of steps.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from children import WITH_PARENT
from one_seed import commit
from records import write_whole

HERE = Path(__file__).parent
ENV = "quintet.envs.games:parallel_env"
GAMES = 300
OPTIONS = {
    "env.num-streams": 32, "unroll-steps": 32, "minibatch-steps": 256, "learning-rate": 1e-3,
    "entropy-coef": 0.01,
    "eval.episodes": 0, "report.sinks": "jsonl", "checkpoint.milestones": 2,
}  # fmt: skip


def train(seed: int, policies: int, steps: int, folder: Path) -> Path:
    """Trains, or goes on; returns the run's folder."""
    run = folder / f"{policies}-{steps}-s{seed}-{commit()}"
    given: dict[str, Any] = {**OPTIONS, "env": ENV, "seed": seed, "run-dir": run}
    given["total-steps"] = steps * policies
    if policies > 1:
        given |= {"population": policies, "population.pbt": "false"}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    with (folder / f"{run.name}.log").open("a") as log:
        command = [*WITH_PARENT, sys.executable, "-m", "quintet", "train", "ppo", *words]
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    return run


def games(policy: Path, against: Path | str, *options: str) -> dict[str, Any]:
    """Numbers of games, and the mean return in them, as `quintet eval` gives them."""
    words = ["eval", str(policy), "--against", str(against), "--episodes", str(GAMES), "--json"]
    words += options
    done = subprocess.run(
        [sys.executable, "-m", "quintet", *words], check=True, stdout=subprocess.PIPE, text=True
    )
    found = json.loads(done.stdout)["games"]
    counts = {name: found[name] for name in ("won", "drawn", "lost")}
    return counts | {"return_mean": round(sum(found["own"]) / len(found["own"]), 2)}


def measure(seed: int, steps: int, folder: Path) -> dict[str, Any]:
    one, two = train(seed, 1, steps, folder), train(seed, 2, steps, folder)
    half = min((one / "checkpoints").iterdir())  # the milestone; the others are the last ones
    record = {
        "seed": seed,
        "self_play_random": games(one, "random"),
        "self_play_half": games(one, half),
        "self_play_half_sampled": games(one, half, "--stochastic"),
    }
    for k in (0, 1):
        record[f"policy_{k}_random"] = games(two / f"policy_{k}" / "policy", "random")
    print(json.dumps(record), flush=True)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[17, 18, 19])
    parser.add_argument("--steps", type=int, default=100_000, help="of each policy")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/games"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        records = list(pool.map(lambda seed: measure(seed, args.steps, args.folder), args.seeds))
    out = HERE / "results" / "games.json"
    found = json.loads(out.read_text()) if out.exists() else {}
    found[str(args.steps)] = {"commit": commit(), "env": ENV, "seeds": records}
    write_whole(out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
