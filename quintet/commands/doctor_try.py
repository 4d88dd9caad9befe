"""Training by the options of a run and by a finding's command, side by side: ``doctor --try``."""

import os
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from quintet.doctor.curves import Level
from quintet.errors import ConfigError
from quintet.observe.run_summary import read_summary
from quintet.options.command import parse
from quintet.options.layers import Layer
from quintet.options.resolve import Loaded, check_spaces
from quintet.options.saved import load_config
from quintet.system.files import shown

_OF_BUDGET = ("budget-short", "few-updates")  # trials have fixed time: more steps change nothing
_CLEARLY = 2.0  # standard errors


def tried(result: dict[str, Any], minutes: float) -> dict[str, Any]:
    """Scores of the run's options and of the first finding's command, trained for as long.

    Raises:
        ConfigError: no finding has a command that can be tried.
        UntrustedError: the run names code that may not be imported.
    """
    found = next(
        (
            each
            for each in result["findings"]
            if each["command"].startswith("quintet train") and each["name"] not in _OF_BUDGET
        ),
        None,
    )
    if found is None:
        raise ConfigError(
            "--try needs a finding whose command changes options, and there is none: leave it out"
        )
    folder = Path(result["target"]).absolute()
    words = shlex.split(found["command"])[2:]
    at = words.index("--run-dir")
    remedy, base = words[:at], [*words[:1], "--config", str(folder / "config.yaml")]
    # Code that the folder names is only imported where the run may be resumed here.
    load_config(words[0], [], Layer("doctor", {"run_dir": str(folder)}))
    place = folder.with_name(f"{folder.name}-try")
    pair = [_loaded(own, place / name) for own, name in ((base, "as-it-was"), (remedy, "changed"))]
    from quintet.search.seed_group import run_seeds

    with redirect_stdout(sys.stderr):
        run_seeds(pair, None, minutes)
    levels = [_level(place / name) for name in ("as-it-was", "changed")]
    changed = shlex.join(remedy[3:])
    return {
        "changed": changed,
        "folder": str(shown(place)),
        "returns": [None if x is None else x.mean for x in levels],
        "lines": _lines(levels, changed, f"{minutes:g} minutes", str(shown(place))),
    }


def _loaded(words: list[str], folder: Path) -> Loaded:
    # Resuming keeps the streams and the like, so that only the finding's option differs.
    asked = parse("train", [*words, "--run-dir", os.fspath(folder), "--resume", "latest"])
    loaded = load_config(asked.algo, asked.files, asked.options, overwrite=True)
    check_spaces(loaded)
    return loaded


def _level(folder: Path) -> Level | None:
    """The level of the returns in the last third of a run."""
    from quintet.doctor.run import seen_of

    seen = seen_of(read_summary(folder))
    return seen[0].level(2 / 3, 1.0) if seen else None


def _lines(levels: list[Level | None], changed: str, time: str, place: str) -> list[str]:
    lines = [f"tried for {time} each, in {place}:"]
    for name, level in zip(("as it was", changed), levels, strict=True):
        result = "no episode ended" if level is None else (
            f"mean return {level.mean:.4g} of the last {level.count:.0f} episodes"
        )  # fmt: skip
        lines.append(f"   {name}: {result}")
    before, after = levels
    if before is not None and after is not None:
        noise = _CLEARLY * (before.error**2 + after.error**2) ** 0.5
        gap = after.mean - before.mean
        what = "helps" if gap > noise else "harms" if gap < -noise else "makes no clear difference"
        lines.append(f"   the change {what} so far (one seed)")
    return lines
