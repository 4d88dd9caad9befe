"""``quintet doctor``: why an environment or a run may not learn."""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from quintet.algorithms.registry import DEFAULT
from quintet.doctor.finding import in_words
from quintet.errors import ConfigError
from quintet.observe.run_summary import find_runs, read_summary
from quintet.system.files import given_path, shown

HELP = f"""usage: quintet doctor ENV [--algo NAME] [OPTION VALUE ...]
       quintet doctor RUN [RUN ...]

Says why an environment or a run may not learn: findings, the likeliest first, each with its
evidence, what to do, and the command that does it.

  ENV            id of an environment, or module:name of a maker: it is played with random actions
  RUN            a run folder, or a folder of runs: its reports and options are read
  --algo NAME    learner that the environment is for (default: {DEFAULT}); its options may
                 follow, as of quintet train: --gamma 0.9 --env.kwargs '{{"size": 5}}'
  --most-s S     seconds for an environment (default: 50)
  --probe-seed N seed of an environment and of the random actions (default: 0)
  --json         print one JSON object

Exit status: 0 no likely cause was found, 1 a likely cause was found, 2 wrong usage.
"""


_SUBJECTS = {
    "check": "the layout of its rows",
    "play": "random play",
    "pairs": "what other actions change",
    "remembers": "whether an episode depends on the one before",
    "predict": "what predicts observations and rewards",
}
"""The subjects of the stages of an examination."""


class Asked(NamedTuple):
    """The command line: targets, and the words of other options."""

    targets: list[str]
    algo: str
    most_s: float
    seed: int
    as_json: bool
    of_environments: list[str]
    others: list[str]


def main(arguments: list[str]) -> int:
    """Examines; returns 0, or 1 if there is a likely cause."""
    if {"-h", "--help"} & {*arguments}:
        print(HELP, end="")
        return 0
    given = asked(arguments)
    runs = [find_runs(given_path(target)) for target in given.targets]
    if all(runs):
        results = _runs([path for found in runs for path in found], given)
    else:
        of = dict(zip(given.targets, runs, strict=True))
        results = [_environment(given, next(name for name, found in of.items() if not found))]
    if given.as_json:
        print(json.dumps(results[0] if len(results) == 1 else {"runs": results}))
    else:
        print("\n".join(line for each in results for line in _lines(each)))
    likely = (x["degree"] == "likely" for each in results for x in each["findings"])
    return 1 if any(likely) else 0


def asked(arguments: Sequence[str]) -> Asked:
    """The command line in parts; raises ConfigError if it can't be read."""
    own = {"--algo": DEFAULT, "--most-s": "50", "--probe-seed": "0"}
    targets: list[str] = []
    others: list[str] = []
    words = [word for word in arguments if word != "--json"]
    given: list[str] = []
    while words:
        word = words.pop(0)
        name, joined, value = word.partition("=")
        if name in own:
            if not joined and not words:
                raise ConfigError(f"{name} must have a value, got none: give one")
            own[name] = value if joined else words.pop(0)
            given.append(name)
        elif others or word.startswith("--"):
            others.append(word)
        else:
            targets.append(word)
    if not targets:
        raise ConfigError(
            "quintet doctor must get an environment or a run before other options, got "
            f"{others[0] if others else 'none'}: quintet doctor ENV"
        )
    try:
        most_s, seed = float(own["--most-s"]), int(own["--probe-seed"])
    except ValueError as fault:
        raise ConfigError(
            f"--most-s and --probe-seed must be numbers, got {own['--most-s']} and "
            f"{own['--probe-seed']}: correct them"
        ) from fault
    if not (5.0 <= most_s <= 86_400.0) or not 0 <= seed < 2**30:
        raise ConfigError(
            f"--most-s must be in 5 .. 86,400 and --probe-seed in 0 .. 2**30, got {most_s:g} and "
            f"{seed}: correct them"
        )
    return Asked(targets, own["--algo"], most_s, seed, "--json" in arguments, given, others)


def _runs(folders: Sequence[Path], given: Asked) -> list[dict[str, Any]]:
    from quintet.doctor.run import examine_runs

    if wrong := [*given.of_environments, *given.others]:
        raise ConfigError(
            f"quintet doctor RUN must have no option but --json, got {wrong[0]}: leave it out"
        )
    found = examine_runs([read_summary(folder) for folder in folders], policies=True)
    return [
        {
            "target": str(shown(Path(folder))),
            "kind": "run",
            "findings": [each.as_json() for each in own],
        }
        for folder, own in found.items()
    ]


def _environment(given: Asked, target: str) -> dict[str, Any]:
    from quintet.algorithms import registry
    from quintet.doctor.apart import examine_apart

    if len(given.targets) > 1:
        raise ConfigError(
            f"quintet doctor must get one environment, or only runs, got {len(given.targets)} "
            f"names, of which {target} is no run folder: examine one at a time"
        )
    if given_path(target).exists() and ":" not in target:
        raise ConfigError(
            f"RUN must be a run folder, or a folder with runs, got {target} with none: correct its "
            "name"
        )
    algo = registry.canonical(given.algo)
    typed = "".join(f" {shlex.quote(word)}" for word in given.others)
    examined = examine_apart(
        algo,
        ["--env", target, *given.others],
        typed,
        given.seed,
        given.most_s,
        lambda line: print(line, file=sys.stderr, flush=True),
    )
    return {
        "target": target,
        "kind": "environment",
        "whole": examined.whole,
        "unmade": examined.unmade,
        "findings": list(examined.found),
    }


def _lines(result: dict[str, Any]) -> list[str]:
    found: list[dict[str, Any]] = result["findings"]
    lines = [f"{result['target']}: {_summary(found, result)}"]
    for number, each in enumerate(found, 1):
        lines.append(f"{number}. {each['degree']} ({each['weight']:.2f}) {each['name']}: "
                     f"{each['said']}")  # fmt: skip
        for label, text in (
            ("evidence", in_words(each["evidence"])), ("do", each["advice"]),
            ("command", each["command"]), ("more", each["link"]),
        ):  # fmt: skip
            if text:
                lines.append(f"   {label + ':':<9} {text}")
    for name, why in result.get("unmade", {}).items():
        lines.append(f"not looked at: {_SUBJECTS.get(name, name)} ({why})")
    return lines


def _summary(found: Sequence[dict[str, Any]], beside: dict[str, Any]) -> str:
    degrees = [each["degree"] for each in found]
    counts = [f"{degrees.count(x)} {x}" for x in ("likely", "possible") if x in degrees]
    notes = degrees.count("note")
    counts += [f"{notes} {'note' if notes == 1 else 'notes'}"] * bool(notes)
    if not counts:
        whole = beside.get("whole", True) and not beside.get("unmade")
        return "nothing was found" + ("" if whole else "; not everything was examined")
    return ", ".join(counts) + (
        "" if "likely" in degrees else "; no likely cause, which is no proof that there is none"
    )
