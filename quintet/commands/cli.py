"""The command line; larger commands are in `quintet.commands`.

Commands import PyTorch and environments themselves where they need them, so that help appears at
once.
"""

import errno
import io
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from quintet.system.plugins import HUB, Catalog
from quintet.system.printing import note, results_apart, say

if TYPE_CHECKING:
    from quintet.options.command import Parsed
    from quintet.search.seed_group import SeedOutcome

HELP = """usage: quintet COMMAND ...

commands:
  train ALGO --env ID   train a policy; the same command again resumes the run;
                        --seeds 1,2,3 trains a group of runs, --minutes 10 for ten minutes
  train auto --env ID   train by the best of several learners and settings in --minutes M
  sweep ALGO --env ID   search for good options; --trials 30, or --minutes 60
  eval RUN              play episodes with the policy of a run
  save RUN              make a running run write a checkpoint
  export RUN --out DIR  take the policy out: ONNX, torch.export or NumPy, with a proof
  verify DIR            repeat the proof of an export
  plot RUN... --out F   draw learning curves, or bars of final scores
  runs [DIR]            list runs with their state and score
  diff A B              show what differs between two runs
  compare A... --with B...
                        decide between runs: intervals, probability of improvement
  report RUN... --out F write a page about runs
  envs [PATTERN]        list the environments that can be trained on
  check-env ID          check an environment: its spaces, its speed, its faults
  doctor ENV|RUN        say why an environment or a run may not learn, and what to do
  config ALGO --env ID  show every option, its value, and where the value comes from
{of_packages}
`quintet COMMAND --help` lists the options of a command, `quintet --version` shows the versions of
quintet, PyTorch and the backends.  Algorithms: {algorithms}.
"""

ELSEWHERE = {
    "bench": "`python benchmarks/speed.py` in a checkout of quintet measures speed",
    **dict.fromkeys(("push", "pull"), f"{HUB} adds it"),
}
"""Replacements of names that are no commands."""


def main(arguments: list[str] | None = None, leave: Callable[[int], object] | None = None) -> int:
    """Runs one command; its exit status: 0 done, 1 an error, 2 wrong usage, 128 + the number of the
    signal that stopped it: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP.

    leave: called with the status to end the process if Ctrl-C interrupted the command.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  for good
        elif isinstance(stream, io.TextIOWrapper):  # names of folders may not fit its encoding
            stream.reconfigure(errors="backslashreplace")
    from quintet.errors import ConfigError
    from quintet.system.supported import require_system

    try:
        require_system()
    except ConfigError as error:
        note(f"error: {error}")
        return 2
    return _guarded(lambda: _run(arguments), leave)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        from quintet.algorithms.registry import LEARNERS

        names = [name for name in OF_PACKAGES.names() if name not in COMMANDS]
        own = "".join(f"  {x:21} of {OF_PACKAGES.package_of(x)}\n" for x in names)
        say(HELP.format(algorithms=", ".join(LEARNERS.names()), of_packages=own), end="")
        for fault in (*LEARNERS.faults(), *OF_PACKAGES.faults()):
            note(f"warning: {fault}")
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from quintet.commands.version import report

        say(report())
        return 0
    command = COMMANDS.get(arguments[0])
    if command is None and arguments[0] in OF_PACKAGES:
        command = partial(_record, arguments[0])
    if command is None:
        from difflib import get_close_matches

        known = OF_PACKAGES.names()
        near = get_close_matches(arguments[0], known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        if arguments[0] in ELSEWHERE:
            hint = f"; {ELSEWHERE[arguments[0]]}"
        note(f"error: the command must be one of {', '.join(known)}, got {arguments[0]!r}{hint}")
        return 2
    from quintet.system.memory import check_address_space

    check_address_space()
    try:
        os.getcwd()
    except FileNotFoundError:
        note("error: the working folder was removed: cd to another")
        return 1
    with results_apart() if "--json" in arguments else nullcontext():
        return command(_with_minus(arguments[1:]))


def _with_minus(arguments: list[str]) -> list[str]:
    """The words with an objective such as ``-env/cost`` joined to its option by ``=``, since a
    parser would take it for an option itself."""
    joined: list[str] = []
    for word in arguments:
        own = word.startswith("-") and not word.startswith("--") and "/" in word
        if own and joined and joined[-1].startswith("--") and "=" not in joined[-1]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _guarded(command: Callable[[], int], leave: Callable[[int], object] | None) -> int:
    """Runs a command; prints quintet's errors and the system's as one message."""
    from quintet.errors import ConfigError, QuintetError
    from quintet.system.signals import INTERRUPTED, exit_on_signals, stopped_status

    try:
        with exit_on_signals():
            status = command()
        sys.stdout.flush()
        return stopped_status() if status == INTERRUPTED else status
    except QuintetError as error:
        note(f"error: {error}")
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        note("interrupted")
        if leave is not None:
            leave(stopped_status())
        return stopped_status()
    except OSError as error:
        from quintet.system import files

        # The reader may be gone, or the disk behind standard output full; Python's flush at exit
        # must not complain about it again.
        if error.filename is None:
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            return 141
        where = "" if error.filename is None else f"{error.filename}: "
        note(f"error: {where}{files.reason(error)}; {files.advice(error)}")
        return 1


def _train(arguments: list[str]) -> int:
    from quintet.options.command import parse

    if arguments and arguments[0].lower() == "auto":
        return _later("race", arguments[1:])
    asked = parse("train", arguments)
    if asked.seeds is not None:
        return _train_seeds(asked)
    from quintet.errors import ConfigError
    from quintet.options.saved import load_config

    if asked.jobs is not None:
        raise ConfigError(f"--jobs {asked.jobs} has no effect without --seeds: leave it out")
    loaded = load_config(
        asked.algo, asked.files, asked.options, trust=asked.trust, overwrite=asked.overwrite
    )
    from quintet.options.resolve import check_spaces

    check_spaces(loaded)
    from quintet.run.launch import run  # PyTorch, not before all that can be refused without it
    from quintet.system.files import shown
    from quintet.system.signals import INTERRUPTED

    if asked.minutes is None:
        result = run(loaded)
    else:
        from quintet.search.minutes import train

        result = train(loaded, asked.minutes)
    say(f"run:    {shown(result.run_dir)}")
    if result.status == "finished":
        say(f"policy: {shown(result.run_dir / 'policy')}")
        return 0
    return INTERRUPTED


def _train_seeds(asked: "Parsed") -> int:
    """A group of runs, and a table of how they ended."""
    from quintet.options.saved import load_seeds

    assert asked.seeds is not None
    loaded = load_seeds(
        asked.algo, asked.files, asked.options, asked.seeds,
        trust=asked.trust, overwrite=asked.overwrite,
    )  # fmt: skip
    from quintet.search.seed_group import run_seeds

    outcomes = run_seeds(loaded, asked.jobs, asked.minutes)
    say(_summary(outcomes))
    failed = [each for each in outcomes if each.status == "failed"]
    for each in failed:
        note(f"error: seed {each.seed}: {each.error}")
    if failed:
        return 1
    return 0 if all(each.status == "finished" for each in outcomes) else 130


def _summary(outcomes: "list[SeedOutcome]") -> str:
    """A line per run, and mean and standard deviation of the finished runs' final scores."""
    from statistics import mean, stdev

    from quintet.observe.run_summary import table
    from quintet.system.files import shown

    rows: list[tuple[str, ...]] = [("seed", "status", "env_steps", "evaluation", "training", "run")]
    for each in outcomes:
        steps = each.metrics.get("env_steps")
        scores = (each.metrics.get(name) for name in ("eval/return_mean", "episode/return_mean"))
        cells = ["-" if score is None else f"{score:.2f}" for score in scores]
        cells.insert(0, "-" if steps is None else f"{steps:,.0f}")
        status = "not begun" if each.status == "waiting" else each.status
        rows.append((str(each.seed), status, *cells, str(shown(each.run_dir))))
    lines = table(rows)
    finished = [each.metrics for each in outcomes if each.status == "finished"]
    for what in ("return_mean", "success_rate"):
        for name in (f"eval/{what}", f"episode/{what}"):
            if found := [metrics[name] for metrics in finished if name in metrics]:
                spread = f" +- {stdev(found):.2f}" if len(found) > 1 else ""
                lines.append(
                    f"{name}: {mean(found):.2f}{spread} (mean and standard deviation over "
                    f"{len(found)} finished of {len(outcomes)} seeds)"
                )
                break
    return "\n".join(lines)


def _config(arguments: list[str]) -> int:
    from quintet.options.command import parse

    asked = parse("config", arguments)
    from quintet.checkpoints.checkpoint import any_of_run
    from quintet.options.saved import asked_for, load_config
    from quintet.system.files import shown, warn_on_stderr

    # A folder that nobody named does not stand in the way of another configuration.
    named = asked_for(*asked.files, asked.options).get("run_dir") is not None
    beside = not named and not asked.overwrite
    loaded = load_config(
        asked.algo,
        asked.files,
        asked.options,
        trust=asked.trust,
        overwrite=asked.overwrite,
        beside=beside,
    )
    from quintet.checkpoints.run_record import SAVED, first_sources
    from quintet.options.resolve import resolved
    from quintet.run.warm_start import find_donor

    values, sources = resolved(loaded)
    config = loaded.config
    assert config.run_dir is not None
    begun = any_of_run(config.run_dir / "checkpoints")
    if begun and beside:
        warn_on_stderr(
            f"{shown(config.run_dir)} holds a run, but this is the configuration of a new run; add "
            f"--run-dir {shown(config.run_dir)} for that of the saved run"
        )
    if config.init_from is not None and (beside or asked.overwrite or not begun):
        find_donor(config.init_from)  # a run that has begun does not read it
    first = first_sources(config.run_dir, sources)
    sources = {
        name: source if first[name] == source else f"{SAVED} ({first[name]})"
        for name, source in sources.items()
    }
    width = max(len(f"{name}: {values[name]}") for name in values if len(str(values[name])) < 40)
    for name, value in values.items():
        say(f"{name}: {_yaml(value)}".ljust(width) + f"  # {sources[name]}")
    return 0


def _yaml(value: Any) -> str:
    """One value as YAML on one line, so that the command's output is a configuration file."""
    from quintet.system import files

    text = files.dump_yaml(value, default_flow_style=True, width=10**6)
    return text.strip().removesuffix("\n...")


def _envs(arguments: list[str]) -> int:
    if any(a in ("-h", "--help") for a in arguments) or len(arguments) > 1:
        say("usage: quintet envs [PATTERN]   list ids that contain PATTERN, or match its * and ?")
        return 0 if len(arguments) <= 1 else 2
    from quintet.envs.ids import list_envs
    from quintet.errors import QuintetError

    found = list_envs(arguments[0] if arguments else "")
    if not found:
        raise QuintetError(
            f"PATTERN must match an id, got {arguments[0]!r}: try a shorter part of the id"
        )
    width = max(len(name) for name, _ in found)
    for name, backend in found:
        say(f"{name:{width}}  {backend}")
    return 0


def _later(module: str, arguments: list[str]) -> int:
    """Runs a command; its module is imported only then."""
    return int(import_module(f"quintet.commands.{module}").main(arguments))


def _record(name: str, arguments: list[str]) -> int:
    """Runs a command that is a record of its arguments; its module is imported only then."""
    import tyro

    if name in COMMANDS:
        record = getattr(import_module(f"quintet.commands.{name}"), name.capitalize())
    else:
        record = OF_PACKAGES.find(name)
    tyro.cli(record, prog=f"quintet {name}", args=arguments).execute()
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "sweep": partial(_later, "sweep"),
    "eval": partial(_later, "evaluate"),
    "save": partial(_record, "save"),
    "export": partial(_record, "export"),
    "verify": partial(_record, "verify"),
    "plot": partial(_record, "plot"),
    "runs": partial(_record, "runs"),
    "diff": partial(_record, "diff"),
    "compare": partial(_record, "compare"),
    "report": partial(_record, "report"),
    "envs": _envs,
    "check-env": partial(_later, "check_env"),
    "doctor": partial(_later, "doctor"),
    "config": _config,
}

_OWN = dict.fromkeys(COMMANDS, "")
OF_PACKAGES = Catalog(
    "quintet.commands", "command", type, _OWN, "quintet.jobs.imports:import_apart"
)
"""Commands of installed packages: dataclasses that tyro reads, with a method ``execute``."""

if __name__ == "__main__":
    sys.exit(main())
