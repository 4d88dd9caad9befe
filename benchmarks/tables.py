"""Writes the tables in README.md, docs and benchmarks/*.md from the records in benchmarks/results.

python benchmarks/tables.py            rewrite them
python benchmarks/tables.py --check    exit with 1 if they are not what the records say

Rows whose record is stale or of other seeds are marked (`records`).
"""

import json
import statistics
import sys
from collections.abc import Iterable
from statistics import mean, median
from typing import Any, NamedTuple

import gpu_tables
import race
import suite_tables
from efficiency import median_of
from records import ROOT, Difference, notes, record_of, standing, write_whole
from rows import ROWS, Row

from quintet.envs import envpool_library

DOCUMENTS = (
    ROOT / "docs" / "benchmarks.md",
    ROOT / "benchmarks" / "tuning.md",
    ROOT / "benchmarks" / "parts.md",
    ROOT / "benchmarks" / "gpu.md",
    ROOT / "README.md",
)


HEADLINES = (
    *("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3", "HalfCheetah-v4"),
    *("Hopper-v4", "Walker2d-v4", "Pong-v5", "Breakout-v5"),
)
"""Environments of the README's table."""

HEADLINE_LEARNERS = ("ppo", "impala", "appo", "ddpg", "acer")


class Ratio(NamedTuple):
    """Goals of a speed ratio and of the fraction of the limit."""

    must: float
    of_limit: float


SPEED_PPO = {
    "cartpole-ppo": Ratio(2.5, 0.75),
    "halfcheetah-ppo": Ratio(2.3, 0.75),
    "pong-ppo": Ratio(2.2, 0.8),
    "pong-ppo-fp32": Ratio(1.5, 0.8),
}
SPEED_APPO = {
    "cartpole-appo": Ratio(5.0, 0.75),
    "pong-appo": Ratio(2.3, 0.75),
    "pong-appo-fp32": Ratio(1.6, 0.75),
}
SPEED_DDPG = {
    "halfcheetah-ddpg": Ratio(1.45, 0.75),
    "halfcheetah-ddpg-bf16": Ratio(2.0, 0.75),
}
"""Keys are names of records of `compare`."""

SPEED_ACER = ("cartpole-acer", "pong-acer")
OF_LIMIT_ACER = 0.75
"""Fraction of the limit that was asked for."""

SHARE_OF_TRUST_REGION = 0.15
"""Largest fraction of an update."""

SAMPLING = {
    "Pong-v5 of bare": ("Pong-v5, of EnvPool alone", 0.9),
    "HalfCheetah-v4 of bare": ("HalfCheetah-v4, of EnvPool alone", 0.9),
    "python CartPole of bare": ("CartPole-v1 in Python, of a bare loop", 0.7),
    "gain of workers of that of bare processes": (
        "what a second worker gains, of what a second bare process gains",
        0.9,
    ),
}
"""Ratios of sampling.py: their titles, and the least value that was asked for."""

GAMES = {
    "self_play_half_sampled": "one policy, sampling, against its checkpoint at half of the budget",
    "self_play_half": "the same, greedily",
    "self_play_random": "one policy, against random actions",
    "policy_0_random": "the first of two policies, against random actions",
    "policy_1_random": "the second of two policies, against random actions",
}
"""Matches of games.py."""

SOAKS = ("pong-appo",)
"""Workloads of soak.py."""

PEERS = {"sb3": "Stable-Baselines3", "sample_factory": "Sample Factory"}

THRESHOLDS = ("CartPole", "LunarLander", "HalfCheetah", "Pong", "HalfCheetah-DDPG")
"""Tasks of time_to_threshold.py."""


def result(name: str) -> dict[str, Any] | None:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def learning_table(algo: str) -> str:
    lines = [
        "| environment | env_steps | seeds | of each seed | mean | random | reference |",
        "|---|---|---|---|---|---|---|",
    ]
    rows, short, unrecorded = [row for row in ROWS if row.algo == algo], [], []
    for row in rows:
        record = record_of(row)
        if record is None:
            unrecorded.append(row.name.removeprefix(f"{algo}-"))
            continue
        runs = record["runs"]
        if not runs:
            each = [f"seed {x['seed']} failed: {x['said']}" for x in record["failed"]]
            lines.append(f"| {row.told} | | | {'; '.join(each)} | | | {row.reference} |")
            continue
        score, backend = mean(run[row.score] for run in runs), record["config"]["env.backend"]
        chance = rounded(record["random"][row.score], row.score) if "random" in record else ""
        cells = (
            row.told + ("" if backend == "envpool" else f" ({backend})"),
            f"{record.get('until') or record['config']['total_env_steps']:,}",
            " ".join([listed(run["seed"] for run in runs), *notes(row)]),
            ", ".join(told(run, row.score) for run in runs),
            f"**{rounded(score, row.score)}**",
            chance,
            row.reference,
        )
        lines.append(f"| {' | '.join(cells)} |")
        if row.must is not None and score < row.must:
            short.append(f"{row.told} ({row.must})")
    below = [f"Not recorded yet: {', '.join(unrecorded)}.", ""] if unrecorded else []
    return "\n".join([*lines, "", *below, *footnotes(rows, short)])


def headline_table() -> str:
    """One line for each environment: every learner's mean score and its budget."""
    learners = HEADLINE_LEARNERS
    lines = [f"| | {' | '.join(algo.upper() for algo in learners)} | random |"]
    lines.append("|---|" + "---|" * (len(learners) + 1))
    for env in HEADLINES:
        cells, chance = {}, ""
        for row in ROWS:
            record = record_of(row)
            if row.env != env or row.title or row.algo in cells or row.algo not in learners:
                continue
            if record is None or not record["runs"]:
                continue
            score = mean(run[row.score] for run in record["runs"])
            budget = record["config"]["total_env_steps"] / 1e6
            few = "*" if len(record["runs"]) < 3 else ""
            few += "†" if {"¹", "²", "³"} & {*notes(row)} else ""
            cells[row.algo] = f"{score:,.0f}{few} ({budget:g}M)"
            if "random" in record:
                chance = f"{record['random'][row.score]:,.0f}"
        told = (env, *(cells.get(algo, "") for algo in learners), chance)
        lines.append(f"| {' | '.join(told)} |")
    return "\n".join(lines)


def footnotes(rows: list[Row], short: list[str]) -> list[str]:
    """Explanations of the marks next to the seeds, as far as the rows have them, and the rows whose
    score is below the one that was asked for.
    """
    used = {sign for row in rows for sign in notes(row)}
    lines = [f"Below the score that was asked for: {', '.join(short)}."] if short else []
    if "¹" in used:
        by_seeds: dict[tuple[int, ...], list[str]] = {}
        for row in rows:
            if "¹" in notes(row):
                by_seeds.setdefault(row.seeds, []).append(row.told)
        each = [f"{listed(seeds)}: {', '.join(unique(of))}" for seeds, of in by_seeds.items()]
        lines.append(f"¹ Not the seeds that the row is to be reported on. {'; '.join(each)}.")
    if "²" in used:
        lines.append(
            "² A look at scores of these seeds came before the last change of the row's preset."
        )
    if "³" in used:
        by_change: dict[str, list[str]] = {}
        for row in rows:
            if "³" in notes(row):
                by_change.setdefault(changes(row), []).append(row.told)
        each = [f"{change}: {', '.join(of)}" for change, of in by_change.items()]
        lines.append(f"³ Stale: the same command has another configuration. {'; '.join(each)}.")
    if "⁴" in used:
        each = [f"{row.told}: {listed(row.seen)}" for row in rows if "⁴" in notes(row)]
        lines.append(
            f"⁴ The preset was changed after other seeds had been seen. {'; '.join(each)}."
        )
    # A line break in Markdown that no editor strips.
    return [f"{line}<br>" for line in lines[:-1]] + lines[-1:]


def changes(row: Row) -> str:
    def of(difference: Difference) -> str:
        return f"`{difference.option}` is {difference.today}, recorded {difference.recorded}"

    return ", ".join(of(each) for each in standing(row).differences)


def listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))


def rounded(value: float, score: str) -> str:
    return f"{value:.2f}" if score == "success_rate" else f"{value:.1f}"


def told(run: dict[str, Any], score: str) -> str:
    """Score of one seed."""
    return rounded(run[score], score)


def speed_table(peer: str, goals: dict[str, Ratio]) -> str:
    """Newest comparison of each workload, from the records of `compare --record`."""
    lines = [
        f"| workload | quintet | {PEERS[peer]} | ratio | of its limit | precision | compiled in "
        "| commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    short = []
    for name, goal in goals.items():
        path = ROOT / "benchmarks" / "results" / f"speed-{name}.jsonl"
        if not path.exists():
            lines.append(f"| {name} | not yet recorded |" + " |" * 6)
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
            f"| {limit:.2f} | {ours[-1]['precision']} "
            f"| {max(run['compile_s'] for run in ours):.0f} s | {commit[:7]}{dirty and '-dirty'} |"
        )
        if median(ratios) < goal.must:
            short.append(f"{name} ({goal.must}x)")
        if limit < goal.of_limit:
            short.append(f"{name} ({goal.of_limit} of its limit)")
    return "\n".join([*lines, *below(short)])


def below(short: list[str]) -> list[str]:
    """The paragraph that names what is below its goal."""
    return ["", f"Below what was asked for: {', '.join(short)}."] if short else []


def limit_table(names: Iterable[str], goal: float, newest: int = 3) -> str:
    """Newest runs of ``python benchmarks/speed.py WORKLOAD --json``, from one line per run."""
    lines = [
        "| workload | env_steps/s | of its limit | precision | compiled in | commit |",
        "|---|---|---|---|---|---|",
    ]
    short = []
    for name in names:
        path = ROOT / "benchmarks" / "results" / f"speed-{name}.jsonl"
        if not path.exists():
            lines.append(f"| {name} | not yet recorded |" + " |" * 4)
            continue
        runs = [json.loads(line) for line in path.read_text().splitlines()[-newest:]]
        shares = [run["env_steps_per_s"] / run["limit_env_steps_per_s"] for run in runs]
        share, commit = median(shares), unique(run["commit"] for run in runs)
        lines.append(
            f"| {name} | {median(run['env_steps_per_s'] for run in runs):,.0f} "
            f"| **{share:.2f}** ({min(shares):.2f} to {max(shares):.2f}) "
            f"| {', '.join(unique(run['precision'] for run in runs))} "
            f"| {max(run['compile_s'] for run in runs):.0f} s | {', '.join(commit)} |"
        )
        if share < goal:
            short.append(f"{name} ({goal} of its limit)")
    return "\n".join([*lines, *below(short)])


def acer_step_table() -> str:
    """Records of `acer_step.py`."""
    lines = [
        "| microseconds per update | quintet | bare | without trust region | bare "
        "| share of the trust region | bare | asked | met |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    asked = SHARE_OF_TRUST_REGION
    for name, us in (result("acer-step") or {"us": {}})["us"].items():
        without = " without trust region"
        times = [us["quintet"], us["bare"], us["quintet" + without], us["bare" + without]]
        shares = [us[f"share of the trust region, {side}"] for side in ("quintet", "bare")]
        lines.append(
            f"| {name} | {' | '.join(f'{x:,.0f}' for x in times)} | **{shares[0]:.0%}** "
            f"| {shares[1]:.0%} | {asked:.0%} | {'yes' if shares[0] < asked else 'no'} |"
        )
    return "\n".join(lines)


def threshold_table() -> str:
    """Records of `time_to_threshold.py`."""
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
            # A run that was ended before it reached the return would have taken longer.
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


def efficiency_table() -> str:
    """Records of `efficiency.py`; a dash is a run that did not reach the return."""
    found = result("efficiency")
    lines = [
        "| environment | variant | env_steps to the return, by seed | median | seconds, median |",
        "|---|---|---|---|---|",
    ]
    if found is None:
        return "\n".join([*lines, "| not yet recorded | | | | |"])
    for env, variants in found["tasks"].items():
        for name, runs in variants.items():
            reached = [run["reached"] for run in runs]
            each = ", ".join(f"{x['env_steps']:,.0f}" if x else "-" for x in reached)
            middle = [median_of(runs, axis) for axis in ("env_steps", "wall_s")]
            steps, seconds = (f"{x:,.0f}" if x < float("inf") else "-" for x in middle)
            lines.append(f"| {env} | {name} | {each} | **{steps}** | {seconds} |")
    runs = [run for each in found["tasks"].values() for runs in each.values() for run in runs]
    commits = ", ".join(unique(run["commit"] for run in runs))
    return "\n".join([*lines, "", f"Runs side by side: {found['jobs']}. Commit: {commits}."])


def minatar_table() -> str:
    """Records of `minatar_games.py`."""
    found = result("minatar") or {}
    lines = [
        "| MinAtar | env_steps | seeds | of each seed | mean | random | commit |",
        "|---|---|---|---|---|---|---|",
    ]
    for game, row in found.items():
        scores = [seed["return_mean"] for seed in row["seeds"].values()]
        each = ", ".join(f"{x:.1f}" for x in scores)
        lines.append(
            f"| {game}-v1 | {row['env_steps']:,} | {', '.join(row['seeds'])} | {each} "
            f"| **{mean(scores):.1f}** | {row['random']:.1f} | {row['commit']} |"
        )
    return "\n".join(lines)


def cost_table(algo: str) -> str:
    lines = [
        "| environment | seconds of training per seed | seeds side by side | cores "
        "| entropy at evaluation, nats | commit |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        record = record_of(row)
        if row.algo != algo or record is None:
            continue
        runs = [{**record, **run} for run in record["runs"]]  # a seed's own facts come first
        facts = [" to ".join(unique(run[name] for run in runs)) for name in ("jobs", "cores")]
        entropies = [f"{run['entropy']:.2f}" for run in runs if "entropy" in run]
        cells = (
            row.told,
            ", ".join(f"{run['train_s']:.0f}" for run in runs),
            *facts,
            ", ".join(entropies),
            ", ".join(unique(run["commit"] for run in runs)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def unique(values: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(map(str, values)))


def sampling_table() -> str:
    """Records of `sampling.py`."""
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
    """Records of `sampling.py`."""
    record = result("sampling")
    lines = ["| rows/s | median | all |", "|---|---|---|"]
    for name, rates in (record or {"rates": {}})["rates"].items():
        each = ", ".join(f"{rate:,.0f}" for rate in rates)
        lines.append(f"| {name} | {median(rates):,.0f} | {each} |")
    return "\n".join(lines)


def replay_table() -> str:
    """Records of `replay.py`."""
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
    """Records of `replay.py`."""
    lines = ["| microseconds per step | with replay | without |", "|---|---|---|"]
    for name, times in (result("replay") or {"us": {}})["us"].items():
        if "step" in times:
            step, without = times["step"], times["step without replay"]
            lines.append(f"| {name} | {step:.0f} | {without:.0f} |")
    return "\n".join(lines)


def soak_table() -> str:
    """Records of `soak.py`."""
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


def steadiness_table() -> str:
    """Ends of runs with PPO's preset for CartPole-v1."""
    lines = [
        "| CartPole-v1 | seeds | runs that end at 490 or more | asked | the least end "
        "| env_steps to 475: median, least, most | not within the budget | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = result("steadiness")
    for kind in ("eager", "compiled") if found else ():
        assert found is not None
        runs = found[kind]
        ends = [run["return_mean"] for run in runs]
        steps = sorted(x for run in runs if (x := run["env_steps_to_475"]) is not None)
        lines.append(
            f"| {kind} | {runs[0]['seed']} to {runs[-1]['seed']} "
            f"| {sum(end >= 490 for end in ends)} of {len(ends)} | 29 of 30 | {min(ends):.1f} "
            f"| {statistics.median(steps):,.0f}, {steps[0]:,}, {steps[-1]:,} "
            f"| {len(runs) - len(steps)} | {found['commit']} |"
        )
    return "\n".join(lines)


def games_table() -> str:
    """Games that the policies of each seed have won, drawn and lost."""
    lines = [
        "| who plays | env_steps of a policy | seeds | games won, drawn, lost | mean return "
        "| commit |",
        "|---|---|---|---|---|---|",
    ]
    for steps, found in sorted((result("games") or {}).items(), key=lambda item: int(item[0])):
        numbers = ", ".join(str(seed["seed"]) for seed in found["seeds"])
        for name, what in GAMES.items():
            each = [seed[name] for seed in found["seeds"]]
            counts = "; ".join(f"{x['won']}, {x['drawn']}, {x['lost']}" for x in each)
            returns = ", ".join(f"{x['return_mean']:.1f}" for x in each)
            lines.append(
                f"| {what} | {int(steps):,} | {numbers} | {counts} | {returns} | "
                f"{found['commit']} |"
            )
    return "\n".join(lines)


def threads_table() -> str:
    """env_steps per second with 1 and 2 threads, under load."""
    found = result("threads") or {}
    names = {"small": "64 × 64 (CartPole-v1, PPO; quintet takes 1 thread)"}
    names |= {"wide": "256 × 256 (HalfCheetah-v4, DDPG)"}
    names |= {"grid": "grids (BabyAI-GoToRedBall-v0, PPO)", "picture": "pictures (Pong-v5, PPO)"}
    lines = [
        "| network | alone | one busy process | two busy processes | a run like it |",
        "|---|---|---|---|---|",
    ]
    for name, told in names.items():
        both = [
            [found.get(f"{name}, {threads}, {beside}, 4000") for threads in (1, 2)]
            for beside in ("nothing", "one", "two", "run")
        ]
        cells = [f"{one:,.0f}; {two:,.0f}" if None not in (one, two) else "" for one, two in both]
        lines.append(f"| {told} | {' | '.join(cells)} |")
    return "\n".join(lines)


def stepping_table() -> str:
    """Rows of environments in Python, by one process and by several."""
    found = result("stepping") or {"rows": []}
    lines = [
        "| a step | streams | one process, env_steps/s | by itself | processes | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        one, several = row["alone_env_steps_per_s"], row["several_env_steps_per_s"]
        lines.append(
            f"| {row['step']} | {row['streams']} | {one:,.0f} | {several:,.0f} | "
            f"{row['processes']} | {several / one:.1f} |"
        )
    return "\n".join(lines)


TABLES = {
    "headline": headline_table,
    "suite-bars": suite_tables.bars_table,
    "suite-peer": suite_tables.peer_table,
    "ppo-learning": lambda: learning_table("ppo"),
    "minatar": minatar_table,
    "ppo-cost": lambda: cost_table("ppo"),
    "impala-learning": lambda: learning_table("impala"),
    "impala-cost": lambda: cost_table("impala"),
    "appo-learning": lambda: learning_table("appo"),
    "appo-cost": lambda: cost_table("appo"),
    "ddpg-learning": lambda: learning_table("ddpg"),
    "ddpg-cost": lambda: cost_table("ddpg"),
    "acer-learning": lambda: learning_table("acer"),
    "acer-cost": lambda: cost_table("acer"),
    "ppo-speed": lambda: speed_table("sb3", SPEED_PPO),
    "ddpg-speed": lambda: speed_table("sb3", SPEED_DDPG),
    "acer-speed": lambda: limit_table(SPEED_ACER, OF_LIMIT_ACER),
    "acer-step": acer_step_table,
    "acer-efficiency": efficiency_table,
    "appo-speed": lambda: speed_table("sample_factory", SPEED_APPO),
    "ppo-threshold": threshold_table,
    "sampling": sampling_table,
    "sampling-rates": sampling_rates_table,
    "replay": replay_table,
    "replay-step": replay_step_table,
    "soak": soak_table,
    "coin-race": games_table,
    "steadiness": steadiness_table,
    "threads": threads_table,
    "stepping": stepping_table,
    "race": lambda: race.told(result("race")),
    "gpu": lambda: gpu_tables.told(result("gpu")),
}


def rendered(text: str) -> str:
    """The document with every ``<!-- table NAME -->`` block written again."""
    for name, table in TABLES.items():
        begin, end = f"<!-- table {name} -->", f"<!-- end {name} -->"
        if begin in text:
            head, rest = text.split(begin)
            text = f"{head}{begin}\n{table()}\n{end}{rest.split(end)[1]}"
    return text


def main() -> int:
    if not envpool_library.is_installed():
        print("tables.py requires envpool, whose environments the records are of; install it")
        return 1
    texts = {path: path.read_text() for path in DOCUMENTS}
    stale = {path: new for path, text in texts.items() if (new := rendered(text)) != text}
    for path, text in stale.items():
        if "--check" in sys.argv:
            print(f"{path} is not what records and presets say; run: python benchmarks/tables.py")
        else:
            write_whole(path, text)
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
