"""Writes the tables in docs/benchmarks.md and README.md from the records in benchmarks/results.

python benchmarks/tables.py            rewrite them
python benchmarks/tables.py --check    exit with 1 if they are not what the records say
"""

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "docs" / "benchmarks.md", ROOT / "README.md")


class Goal(NamedTuple):
    """What a record is held against; None: it stands there to compare with."""

    must: float | None
    aim: float | None
    reference: str
    title: str = ""


TOY = "quintet.envs.toy.cartpole_without_velocities"
PPO = {
    "CartPole-v1": Goal(495, 500, "SB3 zoo 500"),
    "Acrobot-v1": Goal(-86, -82, "CleanRL -86.4"),
    "MountainCar-v0": Goal(-120, -112, ""),
    "LunarLander-v3": Goal(225, 245, "SB3 zoo 242 (v2)"),
    TOY: Goal(475, 500, "SB3 contrib 500", "CartPole-v1 without velocities, LSTM"),
    f"{TOY}-feed-forward": Goal(None, None, "", "the same without a memory"),
    "HalfCheetah-v4": Goal(4000, 5000, "Tianshou 5784 ± 1244 (best within the run), CleanRL 1443"),
    "Hopper-v4": Goal(2200, 2600, "Tianshou 2609, CleanRL 2383"),
    "Walker2d-v4": Goal(2800, 3500, "Tianshou 3589, CleanRL 2288"),
}
"""By the name of the record."""


def load(algo: str, name: str) -> dict[str, Any] | None:
    path = ROOT / "benchmarks" / "results" / f"{algo}-{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def learning_table(algo: str, goals: dict[str, Goal]) -> str:
    lines = [
        "| environment (backend) | env_steps | seeds 1, 2, 3 | mean | must / aim | met "
        "| reference |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, goal in goals.items():
        title, record = goal.title or name, load(algo, name)
        asked = "" if goal.must is None else f"{goal.must} / {goal.aim}"
        if record is None:
            lines.append(f"| {title} | | not yet recorded | | {asked} | | {goal.reference} |")
            continue
        scores = [run["return_mean"] for run in record["runs"]]
        pairs = [(run["return_mean"], run["return_std"]) for run in record["runs"]]
        each = ", ".join(f"{score:.1f} ± {std:.1f}" for score, std in pairs)
        met = ""
        if goal.must is not None and goal.aim is not None:
            score = mean(scores)
            met = "aim" if score >= goal.aim else "must" if score >= goal.must else "no"
        steps, backend = record["config"]["total_env_steps"], record["config"]["env.backend"]
        lines.append(
            f"| {title} ({backend}) | {steps:,} | {each} | **{mean(scores):.1f}** | {asked} "
            f"| {met} | {goal.reference} |"
        )
    return "\n".join(lines)


def cost_table(algo: str, goals: dict[str, Goal]) -> str:
    lines = [
        "| environment | seconds of training per seed | seeds side by side | cores | commit |",
        "|---|---|---|---|---|",
    ]
    for name, goal in goals.items():
        record = load(algo, name)
        if record is not None:
            seconds = ", ".join(f"{run['train_s']:.0f}" for run in record["runs"])
            facts = (seconds, record["jobs"], record["cores"], record["commit"])
            lines.append(f"| {goal.title or name} | " + " | ".join(map(str, facts)) + " |")
    return "\n".join(lines)


TABLES = {
    "ppo-learning": lambda: learning_table("ppo", PPO),
    "ppo-cost": lambda: cost_table("ppo", PPO),
}


def rendered(text: str) -> str:
    """The document with every ``<!-- table NAME -->`` block filled anew."""
    for name, table in TABLES.items():
        begin, end = f"<!-- table {name} -->", f"<!-- end {name} -->"
        if begin in text:
            head, rest = text.split(begin)
            text = f"{head}{begin}\n{table()}\n{end}{rest.split(end)[1]}"
    return text


def main() -> int:
    stale = [path for path in DOCUMENTS if rendered(path.read_text()) != path.read_text()]
    for path in stale:
        if "--check" in sys.argv:
            print(f"{path} is not what the records say; run: python benchmarks/tables.py")
        else:
            path.write_text(rendered(path.read_text()))
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
