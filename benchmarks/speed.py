"""Speed of training on fixed work, and the limit of this machine for it.

    python benchmarks/speed.py [WORKLOAD] [--json] [--runtime.OPTION ...]

Trains for some seconds and compares the speed with a limit that is measured from the bare parts
(stepping, one forward, one update, each by itself). Run nothing else meanwhile.  The options change
how the work is scheduled, as in a run.
"""

import argparse
import json
from contextlib import nullcontext

from fixed_work import measure, workloads

from quintet.errors import ConfigError, QuintetError
from quintet.system.printing import results_apart, say
from quintet.system.signals import exit_on_signals


def parser() -> argparse.ArgumentParser:
    of = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    names = ", ".join(workloads.names())
    of.add_argument("workload", nargs="?", metavar="WORKLOAD", help=f"all by default: {names}")
    of.add_argument("--json", action="store_true", help="print one JSON object per workload")
    for name in workloads.FREE:
        both = {f"--{name.replace('_', '-')}": name, f"--{name}": name}
        of.add_argument(*both, dest=name, metavar="VALUE")
    return of


def main() -> None:
    of = parser()
    args = vars(of.parse_args())
    try:
        options = workloads.scheduling({name: args[name] for name in workloads.FREE})
        names = [args["workload"]] if args["workload"] else workloads.names()
        works = [workloads.read(name) for name in names]
        with exit_on_signals(), results_apart() if args["json"] else nullcontext():
            for work in works:
                record = measure.run(work, options)
                say(json.dumps(record) if args["json"] else measure.in_words(record))
    except QuintetError as error:
        of.exit(2 if isinstance(error, ConfigError) else 1, f"error: {error}\n")


if __name__ == "__main__":
    main()
