"""Tables of what `gpu.py` measured, for `gpu.md`.

    python benchmarks/gpu_tables.py gpu.json     # keeps it in results/gpu.json, without logs

Cases that were measured again replace those that were kept.  `python benchmarks/tables.py` then
writes the tables.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

SPEED = ("turns", "peers", "pong", "breakout", "cartpole", "vectors")

NOTHING = "Nothing was measured yet: no figure for a GPU is claimed."


def told(record: Mapping[str, Any] | None) -> str:
    """All tables, in Markdown, for each environment in which cases were measured."""
    if record is None:
        return NOTHING
    return "\n\n".join(_of_session(rows) for rows in _sessions(record["rows"]))


def _sessions(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows, cut before each environment."""
    found: list[list[Row]] = []
    for row in rows:
        if row["part"] == "environment" or not found:
            found.append([])
        found[-1].append(row)
    return found


def _key(row: Row) -> tuple[str, str]:
    return row["part"], row["case"]


def _of_session(rows: Sequence[Row]) -> str:
    tables = (_environment(rows), _speed(rows), _steps(rows), _checks(rows), _failed(rows))
    return "\n\n".join(table for table in tables if table)


def _of(rows: Sequence[Row], *parts: str) -> list[Row]:
    return [row for row in rows if row["part"] in parts and "result" in row]


def _environment(rows: Sequence[Row]) -> str:
    found = _of(rows, "environment")
    if not found:
        return ""
    it = found[0]["result"]
    versions = ", ".join(f"{name} {x}" for name, x in it["versions"].items() if x)
    host = f"{it['processor']}, {it['cores']} cores"
    if "card" in it:
        host = f"{it['card']} (driver {it['driver']}, CUDA {it['cuda']}) beside {host}"
        host += (
            f"; a small kernel takes the host {it['launch_us']} us, `.item()` {it['item_us']} us"
        )
    return f"{host}. Python {it['python']}, {versions}; commit {it['commit']}."


def _speed(rows: Sequence[Row]) -> str:
    lines = [
        "| part | run | env_steps/s | us per update | learning | acting | stepping | waiting |"
        " GPU GiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in _of(rows, *SPEED):
        it = row["result"]
        shares = it.get("shares", {})
        cells = [f"{shares[x]:.0%}" if x in shares else "" for x in ("learning", "acting")]
        cells += [f"{shares[x]:.0%}" if x in shares else "" for x in ("stepping", "waiting")]
        us = f"{it['learning_us_per_update']:,.0f}" if "learning_us_per_update" in it else ""
        gib = f"{it['gpu_gib']:.2f}" if it.get("gpu_gib") else ""
        speed = f"{it['env_steps_per_s']:,.0f}" if it["env_steps_per_s"] else "too short"
        first = [row["part"], row["case"], speed, us]
        lines.append(f"| {' | '.join([*first, *cells, gib])} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _steps(rows: Sequence[Row]) -> str:
    lines = [
        "| updates | us | launches | kernels | GPU us | GPU busy | waits of an iteration |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in _of(rows, "steps"):
        it = row["result"]
        seen = it.get("kernels", {})
        numbers = [
            f"{seen[name]:,}" if name in seen else ""
            for name in ("launches_per_update", "kernels_per_update", "gpu_us_per_update")
        ]
        busy = f"{seen['gpu_busy_share']:.0%}" if seen else ""
        waits = it.get("waits", {}).get("per_iteration", {})
        said = ", ".join(f"{phase} {count:g}" for phase, count in waits.items())
        us = f"{it['learning_us_per_update']:,.0f}"
        lines.append(f"| {' | '.join([row['case'], us, *numbers, busy, said])} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _checks(rows: Sequence[Row]) -> str:
    lines = [
        "| run | updates | farthest from the CPU | the same bytes twice | as graphs: those of"
        " eager |",
        "|---|---|---|---|---|",
    ]
    yes = {True: "yes", False: "**no**"}
    for row in _of(rows, "equality", "exactness"):
        it = row["result"]
        far = ""
        if "worst" in it:
            within = "" if it["equal"] else f" (**{it['numbers_over_tolerance']} over 1e-4**)"
            far = f"{it['worst']:.1e}{within}"
        cells = [yes[it[x]] if x in it else "" for x in ("same_twice", "same_as_eager")]
        lines.append(f"| {' | '.join([row['case'], str(it['updates']), far, *cells])} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def _failed(rows: Sequence[Row]) -> str:
    failed = [row for row in rows if "error" in row]
    ended = [row for row in failed if not row["error"].startswith("not run")]
    told = "; ".join(f"{row['part']}: {row['case']} ({row['error']})" for row in ended)
    told = f"Ended without a result: {told}. " if ended else ""
    if len(failed) > len(ended):
        told += f"Cases that were not run, since no time was left: {len(failed) - len(ended)}."
    return told.strip()


def kept(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record without logs, paths and all but the first words of errors."""
    rows = []
    for row in record["rows"]:
        lean = {name: x for name, x in row.items() if name != "log"}
        if "error" in row:
            lean["error"] = row["error"].splitlines()[0].partition("/")[0][:100].rstrip(" .'")
        rows.append(lean)
    return {"rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="keep what gpu.py measured")
    parser.add_argument("records", type=Path, nargs="+", help="JSON files of gpu.py")
    args = parser.parse_args()
    rows = list[Row]()
    for file in args.records:
        measured = json.loads(file.read_text())["rows"]
        # Parts that measure no time may have ended before the environment's row.
        measured.sort(key=lambda row: row["part"] != "environment")
        if not measured or measured[0]["part"] != "environment":
            parser.error(f"{file} must have the part environment: measure it in the same command")
        rows += measured
    to = Path(__file__).with_name("results") / "gpu.json"
    before = json.loads(to.read_text())["rows"] if to.exists() else []
    again = {_key(row) for row in rows if "result" in row}
    left = [
        session
        for session in _sessions(before)
        if any(_key(row) not in again for row in session if row["part"] != "environment")
    ]
    rows += [row for row in chain(*left) if row["part"] == "environment" or _key(row) not in again]
    record = kept({"rows": rows})
    to.write_text(json.dumps(record, indent=1) + "\n")
    print(told(record))


if __name__ == "__main__":
    main()
