"""A sweep that is killed at random moments beside the same one without kills, and its best options
beside the preset.

    python benchmarks/sweep.py FOLDER [--trials 30] [--steps 200000] [--kills 10]

Sweeps PPO on LunarLander in FOLDER/whole, then in FOLDER/killed, where the sweep and all of its
processes are killed at random moments and the same command is given again.  Both must have the same
trials.  The three best options are then trained on five fresh seeds by the sweep, and the preset on
the same seeds with the same env_steps; the policies of the best options and of the preset play 100
greedy episodes per seed.  Killed itself, the same command goes on with what is not done yet; the
sweep without kills begins again, since its time is that of one piece.
"""

import argparse
import csv
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
from children import WITH_PARENT
from records import write_whole

ENV = "LunarLander-v3"
SEEDS = 5
QUINTET = [sys.executable, "-m", "quintet"]


def search(folder: Path, args: argparse.Namespace, best: int) -> list[str]:
    own = ["--trials", args.trials, "--total-steps", args.steps, "--run-dir", folder]
    again = ["--best", best, "--seeds-of-best", SEEDS, "--report.progress", "false"]
    return [*QUINTET, "sweep", "ppo", "--env", ENV, *map(str, [*own, *again])]


def whole(folder: Path, args: argparse.Namespace) -> float:
    """The trials without kills; returns their seconds."""
    if folder.exists():
        shutil.rmtree(folder)
    begin = time.monotonic()
    subprocess.run([*WITH_PARENT, *search(folder, args, 0)], check=True)
    return time.monotonic() - begin


def killed(
    folder: Path, args: argparse.Namespace, usual_s: float, kills: int, tell: Callable[[int], None]
) -> int:
    """The same with kills, spread over the time that it takes; returns their number.

    kills: those before; tell: receives the number after each.
    """
    with open(folder.parent / "killed.log", "a") as log:
        while True:
            share = random.Random(f"{args.seed} {kills}").uniform(0.2, 1.8)
            patience = share * usual_s / (args.kills + 1)
            command = [*WITH_PARENT, *search(folder, args, 0)]
            begun = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                status = begun.wait(patience if kills < args.kills else None)
            except subprocess.TimeoutExpired:
                parent = psutil.Process(begun.pid)
                for each in [parent, *parent.children(recursive=True)]:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
                begun.wait()
                tell(kills := kills + 1)
                continue
            if status:
                sys.exit(f"the killed sweep ended with status {status}: {log.name}")
            return kills


def trials(folder: Path) -> list[dict[str, str]]:
    with open(folder / "trials.csv", newline="") as table:
        return list(csv.DictReader(table))


def evaluated(run: Path) -> dict[str, Any]:
    """A run's policy in 100 greedy episodes."""
    words = [*QUINTET, "eval", str(run), "--episodes", "100", "--json"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder: Path = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / "record.json"
    held: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}

    def keep(name: str, value: Any) -> None:
        held[name] = value
        write_whole(record, json.dumps(held, indent=1) + "\n")
        print(name, json.dumps(value), flush=True)

    if "whole_s" not in held:
        keep("whole_s", round(whole(folder / "whole", args)))
    if "kills" not in held:
        before = held.get("kills_so_far", 0)
        kept = partial(keep, "kills_so_far")
        keep("kills", killed(folder / "killed", args, held["whole_s"], before, kept))
    first, second = (trials(folder / name) for name in ("whole", "killed"))
    unlike = [a["trial"] for a, b in zip(first, second, strict=True) if a != b]
    keep("trials", len(first))
    keep("trials_that_differ", unlike)
    # The best on fresh seeds.
    subprocess.run([*WITH_PARENT, *search(folder / "whole", args, 3)], check=True)
    for seed in range(1, SEEDS + 1):
        run = folder / "preset" / f"s{seed}"
        own = ["--total-steps", str(args.steps), "--seed", str(seed), "--run-dir", str(run)]
        words = [*QUINTET, "train", "ppo", "--env", ENV, *own, "--report.progress", "false"]
        subprocess.run([*WITH_PARENT, *words], check=True, stdout=subprocess.DEVNULL)
    runs = {"preset": folder / "preset"}
    runs |= {each.name: each for each in sorted((folder / "whole" / "fresh").iterdir())}
    for name, place in runs.items():
        scores = [evaluated(place / f"s{seed}")["return_mean"] for seed in range(1, SEEDS + 1)]
        keep(name, {"mean": mean(scores), "of each seed": scores})


if __name__ == "__main__":
    main()
