"""Writes the tables in docs/benchmarks.md and README.md from the records in benchmarks/results.

python benchmarks/tables.py            rewrite them
python benchmarks/tables.py --check    exit with 1 if they are not what the records say
"""

import json
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal, NamedTuple

ROOT = Path(__file__).parent.parent
DOCUMENTS = (ROOT / "docs" / "benchmarks.md", ROOT / "README.md")


class Goal(NamedTuple):
    """What a record is held against; None: nothing is asked.

    beside: in whose panel it is drawn, where it has none of its own.
    score: what of a record counts; a rate lies between 0 and 1.
    """

    must: float | None
    aim: float | None
    reference: str = ""
    title: str = ""
    beside: str = ""
    score: Literal["return_mean", "success_rate"] = "return_mean"


class Ratio(NamedTuple):
    """What a speed ratio, and the share of the limit, are held against."""

    must: float
    aim: float | None
    of_limit: float


TOY = "quintet.envs.toy.cartpole_without_velocities"
RED_BALL, LOCAL = "BabyAI-GoToRedBall-v0, success", "BabyAI-GoToLocal-v0, success"
LOCAL_RECORD = "BabyAI-GoToLocal-v0-10M"
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
    "InvertedPendulum-v4": Goal(950, None, ""),
    "BipedalWalker-v3": Goal(250, None, ""),
    "Pong-v5": Goal(17, 19, "asked: 17 at 3M, 19 at 5M"),
    "Pong-v5-fp32": Goal(None, None, "", "the same in float32, ended early", beside="Pong-v5"),
    "Breakout-v5": Goal(None, None, ""),
}
IMPALA = {
    "CartPole-v1": Goal(475, 495),
    TOY: Goal(450, 490, title="CartPole-v1 without velocities, LSTM"),
    "Pong-v5": Goal(18, 19.5),
    "HalfCheetah-v4": Goal(None, None),
    "BabyAI-GoToRedBall-v0-2M": Goal(0.85, None, title=RED_BALL, score="success_rate"),
    "BabyAI-GoToRedBall-v0-6M": Goal(0.95, None, title=RED_BALL, score="success_rate"),
    LOCAL_RECORD: Goal(0.7, None, title=LOCAL, score="success_rate"),
    f"{LOCAL_RECORD}-blind": Goal(
        None, None, "", "the same, blind to the mission", LOCAL_RECORD, "success_rate"
    ),
}
"""By the name of the record."""

SPEED_PPO = {
    "cartpole-ppo": Ratio(2.5, 3.5, 0.75),
    "halfcheetah-ppo": Ratio(2.3, 3.0, 0.75),
    "pong-ppo": Ratio(2.2, 2.6, 0.8),
    "pong-ppo-fp32": Ratio(1.5, None, 0.8),
}
SPEED_IMPALA = {
    "cartpole-appo": Ratio(5.0, 7.0, 0.75),
    "pong-appo": Ratio(2.3, 2.8, 0.75),
    "pong-appo-fp32": Ratio(1.6, None, 0.75),
}
"""By the name of the record of `compare`."""

SAMPLING = {
    "Pong-v5 of bare": ("Pong-v5, of EnvPool alone", 0.9),
    "HalfCheetah-v4 of bare": ("HalfCheetah-v4, of EnvPool alone", 0.9),
    "python CartPole of bare": ("CartPole-v1 in Python, of a bare loop", 0.7),
    "gain of workers of that of bare processes": (
        "what a second worker gains, of what a second bare process gains",
        0.9,
    ),
}
"""Ratios of sampling.py: what they are, and what is asked of them."""

SOAKS = ("pong-appo",)
"""Workloads of soak.py."""

PEERS = {"sb3": "Stable-Baselines3", "sample_factory": "Sample Factory"}

THRESHOLDS = ("CartPole", "LunarLander", "HalfCheetah", "Pong")
"""Tasks of time_to_threshold.py."""


def result(name: str) -> dict[str, Any] | None:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def load(algo: str, name: str) -> dict[str, Any] | None:
    return result(f"{algo}-{name}")


def learning_table(algo: str, goals: dict[str, Goal]) -> str:
    lines = [
        "| environment (backend) | env_steps | seeds 1, 2, 3 | mean | must / aim | met "
        "| reference |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, goal in goals.items():
        title, record = goal.title or name, load(algo, name)
        asked = asked_of(goal.must, goal.aim)
        if record is None:
            lines.append(f"| {title} | | not yet recorded | | {asked} | | {goal.reference} |")
            continue
        runs = record["runs"]
        scores = [run[goal.score] for run in runs]
        each = ", ".join(told(run, goal.score) for run in runs)
        each += "" if len(runs) > 1 else f" (seed {runs[0]['seed']} only)"
        met = met_by(mean(scores), goal.must, goal.aim)
        steps = record.get("until") or record["config"]["total_env_steps"]
        backend = record["config"]["env.backend"]
        lines.append(
            f"| {title} ({backend}) | {steps:,} | {each} | **{rounded(mean(scores), goal.score)}** "
            f"| {asked} | {met} | {goal.reference} |"
        )
    return "\n".join(lines)


def rounded(value: float, score: str) -> str:
    return f"{value:.2f}" if score == "success_rate" else f"{value:.1f}"


def told(run: dict[str, Any], score: str) -> str:
    """One seed's; of returns with how far the episodes lie apart."""
    value = rounded(run[score], score)
    return value if score == "success_rate" else f"{value} ± {run['return_std']:.1f}"


def asked_of(must: float | None, aim: float | None) -> str:
    return " / ".join(str(x) for x in (must, aim) if x is not None)


def met_by(score: float, must: float | None, aim: float | None) -> str:
    if must is aim is None:
        return ""
    if aim is not None and score >= aim:
        return "aim"
    return "must" if must is not None and score >= must else "no"


def speed_table(peer: str, goals: dict[str, Ratio]) -> str:
    """Of what `compare --record` appended: the newest comparison of each workload."""
    lines = [
        f"| workload | quintet | {PEERS[peer]} | ratio | must / aim | met | of its limit "
        "| asked | precision | compiled in | commit |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, goal in goals.items():
        path = ROOT / "benchmarks" / "results" / f"speed-{name}.jsonl"
        if not path.exists():
            lines.append(f"| {name} | not yet recorded |" + " |" * 9)
            continue
        runs = json.loads(path.read_text().splitlines()[-1])["runs"]
        ours, theirs = runs["quintet"], runs[peer]
        speeds = [[run["env_steps_per_s"] for run in side] for side in (ours, theirs)]
        ratios = [a / b for a, b in zip(*speeds, strict=True)]
        limit = median(run["env_steps_per_s"] / run["limit_env_steps_per_s"] for run in ours)
        commit, _, dirty = (ours[-1]["commit"] or "").partition("-")
        lines.append(
            f"| {name} | {median(speeds[0]):,.0f} | {median(speeds[1]):,.0f} "
            f"| **{median(ratios):.2f}x** ({min(ratios):.2f} to {max(ratios):.2f}) "
            f"| {asked_of(goal.must, goal.aim)} | {met_by(median(ratios), goal.must, goal.aim)} "
            f"| {limit:.2f} | {goal.of_limit} | {ours[-1]['precision']} "
            f"| {max(run['compile_s'] for run in ours):.0f} s | {commit[:7]}{dirty and '-dirty'} |"
        )
    return "\n".join(lines)


def threshold_table() -> str:
    """Of what `time_to_threshold.py` recorded."""
    lines = [
        "| task | return | quintet: seconds (env_steps) | Stable-Baselines3: seconds (env_steps) "
        "| ratio of medians | commit |",
        "|---|---|---|---|---|---|",
    ]
    records = result("time-to-threshold") or {}
    for name in THRESHOLDS:
        if name not in records:
            lines.append(f"| {name} | not yet recorded |" + " |" * 4)
            continue
        record = records[name]
        sides = (record["quintet"], record["sb3"])
        cells = [", ".join(map(until, side)) for side in sides]
        ratio = ""
        if all(run["reached"] for run in record["quintet"]):
            ours, theirs = (median(run["seconds"] for run in side) for side in sides)
            # What a run took that was ended before it got there is less than it would have taken.
            sign = "" if all(run["reached"] for run in record["sb3"]) else "> "
            ratio = f"**{sign}{theirs / ours:.1f}x**"
        lines.append(
            f"| {name} | {record['threshold']:,} | {cells[0]} | {cells[1]} | {ratio} "
            f"| {record['commit']} |"
        )
    return "\n".join(lines)


def until(run: dict[str, Any]) -> str:
    """One run's seconds and env_steps until the return was reached."""
    took = f"{run['seconds']:,.0f} ({run['env_steps']:,})"
    return took if run["reached"] else f"not within {took}"


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


def sampling_table() -> str:
    """Of what `sampling.py` recorded."""
    lines = ["| sampling alone | measured | asked | met |", "|---|---|---|---|"]
    record = result("sampling")
    for name, (title, asked) in SAMPLING.items():
        if record is None:
            lines.append(f"| {title} | not yet recorded | {asked} | |")
            continue
        ratio = record["ratios"][name]
        met = "yes" if ratio >= asked else "no"
        lines.append(f"| {title} | **{ratio:.3f}** | {asked} | {met} |")
    return "\n".join(lines)


def sampling_rates_table() -> str:
    """Of what `sampling.py` recorded."""
    record = result("sampling")
    lines = ["| rows/s | median | all |", "|---|---|---|"]
    for name, rates in (record or {"rates": {}})["rates"].items():
        each = ", ".join(f"{rate:,.0f}" for rate in rates)
        lines.append(f"| {name} | {median(rates):,.0f} | {each} |")
    return "\n".join(lines)


def replay_table() -> str:
    """Of what `replay.py` recorded."""
    lines = [
        "| microseconds | a draw | plain | ratio | a store | plain | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, times in (result("replay") or {"us": {}})["us"].items():
        if "draw" not in times:
            continue
        cells = [name]
        for what in ("draw", "store"):
            ours, plain = times[what], times[f"plain {what}"]
            cells += [f"{ours:.0f}", f"{plain:.0f}", f"**{ours / plain:.2f}**"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replay_step_table() -> str:
    """Of what `replay.py` recorded."""
    lines = ["| microseconds per step | with replay | without |", "|---|---|---|"]
    for name, times in (result("replay") or {"us": {}})["us"].items():
        if "step" in times:
            step, without = times["step"], times["step without replay"]
            lines.append(f"| {name} | {step:.0f} | {without:.0f} |")
    return "\n".join(lines)


def soak_table() -> str:
    """Of what `soak.py` recorded."""
    lines = [
        "| workload | minutes | env_steps/s of the bench | of the soak | share | of its last half "
        "| most MB per minute of a process | asked | met |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in SOAKS:
        record = result(f"soak-{name}")
        if record is None:
            lines.append(f"| {name} | not yet recorded |" + " |" * 7)
            continue
        lines.append(
            f"| {name} | {record['minutes'][-1]['minute']:.0f} | "
            f"{record['bench_env_steps_per_s']:,} | {record['env_steps_per_s']:,} "
            f"| **{record['of_bench']:.2f}** | {record['last_half_of_bench']:.2f} "
            f"| **{max(record['mb_per_minute'].values()):.2f}** | 0.9, 1 MB "
            f"| {'yes' if record['met'] else 'no'} |"
        )
    return "\n".join(lines)


TABLES = {
    "ppo-learning": lambda: learning_table("ppo", PPO),
    "ppo-cost": lambda: cost_table("ppo", PPO),
    "impala-learning": lambda: learning_table("impala", IMPALA),
    "impala-cost": lambda: cost_table("impala", IMPALA),
    "ppo-speed": lambda: speed_table("sb3", SPEED_PPO),
    "impala-speed": lambda: speed_table("sample_factory", SPEED_IMPALA),
    "ppo-threshold": threshold_table,
    "sampling": sampling_table,
    "sampling-rates": sampling_rates_table,
    "replay": replay_table,
    "replay-step": replay_step_table,
    "soak": soak_table,
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
