"""Env_steps and seconds that ACER needs, by replay ratio and trust region, beside PPO and IMPALA.

    python benchmarks/efficiency.py [--seeds 21 22 23 24 25] [--jobs 1] [--folder DIR]

Every variant trains on both tasks with each seed, serial and with one thread, by the presets but
for its own options and the budget.  A return is reached when the mean of the last training
episodes, at least 20, is at least that; it is looked at every 2,048 env_steps.  Finished runs are
kept in --folder, and made again at another commit.  Results go to
benchmarks/results/efficiency.json and docs/images/acer-efficiency.png.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from one_seed import commit, end_with_parent
from records import ROOT, write_whole

HERE = Path(__file__).parent
EPISODES = 20
LOOK_EVERY = 2_048
"""env_steps between two looks at the mean: as often for every learner, whatever its batches."""

POINTS = 60
"""Of a recorded curve."""


class Task(NamedTuple):
    """budget: in env_steps, which schedules follow; threshold: the return to reach."""

    budget: int
    threshold: float


TASKS = {"CartPole-v1": Task(150_000, 450), "Acrobot-v1": Task(250_000, -100)}


class Variant(NamedTuple):
    """A learner, and its options beside the preset's."""

    algo: str
    options: dict[str, Any]


VARIANTS = {
    "ratio 0": Variant("acer", {"replay_ratio": 0}),
    "ratio 1": Variant("acer", {"replay_ratio": 1}),
    "ratio 4": Variant("acer", {"replay_ratio": 4}),
    "ratio 8": Variant("acer", {"replay_ratio": 8}),
    "ratio 4, no trust region": Variant("acer", {"replay_ratio": 4, "trust_region": False}),
    "PPO": Variant("ppo", {}),
    "IMPALA": Variant("impala", {}),
}


def train(env: str, variant: str, seed: int) -> dict[str, Any]:
    """One run: where the return was reached, None where it was not, and the curve."""
    import quintet

    trained_by = commit()
    task, (algo, options) = TASKS[env], VARIANTS[variant]
    newest: deque[tuple[float, float]] = deque()
    curve: list[tuple[float, float, float]] = []
    reached: list[dict[str, float]] = []

    def look(report: dict[str, float]) -> None:
        count, env_steps = report.get("episode/count", 0.0), report["env_steps"]
        if count:
            newest.append((count, report["episode/return_mean"]))
        while newest and sum(n for n, _ in newest) - newest[0][0] >= EPISODES:
            newest.popleft()
        total = sum(n for n, _ in newest)
        looked_at = curve[-1][0] if curve else 0.0
        if total < EPISODES or env_steps // LOOK_EVERY == looked_at // LOOK_EVERY:
            return
        mean = sum(n * each for n, each in newest) / total
        curve.append((env_steps, round(report["wall_s"], 2), round(mean, 2)))
        if mean >= task.threshold:
            reached.append({name: round(report[name], 2) for name in ("env_steps", "wall_s")})

    with TemporaryDirectory() as folder:
        quintet.train(
            algo,
            env,
            total_steps=task.budget,
            seed=seed,
            run_dir=Path(folder) / "run",
            config={
                "eval.episodes": 0,
                "report.interval_s": 0.2,
                "report.progress": False,
                "report.sinks": ["jsonl"],
                "runtime.kind": "serial",
                "runtime.threads": 1,
                **options,
            },
            on_report=look,
        )
    stride = max(1, len(curve) // POINTS)
    return {
        "seed": seed,
        "reached": reached[0] if reached else None,
        "curve": curve[stride - 1 :: stride],
        "commit": trained_by,
    }


def run(env: str, variant: str, seed: int, folder: Path) -> dict[str, Any]:
    """One run in a process of its own, unless this commit has finished it before."""
    kept = folder / f"{env}-{variant}-s{seed}.json".replace(" ", "-").replace(",", "")
    if not kept.exists() or json.loads(kept.read_text())["commit"] != commit():
        with kept.with_suffix(".log").open("w") as log:
            # Standard input is never written to: it closes with this process; the child sees that.
            child = subprocess.Popen(
                [sys.executable, __file__, "--one", env, variant, str(seed), str(kept)],
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            if child.wait():
                raise SystemExit(f"{kept.stem} failed; the reason is in {log.name}")
    found: dict[str, Any] = json.loads(kept.read_text())
    print(env, variant, seed, found["reached"], flush=True)
    return found


def draw(record: dict[str, Any]) -> None:
    """Of each task a line of panels: env_steps to the return, curves by env_steps, by seconds."""
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    from quintet.observe.plots import Curve, Run, draw_group

    figure = Figure(figsize=(12.0, 3.4 * len(TASKS)), dpi=105, layout="constrained")
    places = figure.subplots(len(TASKS), 3, squeeze=False)
    beside = ("ratio 4", "ratio 4, no trust region", "PPO", "IMPALA")
    for (env, task), (steps, by_steps, by_seconds) in zip(TASKS.items(), places, strict=True):
        found = record["tasks"][env]
        for height, name in enumerate(VARIANTS):
            x = [run["reached"]["env_steps"] for run in found[name] if run["reached"]]
            steps.plot(x, [height] * len(x), "o", mfc="none", mec="0.3")
            if 2 * len(x) > len(found[name]):
                steps.plot([median_of(found[name], "env_steps")], [height], "k|", ms=18, mew=2)
        steps.set_yticks(range(len(VARIANTS)), VARIANTS, fontsize=8)
        steps.invert_yaxis()
        steps.set_xlim(0, task.budget)
        steps.set_title(f"{env}: env steps to {task.threshold:g}", loc="left", fontsize=9)
        for axes, column, label in ((by_steps, 0, "env steps"), (by_seconds, 1, "seconds")):
            for number, name in enumerate(beside):
                runs = []
                for each in found[name]:
                    points = np.array(each["curve"], np.float64)
                    curve, none = Curve(points[:, column], points[:, 2]), np.zeros(0)
                    runs.append(Run(ROOT, {"seed": each["seed"]}, curve, Curve(none, none)))
                draw_group(axes, number, name, runs, 60)
            axes.axhline(task.threshold, color="0.4", ls=":", lw=1)
            axes.set_xlabel(label, fontsize=8)
            axes.set_title(f"{env}: mean return of 20 episodes", loc="left", fontsize=9)
        by_steps.legend(fontsize=6, frameon=False)
        for axes in (steps, by_steps):
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        for axes in (steps, by_steps, by_seconds):
            axes.tick_params(labelsize=8)
            axes.grid(True, color="0.92", linewidth=0.7)
            axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "images" / "acer-efficiency.png", pil_kwargs={"optimize": True})


def median_of(runs: list[dict[str, Any]], axis: str) -> float:
    """Over all seeds; those that did not reach the return count as infinity."""
    return statistics.median(
        run["reached"][axis] if run["reached"] else float("inf") for run in runs
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[21, 22, 23, 24, 25])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/efficiency"))
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        end_with_parent()
        env, variant, seed, kept = asked.one
        write_whole(Path(kept), json.dumps(train(env, variant, int(seed))) + "\n")
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    # All variants of a seed beside each other, so that a slow hour of the machine is everybody's.
    work = [(env, name, seed) for env in TASKS for seed in asked.seeds for name in VARIANTS]
    with ThreadPoolExecutor(asked.jobs) as pool:
        runs = list(pool.map(lambda each: run(*each, asked.folder), work))
    tasks: dict[str, Any] = {env: {name: [] for name in VARIANTS} for env in TASKS}
    for (env, name, _), each in zip(work, runs, strict=True):
        tasks[env][name].append(each)
    record = {"jobs": asked.jobs, "episodes": EPISODES, "tasks": tasks}
    write_whole(HERE / "results" / "efficiency.json", json.dumps(record) + "\n")
    draw(record)


if __name__ == "__main__":
    main()
