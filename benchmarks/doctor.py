"""How often `quintet doctor` names a planted fault, and how often it raises a false alarm.

    python benchmarks/doctor.py PART [--most 20] [--shard 0/2]
    python benchmarks/doctor.py summary|remedies

Parts are environments, sound, strangers, settings and healthy. Faults of environments are planted
in the tasks of doctor_faults.py, faults of settings by options beside three harmless ones. Sound
environments are these tasks and SOUND, of which most need a package: minatar, minigrid,
highway-env, gym-anytrading, ale-py. A fault is named if one of its findings is the first, or one of
the first three; an alarm is a likely finding in a sound environment or a healthy run. A fault of
settings counts where it does harm: the run ends more than 20% of the healthy run's rise below it.
It is mended if the finding's own command ends within 20%.

Thresholds were chosen on the tasks and seeds of the first half (TUNED); `summary` gives both
halves.  Every case is written to benchmarks/results/doctor.json when it is done, and is skipped
when it is there.
"""

import argparse
import contextlib
import fcntl
import io
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from doctor_faults import FAULTS, TASKS
from doctor_sound import PACKAGED, RULES
from records import write_whole

from quintet.commands.cli import main as quintet
from quintet.doctor import environment
from quintet.doctor.apart import failure
from quintet.errors import QuintetError
from quintet.findings.record import Finding

HERE = Path(__file__).parent
OUT = HERE / "results" / "doctor.json"

PARTS = ("sound", "strangers", "environments", "healthy", "settings")

TUNED = {"CartPole-v1", "Pendulum-v1", "toy:Reach", "toy:Contextual", "MountainCar-v0"}
"""Tasks by which thresholds were chosen; the others only report."""
TUNED_SEEDS = {0}

_SEEN = [
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
    "BipedalWalker-v3",
    "Blackjack-v1",
    "CliffWalking-v1",
    "FrozenLake-v1",
    "Taxi-v3",
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Walker2d-v5",
    "Swimmer-v5",
    "Reacher-v5",
    "InvertedDoublePendulum-v5",
    "ALE/Pong-v5",
    "ALE/Breakout-v5",
    "minatar:MinAtar/Breakout-v1",
    "minatar:MinAtar/Asterix-v1",
    "minatar:MinAtar/SpaceInvaders-v1",
    "minatar:MinAtar/Freeway-v1",
    "minigrid:MiniGrid-DoorKey-5x5-v0",
    "minigrid:MiniGrid-Empty-8x8-v0",
    "minigrid:MiniGrid-MemoryS7-v0",
    "highway_env:highway-fast-v0",
    "highway_env:merge-v0",
    "highway_env:parking-v0",
    "gym_anytrading:stocks-v0",
]
_UNSEEN = [
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "Pusher-v5",
    "FrozenLake8x8-v1",
    "CarRacing-v3",
    "ALE/Qbert-v5",
    "ALE/SpaceInvaders-v5",
    "ALE/Seaquest-v5",
    "minatar:MinAtar/Seaquest-v1",
    "minigrid:MiniGrid-FourRooms-v0",
    "minigrid:MiniGrid-KeyCorridorS3R1-v0",
    "minigrid:MiniGrid-Dynamic-Obstacles-5x5-v0",
    "minigrid:MiniGrid-LavaGapS5-v0",
    "minigrid:MiniGrid-SimpleCrossingS9N1-v0",
    "minigrid:MiniGrid-GoToDoor-5x5-v0",
    "highway_env:roundabout-v0",
    "highway_env:intersection-v0",
    "highway_env:racetrack-v0",
    "gym_anytrading:forex-v0",
]
SOUND = [*_SEEN, *_UNSEEN]
"""Environments that people learn in; thresholds were chosen on the seen ones."""
TUNED |= {*_SEEN}

RUNS: dict[str, list[str]] = {
    # Learner, environment, options of a quick healthy run.
    "ppo CartPole": ["ppo", "--env", "CartPole-v1", "--total-steps", "40000"],
    "ppo Reach": ["ppo", "--env", "doctor_faults:Reach", "--total-steps", "40000"],
    "ppo Track": ["ppo", "--env", "doctor_faults:Track", "--total-steps", "40000"],
    "ppo noV": ["ppo", "--env", "quintet.envs.toy:cartpole_without_velocities", "--total-steps",
        "60000"],
    "ddpg Reach": ["ddpg", "--env", "doctor_faults:Reach", "--total-steps", "6000"],
    "ddpg Pendulum": ["ddpg", "--env", "Pendulum-v1", "--total-steps", "8000"],
}  # fmt: skip
TUNED_RUNS = {"ppo CartPole", "ppo Reach", "ddpg Reach"}

SETTINGS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    # Learner, options, and the findings or subjects that name it.
    "rate_high": ("ppo", {"learning-rate": "0.1"}, ("learning_rate",)),
    "rate_low": ("ppo", {"learning-rate": "3e-6"}, ("learning_rate", "policy-still")),
    "gamma_low": ("ppo", {"gamma": "0.1"}, ("gamma",)),
    "entropy_high": ("ppo", {"entropy-coef": "3.0"}, ("entropy_coef",)),
    "clip_tiny": ("ppo", {"clip-epsilon": "0.001"}, ("clip_epsilon",)),
    "clip_none": (
        "ppo", {"clip-epsilon": "none", "num-epochs": "60"}, ("clip_epsilon", "num_epochs")),
    "normalizer_off": (
        "ppo", {"normalize-observations": "false", "reward-normalizer": "none"},
        ("normalize_observations", "reward_normalizer")),
    "unroll_short": ("ppo", {"unroll-steps": "4", "minibatch-steps": "none"}, ("unroll_steps",)),
    "gradient_tiny": ("ppo", {"max-grad-norm": "1e-7"}, ("max_grad_norm", "gradient-clipped")),
    "values_tiny": ("ppo", {"value-coef": "1e-5"}, ("value_coef", "values-scale")),
    "one_batch": ("ppo", {"num-epochs": "1", "minibatch-steps": "none"},
        ("num_epochs", "minibatch_steps", "few-updates")),
    "network_tiny": ("ppo", {"model.policy-hidden": "1 1"}, ("model.policy_hidden",)),
    "memory_missing": ("ppo", {"model.core": "none"}, ("model.core",)),
    "budget": ("ppo", {"total-steps": "4200"}, ("budget-short", "few-updates")),
    "adam": ("ppo", {"adam-epsilon": "10"}, ("adam_epsilon",)),
    "ddpg_rate_high": ("ddpg", {"actor-lr": "0.1", "critic-lr": "0.1"},
        ("actor_lr", "critic_lr")),
    "ddpg_rate_low": ("ddpg", {"actor-lr": "1e-7"}, ("actor_lr",)),
    "replay_tiny": ("ddpg", {"replay-capacity-steps": "256", "replay-start-steps": "256"},
        ("replay_capacity_steps", "replay-small")),
    "replay_late": ("ddpg", {"replay-start-steps": "5900"},
        ("replay_start_steps", "few-updates")),
    "targets_frozen": ("ddpg", {"tau": "1e-6"}, ("tau",)),
}  # fmt: skip

HARMLESS = {
    "ppo": {"gae-lambda": "0.92", "num-epochs": "7", "adam-epsilon": "1e-8",
        "max-grad-norm": "1.0", "clip-epsilon": "0.25",
        "model.value-hidden": "48 48", "value-coef": "0.7"},
    "ddpg": {"batch-size": "192", "adam-epsilon": "1e-7", "max-grad-norm": "40",
        "unroll-steps": "10", "model.policy-hidden": "192 192", "tau": "0.008"},
}  # fmt: skip
"""Options that are no faults, of which three are typed beside each fault."""


def decoys(algo: str, fault: str, options: dict[str, str], seed: int) -> dict[str, str]:
    """Three harmless options beside the fault's own."""
    names = [x for x in HARMLESS[algo] if x not in options]
    drawn = np.random.default_rng([seed, *fault.encode()]).permutation(names)[:3]
    return {str(name): HARMLESS[algo][str(name)] for name in drawn}


def called(*words: str) -> tuple[int, str]:
    """Status and output of a command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
        try:
            status = quintet(list(words))
        except SystemExit as ended:
            status = int(ended.code or 0)
    return status, said.getvalue()


def examined(*words: str) -> list[dict[str, Any]]:
    status, said = called("doctor", *words, "--json")
    if status > 1:
        raise RuntimeError(f"quintet doctor {shlex.join(words)}: status {status}: {said}")
    found: list[dict[str, Any]] = json.loads(said.splitlines()[-1])["findings"]
    return found


def brief(found: list[dict[str, Any]]) -> list[list[Any]]:
    keys = "name", "subject", "weight", "command"
    return [[each[key] for key in keys] for each in found[:6]]


def of_environment(task: str, fault: str) -> dict[str, Any]:
    """In this process, which saves the seconds that another takes to begin."""
    kwargs = json.dumps({"task": task, "fault": fault})
    words = ["--env", "doctor_faults:make", "--env.kwargs", kwargs]
    if task in SOUND or task in PACKAGED:
        words = ["--env", task]
    elif task in RULES:
        words = ["--env", "doctor_sound:make", "--env.kwargs", json.dumps({"name": task})]
    try:
        loaded = environment.load("ppo", words)
    except QuintetError as error:  # its package is not installed
        raise RuntimeError(str(error)) from error
    options = environment.options_of(loaded, "")
    found: list[Finding] = []
    try:
        for _, those in environment.examine(loaded, options, 0, 120.0, lambda _: None):
            found = those
    except QuintetError as error:
        found = [failure(str(error), "it was examined"), *found]
    return {"found": brief([each.as_json() for each in found])}


FAST = {
    "eval.episodes": "0",
    "report.interval-s": "0.0",
    "report.progress": "false",
    "report.sinks": "jsonl",
    "runtime.compile": "off",
    "runtime.threads": "1",
    "checkpoint.interval-iterations": "100000",
}


def words_of(options: dict[str, str]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", *value.split())]


def trained(run: str, options: dict[str, str], seed: int, folder: Path) -> None:
    algo, *base = RUNS[run]
    if "total-steps" in options:
        base = base[: base.index("--total-steps")]
    words = [*base, *words_of(FAST | options), "--seed", str(seed), "--run-dir", str(folder)]
    status, said = called("train", algo, *words)
    if status and not (folder / "run.json").exists():
        raise RuntimeError(f"quintet train {shlex.join(words)}: {said}")


def score(folder: Path) -> tuple[float, float]:
    """Mean return of the first tenth of the reports and of the last fifth, weighted by episodes."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    reports = [x for x in map(json.loads, lines) if x.get("episode/count")]

    def mean(some: list[dict[str, float]]) -> float:
        weights = [x["episode/count"] for x in some]
        return float(np.average([x["episode/return_mean"] for x in some], weights=weights))

    if not reports:
        return float("nan"), float("nan")
    return mean(reports[: max(1, len(reports) // 10)]), mean(reports[-max(1, len(reports) // 5) :])


def of_run(run: str, fault: str, seed: int) -> dict[str, Any]:
    """A run with a fault, or a healthy one."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        options: dict[str, str] = {}
        if fault:
            algo, options, _ = SETTINGS[fault]
            options = options | decoys(algo, fault, options, seed)
        trained(run, options, seed, folder)
        first, last = score(folder)
        record: dict[str, Any] = {"first": first, "last": last}
        record["found"] = brief(examined(str(folder)))
        if fault:
            record["mended"] = mended(record["found"], fault)
        return record


def mended(found: list[list[Any]], fault: str) -> float | None:
    """The score of a run by the command of the finding that names the fault; None without one."""
    named = next((x for x in found[:3] if names(x, SETTINGS[fault][2]) and x[3]), None)
    if named is None or not named[3].startswith("quintet train"):
        return None
    _, *words = shlex.split(named[3])
    called(*words)
    folder = Path(words[words.index("--run-dir") + 1])
    return score(folder)[1] if (folder / "metrics.jsonl").exists() else None


def names(found: list[Any], accepted: tuple[str, ...]) -> bool:
    return found[0] in accepted or found[1] in accepted


def cases(part: str) -> Iterator[tuple[str, Any]]:
    """Key and function of each case of a part."""
    if part == "sound":
        for task in [*TASKS, *SOUND]:
            # A slash is within some ids.
            key = f"sound/{task.replace('/', '.')}"
            yield key, lambda task=task: of_environment(task, "")
    elif part == "strangers":
        for task in [*RULES, *PACKAGED]:
            key = f"strangers/{task.replace('/', '.')}"
            yield key, lambda task=task: of_environment(task, "")
    elif part == "environments":
        for fault, (_, without) in FAULTS.items():
            for task in TASKS:
                if task not in without:
                    yield (
                        f"environments/{fault}/{task}",
                        lambda task=task, fault=fault: of_environment(task, fault),
                    )
    elif part == "healthy":
        for seed in range(17):
            for run in RUNS:
                yield f"healthy/{run}/{seed}", lambda run=run, seed=seed: of_run(run, "", seed)
    elif part == "settings":
        for seed in (0, 1):
            for fault, (algo, *_) in SETTINGS.items():
                for run in RUNS:
                    if not run.startswith(f"{algo} ") or (
                        (fault == "memory_missing") != (run == "ppo noV")
                    ):
                        continue
                    yield (
                        f"settings/{fault}/{run}/{seed}",
                        lambda run=run, fault=fault, seed=seed: of_run(run, fault, seed),
                    )


def save(key: str, record: dict[str, Any]) -> None:
    """Adds a record to the results, which other shards write too."""
    OUT.parent.mkdir(exist_ok=True)
    with open(Path(tempfile.gettempdir()) / "quintet-doctor.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = read()
        held[key] = record
        write_whole(OUT, json.dumps(held, indent=1, sort_keys=True) + "\n")


def read() -> dict[str, Any]:
    return json.loads(OUT.read_text()) if OUT.exists() else {}


def summary() -> str:
    """The table of docs/benchmarks.md: the tasks and seeds that did not set thresholds, and those
    that did.
    """
    held = read()
    halves = [
        figures({key: x for key, x in held.items() if is_tuned(key) is tuned}, held)
        for tuned in (False, True)
    ]
    rows = [f"| {name} | {halves[0][name]} | {halves[1][name]} |" for name in halves[0]]
    return "\n".join(["| | other half | tuned half |", "|---|---|---|", *rows])


def is_tuned(key: str) -> bool:
    part, *rest = key.split("/")
    if part == "strangers":
        return False
    if part in ("sound", "environments"):
        return rest[-1] in {task.replace("/", ".") for task in TUNED}
    return rest[-2] in TUNED_RUNS and int(rest[-1]) in TUNED_SEEDS


def figures(rows: dict[str, Any], held: dict[str, Any]) -> dict[str, str]:
    """Counts by what is counted."""
    told = {}
    wanted = {"environments": "faults of environments", "settings": "faults of settings"}
    for part, name in wanted.items():
        ranks = []
        for key, record in rows.items():
            kind, *rest = key.split("/")
            if kind != part or (part == "settings" and not harmed(key, record, held)):
                continue
            accepted = FAULTS[rest[0]][0] if part == "environments" else SETTINGS[rest[0]][2]
            places = [i for i, x in enumerate(record["found"]) if names(x, accepted)]
            ranks.append(places[0] if places else 9)
        first, three = sum(x == 0 for x in ranks), sum(x < 3 for x in ranks)
        told[f"{name}: named first, among three"] = f"{first}, {three} of {len(ranks)}"
    mends = [
        (key, x) for key, x in rows.items()
        if key.startswith("settings/") and harmed(key, x, held)
    ]  # fmt: skip
    good = sum(x["mended"] is not None and near(key, x["mended"], held) for key, x in mends)
    told["faults of settings: mended"] = f"{good} of {len(mends)}"
    for part, name in (
        ("sound", "sound environments"), ("strangers", "sound environments of other kinds"),
        ("healthy", "healthy runs"),
    ):  # fmt: skip
        found = [x["found"] for key, x in rows.items() if key.startswith(f"{part}/")]
        alarms = sum(any(each[2] >= 0.5 for each in x) for x in found)
        told[f"alarms in {name}"] = f"{alarms} of {len(found)}"
    return told


def remedies() -> dict[str, tuple[int, int, int]]:
    """By the name of a finding: runs with a planted fault that were trained again by its command,
    those that ended better by a fifth of the healthy run's rise or near it, and those that ended
    worse by as much; the table of `quintet/findings/engine.py`.
    """
    held, found = read(), dict[str, list[int]]()
    for key, record in held.items():
        if not key.startswith("settings/") or not harmed(key, record, held):
            continue
        _, fault, run, seed = key.split("/")
        own = next((x for x in record["found"][:3] if names(x, SETTINGS[fault][2]) and x[3]), None)
        if own is None or record["mended"] is None:
            continue
        healthy = held[f"healthy/{run}/{seed}"]
        fifth = 0.2 * abs(healthy["last"] - healthy["first"])
        gain = record["mended"] - record["last"]
        counts = found.setdefault(own[0], [0, 0, 0])
        counts[0] += 1
        counts[1] += gain >= fifth or near(key, record["mended"], held)
        counts[2] += gain < -fifth
    return {name: (x[0], x[1], x[2]) for name, x in sorted(found.items())}


def near(key: str, last: float, held: dict[str, Any]) -> bool:
    """Whether a score is within 20% of the healthy run's rise below its end."""
    _, _, run, seed = key.split("/")
    healthy = held.get(f"healthy/{run}/{seed}")
    if healthy is None:
        return False
    return last >= healthy["last"] - 0.2 * abs(healthy["last"] - healthy["first"])


def harmed(key: str, record: dict[str, Any], held: dict[str, Any]) -> bool:
    """Whether the fault did harm, beside a healthy run of the same seed."""
    _, _, run, seed = key.split("/")
    known = f"healthy/{run}/{seed}" in held
    return known and not near(key, record["last"], held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "summary", "remedies"])
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    if asked.part == "summary":
        print(summary())
        return
    if asked.part == "remedies":
        print("\n".join(f"{name}: {x}" for name, x in remedies().items()))
        return
    own, of = map(int, asked.shard.split("/"))
    done = 0
    for number, (key, work) in enumerate(cases(asked.part)):
        if number % of != own or asked.only not in key or (key in read() and not asked.again):
            continue
        if done >= asked.most:
            break
        done += 1
        try:
            save(key, work())
        except RuntimeError as fault:
            print(f"{key}: {fault}", file=sys.stderr)
            continue
        print(key, json.dumps(read()[key]["found"][:3]), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
