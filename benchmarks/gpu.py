"""quintet on a GPU, in one command of at most ten minutes: is it right, does it wait, is it fast.

    python benchmarks/gpu.py --to gpu.json
    python benchmarks/gpu.py --to gpu.json --parts environment "pong:8 streams,impala" --peers PEERS
    python benchmarks/gpu.py --list                   # parts and their cases

Each part runs in a process of its own; those that measure no time run together.  A case that
fails, ends the process or takes too long is recorded, and the next case follows.  The JSON file is
written after every case; a table is printed last.  Cases for which no time is left are listed.

What the parts ask, and what PEERS is, is in `gpu.md`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

CASES = Path(__file__).with_name("gpu_cases.py")

START_S = 60
"""Longest time in which a part's process has to begin a case."""

Row = dict[str, Any]


@final
@dataclass
class Record:
    """All that was measured, and the file that has it."""

    to: Path
    command: Sequence[str]
    rows: list[Row] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **row: Any) -> None:
        with self._lock:
            self.rows.append(row)
            told = {"command": list(self.command), "rows": self.rows}
            fresh = self.to.with_suffix(".new")
            fresh.write_text(json.dumps(told, indent=1) + "\n")
            fresh.replace(self.to)
            print(f"{row['part']}: {row['case']}: {in_words(row)}", flush=True)


@final
class Child:
    """The process of a part: the rows that it writes, and its output."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.rows_file, self.log = folder / "rows.jsonl", folder / "log.txt"
        self.rows_file.write_text("")
        self._read = 0
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--to", str(self.rows_file)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def new_rows(self) -> list[Row]:
        """Rows written since the last call."""
        whole = self.rows_file.read_text().rpartition("\n")[0].splitlines()
        rows, self._read = whole[self._read :], len(whole)
        return [json.loads(row) for row in rows]

    def kill(self) -> None:
        """Ends the process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-1500:]


def run_part(
    part: str, limits: dict[str, float], command: Sequence[str], record: Record, ends: float
) -> None:
    """Runs the cases of a part; after one that ended its process, the others in a new one.

    limits: seconds of each case, by name; ends: `time.monotonic` by which all must be over.
    """
    left = dict(limits)
    while left and time.monotonic() < ends:
        with TemporaryDirectory() as folder:
            child = Child([*command, "--only", *left], Path(folder))
            try:
                lost = _follow(child, part, left, record, ends)
            finally:
                child.kill()
            if lost is not None:
                name, why = lost
                left.pop(name)
                record.add(part=part, case=name, error=why, log=child.tail())
    for name in left:
        record.add(part=part, case=name, error="not run: no time was left")


def _follow(
    child: Child, part: str, left: dict[str, float], record: Record, ends: float
) -> tuple[str, str] | None:
    """Records the cases that end; returns the one that did not, and why."""
    now, since, limit = next(iter(left)), time.monotonic(), float(START_S)
    between = False  # whether a case has ended, and the next not begun
    while True:
        ended = child.process.poll() is not None
        for row in child.new_rows():
            if "begin" in row:
                now, since, limit = row["begin"], time.monotonic(), left[row["begin"]]
                between = False
                continue
            left.pop(now)
            failed = {"log": child.tail()} if "error" in row else {}
            kept = {name: row[name] for name in ("result", "error") if name in row} | failed
            record.add(part=part, case=now, seconds=round(time.monotonic() - since, 1), **kept)
            if not left:
                return None
            now, since, limit, between = next(iter(left)), time.monotonic(), float(START_S), True
        passed = time.monotonic() - since
        if ended and between:  # as after an error of the GPU: the others have a new process
            return None
        if ended:
            return now, f"the process ended with {child.process.returncode}"
        if passed > limit or time.monotonic() > ends:
            why = "its limit" if passed > limit else "all time was over"
            return now, f"stopped after {passed:.0f} s: {why}"
        time.sleep(0.05)


def in_words(row: Row) -> str:
    """One line of the table."""
    if "error" in row:
        return f"FAILED: {row['error'].splitlines()[0][:150]}"
    result = row["result"]
    told = []
    if list(result) == ["first_iterations_s"]:
        told.append(f"first iterations after {result['first_iterations_s']:.0f} s")
    if "env_steps_per_s" in result:
        told.append(f"{result['env_steps_per_s'] or 0:,.0f} env_steps/s")
    if "learning_us_per_update" in result:
        told.append(f"{result['learning_us_per_update']:,.0f} us per update")
    if "kernels" in result:
        seen = result["kernels"]
        told.append(f"{seen.get('launches_per_update', 0):g} launches")
        told.append(f"{seen['kernels_per_update']:g} kernels per update")
        told.append(f"GPU busy {seen['gpu_busy_share']:.0%}")
    if "waits" in result:
        phases = result["waits"]["per_iteration"]
        said = ", ".join(f"{phase} {count:g}" for phase, count in phases.items())
        told.append(f"waits per iteration: {said or 'none'}")
    if "shares" in result:
        shares = list(result["shares"].items())[:3]
        told.append(", ".join(f"{phase} {share:.0%}" for phase, share in shares))
    if "worst" in result:
        within = "equal" if result["equal"] else "DIFFERS"
        many = f"{result['numbers_over_tolerance']} of {result['numbers']:,} numbers over"
        apart = f"at most {result['worst']:.1e} apart after {result['updates']} updates"
        told.append(f"{within}, {apart}, {many}")
    told += [
        f"{words} {'yes' if result[name] else 'NO'}"
        for name, words in (("same_twice", "same twice:"), ("same_as_eager", "as eager:"))
        if name in result
    ]
    if "processor" in result:
        names = ("card", "driver", "processor", "cores", "launch_us", "item_us")
        told += [f"{name} {result[name]}" for name in names if name in result]
    return "; ".join(told)


def table(rows: Sequence[Row]) -> str:
    """All rows in words, by part."""
    lines, part = [], ""
    for row in rows:
        if row["part"] != part:
            part = row["part"]
            lines.append(f"== {part}")
        lines.append(f"  {row['case']:32} {in_words(row)}")
    return "\n".join(lines)


def chosen(words: Sequence[str], parts: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, float]]:
    """The limits of the cases to run, by part and name; raises ValueError if a word names none.

    words: PART, or PART:TEXT,TEXT for the cases with these names, or else with TEXT in theirs.
    """
    found: dict[str, dict[str, float]] = {}
    for word in words or parts:
        part, _, texts = word.partition(":")
        cases = parts.get(part, ())
        for text in texts.split(","):
            like = [case for case in cases if case.name == text]
            like = like or [case for case in cases if text in case.name]
            if not like:
                raise ValueError(f"{word!r} must name a part, or a part and cases: see --list")
            found.setdefault(part, {}).update({case.name: case.limit_s for case in like})
    return found


def main() -> None:
    sys.path.insert(0, str(CASES.parent))
    from gpu_cases import PARTS, TOGETHER

    parser = argparse.ArgumentParser(description="measure quintet on a GPU")
    parser.add_argument("--to", type=Path, default=Path("gpu.json"), help="JSON file")
    parser.add_argument("--parts", nargs="*", default=[], metavar="PART[:TEXT,...]")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--peers", type=Path, help="folder of LeanRL's and CleanRL's files")
    parser.add_argument("--each", type=float, default=5, help="seconds of a speed measurement")
    parser.add_argument("--total", type=float, default=580, help="seconds for all")
    parser.add_argument("--list", action="store_true", help="list the cases and end")
    args = parser.parse_args()
    try:
        cases = chosen(args.parts, {part: make() for part, make in PARTS.items()})
    except ValueError as error:
        parser.error(str(error))
    if args.list:
        for part, names in cases.items():
            print(f"{part}: {', '.join(names)}")
        return
    if args.peers is None:
        for part in ("compiled", "turns", "peers"):
            if cases.pop(part, None):
                print(f"no --peers, so that {part} is left out", flush=True)
    ends = time.monotonic() + args.total
    record = Record(args.to, sys.argv)

    def run(part: str) -> None:
        command = [sys.executable, str(CASES), part, "--device", args.device]
        command += ["--seconds", str(args.each)]
        command += ["--peers", str(args.peers.resolve())] if args.peers else []
        run_part(part, cases[part], command, record, ends)

    with ThreadPoolExecutor() as pool:
        list(pool.map(run, [part for part in cases if part in TOGETHER]))
    for part in cases:
        if part not in TOGETHER:
            run(part)
    order = {part: place for place, part in enumerate(cases)}
    print(table(sorted(record.rows, key=lambda row: order[row["part"]])), flush=True)


if __name__ == "__main__":
    main()
