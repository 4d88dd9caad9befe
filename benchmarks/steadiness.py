"""How steadily PPO's preset for CartPole-v1 ends: the training return of the last 20,000 env_steps.

    python benchmarks/steadiness.py [--seeds 200 229]

Trains by the preset with each seed, the first to the last, eagerly and compiled.  Told of each are
the mean return of the episodes that ended within the last 20,000 env_steps, and the env_steps at
which the mean of the last 100 episodes was first at least 475.  Results go to
benchmarks/results/steadiness.json.
"""

import argparse
import json
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from one_seed import commit
from records import write_whole

import quintet

HERE = Path(__file__).parent
ENV, LAST, EPISODES, RETURN = "CartPole-v1", 20_000, 100, 475


def train(seed: int, compile_: str) -> dict[str, Any]:
    """The end of one run."""
    ended: list[tuple[float, float, float]] = []  # env_steps, episodes, mean return of a report
    newest: deque[tuple[float, float]] = deque()
    reached: list[int] = []

    def look(report: dict[str, float]) -> None:
        count = report.get("episode/count", 0.0)
        if not count:
            return
        ended.append((report["env_steps"], count, report["episode/return_mean"]))
        newest.append((count, report["episode/return_mean"]))
        while sum(n for n, _ in newest) - newest[0][0] >= EPISODES:
            newest.popleft()
        total = sum(n for n, _ in newest)
        if total >= EPISODES and sum(n * mean for n, mean in newest) / total >= RETURN:
            reached.append(int(report["env_steps"]))

    with TemporaryDirectory() as folder:
        result = quintet.train(
            "ppo",
            ENV,
            seed=seed,
            run_dir=Path(folder) / "run",
            config={
                "eval.episodes": 0,
                "report.interval_s": 0.0,
                "report.progress": False,
                "report.sinks": ["jsonl"],
                "runtime.compile": compile_,
            },
            on_report=look,
        )
    late = [(n, mean) for at, n, mean in ended if at > result.metrics["env_steps"] - LAST]
    mean = sum(n * each for n, each in late) / sum(n for n, _ in late)
    first = reached[0] if reached else None
    return {"seed": seed, "return_mean": round(mean, 1), "env_steps_to_475": first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, default=[200, 229], metavar=("FROM", "TO"))
    args = parser.parse_args()
    record: dict[str, Any] = {"commit": commit(), "env": ENV}
    for name, compile_ in (("eager", "off"), ("compiled", "on")):
        record[name] = []
        for seed in range(args.seeds[0], args.seeds[1] + 1):
            record[name].append(train(seed, compile_))
            print(name, record[name][-1], flush=True)
    write_whole(HERE / "results" / "steadiness.json", json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
