"""``quintet train auto``: a race over learners and settings."""

from quintet.algorithms.registry import DEFAULT
from quintet.errors import ConfigError
from quintet.options.command import parse
from quintet.search.race_asked import Asked
from quintet.system.files import shown
from quintet.system.printing import say
from quintet.system.signals import INTERRUPTED

HELP = """usage: quintet train auto --env ID --minutes M [OPTION VALUE ...]

A race over learners and settings that suit this kind of environment: candidates train for a while,
are evaluated, and the worse half falls out, again and again; the last ones train to the end, and
the best is the result, an ordinary run.  All within M minutes.  The same command again goes on.

  --minutes M      time of everything
  --run-dir DIR    folder of the result (default: runs/auto-ENV-sSEED); DIR/race tells of the race
  --metric NAME    score of episodes: eval/success_rate, env/KEY (a number of --env.metrics), -NAME
                   if less is better (default: eval/return_mean); also --checkpoint.best-by
  --jobs N         candidates at the same time (default: by the cores)
  --seed S, --env.NAME VALUE, --eval.NAME VALUE, ...
                   options that all learners have, for all candidates
  --config FILE, --trust, --overwrite
                   as for other runs
"""


def main(arguments: list[str]) -> int:
    """Returns 0 if the race is finished, 130 if it was stopped."""
    if {"-h", "--help"} & {*arguments}:
        say(HELP, end="")
        return 0
    asked = read(arguments)
    asked.require()
    from quintet.search.race import race

    found = race(asked)
    place = shown(asked.folder)
    if found.state != "finished":
        say("stopped; the same command goes on")
        return INTERRUPTED
    say(f"this race is finished: {found.winner} won; {place / 'race'} tells how")
    say(f"run:    {place}")
    say(f"policy: {place / 'policy'}")
    return 0


def read(arguments: list[str]) -> Asked:
    """The race of a command line; raises ConfigError for words that can't be parsed."""
    words = [
        f"--checkpoint.best-by{x[8:]}" if x.partition("=")[0] == "--metric" else x
        for x in arguments
    ]
    parsed = parse("train", [DEFAULT, *words])
    if parsed.seeds is not None:
        raise ConfigError(
            f"--seeds does not belong to a race, got {parsed.seeds}: give --seed, or race once for "
            "each"
        )
    return Asked(
        parsed.minutes,
        (*parsed.files, parsed.options),
        parsed.jobs,
        trust=parsed.trust,
        overwrite=parsed.overwrite,
    )
