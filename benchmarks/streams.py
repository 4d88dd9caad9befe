"""Cost of an env_step of PPO on CartPole by the number of streams, as a picture.

    python benchmarks/streams.py [--draw]

Every size trains for a few seconds as cartpole-ppo does: 32 steps per stream and batch, 4 passes in
minibatches of 256 rows, the whole batch of the smallest size.  Microseconds go to
benchmarks/results/speed-streams.json, the picture to docs/images/streams.png.
"""

import argparse
import json
import os
from pathlib import Path

from fixed_work import measure
from fixed_work.work import Work
from fixed_work.workloads import read
from matplotlib.figure import Figure

from quintet.options.layers import Layer

ROOT = Path(__file__).parent.parent
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
PHASES = ("stepping", "acting", "learning")


def sized(streams: int) -> Work:
    """cartpole-ppo with so many streams."""
    work = read("cartpole-ppo")
    return work.model_copy(
        update={
            "num_envs": streams,
            "warmup_seconds": 1.0,
            "seconds": 4.0,
        }
    )


def measured() -> dict[int, dict[str, float]]:
    """Microseconds per env_step by the number of streams, phase by phase."""
    compiled = Layer("this script", {"runtime.compile": "on"})
    costs = {}
    for streams in SIZES:
        _, _, record = measure.train(sized(streams), compiled)
        costs[streams] = record["us_per_env_step"]
        total = sum(costs[streams].values())
        print(f"{streams:5} streams: {total:6.2f} us per env_step", flush=True)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", action="store_true", help="only draw what was measured before")
    args = parser.parse_args()
    out = ROOT / "benchmarks" / "results" / "speed-streams.json"
    if not args.draw:
        out.write_text(json.dumps({"us": measured(), "load": os.getloadavg()}, indent=1) + "\n")
    costs = {int(streams): us for streams, us in json.loads(out.read_text())["us"].items()}

    figure = Figure(figsize=(6.0, 3.4), dpi=110, layout="constrained")
    axes = figure.subplots()
    styles = zip(PHASES, ("o--", "s-.", "^:"), strict=True)
    axes.plot(SIZES, [sum(costs[n].values()) for n in SIZES], "k-", lw=2, label="all")
    for phase, style in styles:
        axes.plot(SIZES, [costs[n][phase] for n in SIZES], style, color="0.35", label=phase)
    axes.set_xscale("log", base=2)
    axes.set_xticks(SIZES, [f"{n:,}" for n in SIZES])
    axes.set_yscale("log")
    ticks = (0.5, 1, 2, 5, 10, 20, 40)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("streams")
    axes.set_ylabel("us per env_step")
    axes.grid(True, color="0.92")
    axes.legend(frameon=False)
    axes.set_title("PPO on CartPole-v1", loc="left", fontsize=10, fontweight="bold")
    figure.savefig(ROOT / "docs" / "images" / "streams.png")


if __name__ == "__main__":
    main()
