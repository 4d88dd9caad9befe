"""``quintet doctor``: why an environment or a run may not learn."""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from quintet.algorithms.registry import DEFAULT
from quintet.errors import ConfigError
from quintet.findings.engine import is_known, require_names
from quintet.findings.record import in_words
from quintet.observe.run_summary import find_runs, read_summary
from quintet.system.files import given_path, shown
from quintet.system.places import run_path
from quintet.system.printing import note, say

HELP = f"""usage: quintet doctor ENV [--algo NAME] [OPTION VALUE ...]
       quintet doctor RUN [RUN ...] [--try]

Says why an environment or a run may not learn: findings, the likeliest first, each with its
evidence, what to do, and the command that does it, where such commands have helped.

  ENV            id of an environment, or module:name of a maker: it is played with random actions
  RUN            a run folder, or a folder of runs: its reports and options are read
  --algo NAME    learner that the environment is for (default: {DEFAULT}); its options may
                 follow, as of quintet train: --gamma 0.9 --env.kwargs '{{"size": 5}}'
  --most-s S     seconds for an environment (default: 50)
  --probe-seed N seed of an environment and of the random actions (default: 0)
  --known NAME   a finding that you know, which is left out; several names may follow
  --baseline RULE module:function, which chooses an action for an observation: the run's returns
                 beside those of this rule
  --try          train as the run did and by the first command, side by side, and compare
  --minutes M    minutes of both with --try (default: 2)
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
    """The command line: targets, and the words of other options.

    of_environments: names of the options given that only belong to an environment; others: words
        of options of ``quintet train``.
    minutes: of --try; None: nothing is tried.
    """

    targets: list[str]
    algo: str
    most_s: float
    seed: int
    as_json: bool
    known: list[str]
    baseline: str
    minutes: float | None
    of_environments: list[str]
    others: list[str]


def main(arguments: list[str]) -> int:
    """Examines; returns 0, or 1 if there is a likely cause."""
    if {"-h", "--help"} & {*arguments}:
        say(HELP, end="")
        return 0
    given = parse_arguments(arguments)
    runs = [find_runs(run_path(target)) for target in given.targets]
    if all(runs):
        results = _runs([path for found in runs for path in found], given)
    else:  # an environment is the only target
        runs_of = dict(zip(given.targets, runs, strict=True))
        results = [_environment(given, next(name for name, x in runs_of.items() if not x))]
    for each in results:
        each |= _split(each["findings"], given.known)
    if given.minutes is not None:
        from quintet.commands.doctor_try import tried

        results[0]["tried"] = tried(results[0], given.minutes)
    if given.as_json:
        say(json.dumps(results[0] if len(results) == 1 else {"runs": results}))
    else:
        say("\n".join(line for each in results for line in _lines(each)))
    likely = (x["degree"] == "likely" for each in results for x in each["findings"])
    return 1 if any(likely) else 0


def _split(found: list[dict[str, Any]], known: list[str]) -> dict[str, list[Any]]:
    """The findings that the user does not know, and the names of the others."""
    names = [is_known(known, each["name"], each["subject"]) for each in found]
    pairs = list(zip(names, found, strict=True))
    return {
        "findings": [each for own, each in pairs if not own],
        "known": [each["name"] for own, each in pairs if own],
    }


def parse_arguments(arguments: Sequence[str]) -> Asked:
    """The command line in parts; raises ConfigError if it can't be read."""
    own = {
        "--algo": DEFAULT, "--most-s": "50", "--probe-seed": "0", "--baseline": "", "--minutes": "2"
    }  # fmt: skip
    of_runs = ("--baseline", "--minutes")
    targets: list[str] = []
    others: list[str] = []
    words = [word for word in arguments if word not in ("--json", "--try")]
    given: list[str] = []
    known: list[str] = []
    while words:
        word = words.pop(0)
        name, joined, value = word.partition("=")
        if name == "--known":
            known += _names([value] if joined else [], words)
        elif name in own:
            if not joined and not words:
                raise ConfigError(f"{name} needs a value: give one")
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
    most_s, seed, minutes = _numbers(own)
    tries = "--try" in arguments
    if "--minutes" in given and not tries:
        raise ConfigError("--minutes has no effect without --try: leave it out")
    return Asked(
        targets, own["--algo"], most_s, seed, "--json" in arguments, known, own["--baseline"],
        minutes if tries else None, [each for each in given if each not in of_runs], others,
    )  # fmt: skip


def _numbers(own: Mapping[str, str]) -> tuple[float, int, float]:
    """Seconds, seed and minutes, checked."""
    names = "--most-s", "--probe-seed", "--minutes"
    values = ", ".join(f"{name} {own[name]}" for name in names)
    try:
        most_s, seed, minutes = float(own[names[0]]), int(own[names[1]]), float(own[names[2]])
    except ValueError as fault:
        raise ConfigError(f"{', '.join(names)} must be numbers, got {values}") from fault
    if not (5.0 <= most_s <= 86_400.0 and 0 <= seed < 2**30 and 0.1 <= minutes <= 1e4):
        raise ConfigError(
            "--most-s must be in 5 .. 86,400, --probe-seed in 0 .. 2**30 and --minutes in 0.1 .. "
            f"10,000, got {values}: correct them"
        )
    return most_s, seed, minutes


def _names(found: list[str], words: list[str]) -> list[str]:
    """The names after --known, which are taken from the words; there may be commas in between."""
    while words and not words[0].startswith("--"):
        found.append(words.pop(0))
    names = [name for each in found for name in each.split(",") if name]
    if not names:
        raise ConfigError("--known needs a name of a finding: give one")
    require_names("--known", names)
    return names


def _runs(folders: Sequence[Path], given: Asked) -> list[dict[str, Any]]:
    """The result for each run, as JSON holds it."""
    from quintet.doctor.run import does_well, examine_runs
    from quintet.findings.engine import ranked

    if wrong := [*given.of_environments, *given.others]:
        raise ConfigError(
            f"quintet doctor RUN must have no option of an environment, got {wrong[0]}: leave it "
            "out"
        )
    if given.minutes is not None and len(folders) != 1:
        raise ConfigError(
            f"--try must get one run, got {len(folders)}: name the run that is to be tried again"
        )
    summaries = [read_summary(folder) for folder in folders]
    found = examine_runs(summaries, policies=True)
    results = []
    for run in summaries:
        well, own = does_well(run), found[str(run.folder)]
        result: dict[str, Any] = {"target": str(shown(run.folder)), "kind": "run"}
        if given.baseline:
            from quintet.doctor.baseline import beside_rule

            beside = beside_rule(run, given.baseline)
            own = ranked([*filter(None, (beside.finding,)), *own])
            well = "" if beside.below else well
            result["baseline"] = beside.said
        results.append(result | {"well": well, "findings": [each.as_json() for each in own]})
    return results


def _environment(given: Asked, target: str) -> dict[str, Any]:
    """The result for an environment, as JSON holds it; raises ConfigError."""
    from quintet.algorithms import registry
    from quintet.doctor.apart import examine_apart

    for name, is_given in (("--try", given.minutes is not None), ("--baseline", given.baseline)):
        if is_given:
            raise ConfigError(f"{name} must have a run, got {target}: leave it out")
    if len(given.targets) > 1:
        raise ConfigError(
            f"quintet doctor must get one environment, or only runs, got {len(given.targets)} "
            f"names, of which {target} is no run folder: examine one at a time"
        )
    path = given_path(target)
    missing = not path.exists() and os.sep in target and path.parent.is_dir()
    if (missing or path.exists()) and ":" not in target:
        raise ConfigError(
            f"RUN must be a run folder, or a folder with runs, got {target} "
            f"{'which does not exist' if missing else 'with none'}: correct its name"
        )
    algo = registry.canonical(given.algo)
    typed = "".join(f" {shlex.quote(word)}" for word in given.others)
    examined = examine_apart(
        algo,
        ["--env", target, *given.others],
        typed,
        given.seed,
        given.most_s,
        note,
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
    if result.get("well"):
        lines.append(f"it does well: {result['well']}")
    if result.get("baseline"):
        lines.append(result["baseline"])
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
    if result.get("known"):
        lines.append(f"left out, since you know it: {', '.join(result['known'])}")
    lines += result.get("tried", {}).get("lines", [])
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
