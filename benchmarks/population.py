"""Populations that tune themselves beside the same policies left as they are, on LunarLander-v3.

    python benchmarks/population.py [--repeats 3] [--steps 4000000] [--jobs 1] [--folder DIR]

Four policies of APPO begin with badly spread learning rates and entropy coefficients, once with
population-based training and once without (`population.pbt=false`); all is serial, so that a
repeat is a function of its seed.  Of each policy 100 greedy episodes of the final weights are
played.  Runs are kept in --folder by steps and commit, and go on there; results go to
benchmarks/results/population.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from children import WITH_PARENT
from one_seed import commit
from records import write_whole

HERE = Path(__file__).parent
ENV, POLICIES = "LunarLander-v3", 4
SEEDS = (14, 15, 16, 17, 18)
INITIAL = {
    "learning_rate": [1e-2, 2e-3, 5e-5, 5e-6],
    "entropy_coef": [1e-4, 0.2, 0.01, 0.05],
}
PERIOD = 100_000
EPISODES = 100


def train(seed: int, pbt: bool, steps: int, folder: Path) -> Path:
    """Trains one population, or goes on with it; returns its folder."""
    run = folder / f"{'pbt' if pbt else 'plain'}-{steps}-s{seed}-{commit()}"
    given: dict[str, Any] = {
        "env": ENV, "total-steps": steps, "seed": seed, "run-dir": run, "runtime.kind": "serial",
        "population": POLICIES, "population.initial": json.dumps(INITIAL), "eval.episodes": 0,
        "report.sinks": "jsonl", "population.pbt": str(pbt).lower(),
        "preset": "vector_discrete",  # quicker than the environment's own
    }  # fmt: skip
    if pbt:
        given |= {"population.start-env-steps": PERIOD, "population.period-env-steps": PERIOD}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    with (folder / f"{run.name}.log").open("a") as log:
        command = [*WITH_PARENT, sys.executable, "-m", "quintet", "train", "appo", *words]
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    return run


def scores(run: Path) -> list[float]:
    """Mean greedy return of each policy."""
    import quintet

    policies = [quintet.load(run / f"policy_{k}" / "policy") for k in range(POLICIES)]
    return [quintet.evaluate(each, episodes=EPISODES, seed=10_000).mean for each in policies]


def copies(run: Path) -> int:
    events = map(json.loads, (run / "population.jsonl").read_text().splitlines())
    return sum(event["event"] == "copied" for event in events)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4_000_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/population"))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    seeds = SEEDS[: asked.repeats]
    work = [(seed, pbt) for seed in seeds for pbt in (True, False)]
    with ThreadPoolExecutor(asked.jobs) as pool:
        runs = list(pool.map(lambda each: train(*each, asked.steps, asked.folder), work))
    found = dict(zip(work, runs, strict=True))
    repeats = []
    for seed in seeds:
        tuned, plain = scores(found[seed, True]), scores(found[seed, False])
        repeats.append(
            {
                "seed": seed,
                "pbt": [round(x, 1) for x in tuned],
                "plain": [round(x, 1) for x in plain],
                "copies": copies(found[seed, True]),
            }
        )
        print(seed, statistics.median(tuned), statistics.median(plain), max(tuned), max(plain))
    record = {
        "env": ENV,
        "algo": "appo",
        "total_env_steps": asked.steps,
        "initial": INITIAL,
        "period_env_steps": PERIOD,
        "episodes": EPISODES,
        "commit": commit(),
        "repeats": repeats,
    }
    path = HERE / "results" / "population.json"
    write_whole(path, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
