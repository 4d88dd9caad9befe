"""Writes the tables in docs/benchmarks.md and README.md from the records in benchmarks/results.

python benchmarks/tables.py            rewrite them
python benchmarks/tables.py --check    exit with 1 if they are not what the records say
"""

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "docs" / "benchmarks.md", ROOT / "README.md")

# environment: (must, aim, reference)
PPO = {
    "CartPole-v1": (495, 500, "SB3 zoo 500"),
    "Acrobot-v1": (-86, -82, "CleanRL -86.4"),
    "HalfCheetah-v4": (4000, 5000, "Tianshou 5784 ± 1244 (best within the run), CleanRL 1443"),
}


def load(algo: str, env: str) -> dict[str, Any] | None:
    path = ROOT / "benchmarks" / "results" / f"{algo}-{env}.json"
    return json.loads(path.read_text()) if path.exists() else None


def learning_table(algo: str, goals: dict[str, tuple[float, float, str]]) -> str:
    lines = [
        "| environment (backend) | env_steps | seeds 1, 2, 3 | mean | must / aim | met "
        "| reference |",
        "|---|---|---|---|---|---|---|",
    ]
    for env, (must, aim, reference) in goals.items():
        record = load(algo, env)
        if record is None:
            lines.append(f"| {env} | | not yet recorded | | {must} / {aim} | | {reference} |")
            continue
        scores = [run["return_mean"] for run in record["runs"]]
        pairs = [(run["return_mean"], run["return_std"]) for run in record["runs"]]
        each = ", ".join(f"{score:.1f} ± {std:.1f}" for score, std in pairs)
        met = "aim" if mean(scores) >= aim else "must" if mean(scores) >= must else "no"
        steps, backend = record["config"]["total_env_steps"], record["config"]["env.backend"]
        lines.append(
            f"| {env} ({backend}) | {steps:,} | {each} | **{mean(scores):.1f}** | {must} / {aim} "
            f"| {met} | {reference} |"
        )
    return "\n".join(lines)


def cost_table(algo: str, goals: dict[str, tuple[float, float, str]]) -> str:
    lines = [
        "| environment | seconds of training per seed | seeds side by side | cores | commit |",
        "|---|---|---|---|---|",
    ]
    for env in goals:
        record = load(algo, env)
        if record is not None:
            seconds = ", ".join(f"{run['train_s']:.0f}" for run in record["runs"])
            lines.append(
                f"| {env} | {seconds} | {record['jobs']} | {record['cores']} | {record['commit']} |"
            )
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
