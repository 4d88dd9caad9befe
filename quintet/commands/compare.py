"""``quintet compare``: statistics that decide between runs."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, final

from tyro.conf import Positional, UseAppendAction, arg

from quintet.errors import ConfigError
from quintet.observe.metrics import describe, signed
from quintet.observe.run_summary import names_apart, table, text
from quintet.system.files import given_path, shown
from quintet.system.places import run_path
from quintet.system.printing import say


@final
@dataclass(frozen=True)
class Compare:
    """Decides between sides, each a group of runs: scores, intervals, the probability of
    improvement, and how many seeds are missing."""

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="A...")] = ()
    """run folders, folders of seeds or trials, and records (.json); NAME=RUN names a side"""
    others: Annotated[
        UseAppendAction[tuple[tuple[str, ...], ...]], arg(name="with", metavar="B...")
    ] = ()
    """the runs of another side"""
    at_steps: int | None = None
    """score runs at this number of env_steps, from their curves"""
    at_seconds: float | None = None
    """score runs after these seconds of wall time, from their curves"""
    metric: str | None = None
    """score: a number of the environment, env/KEY, in place of the return; -env/KEY: less is
    better"""
    equal: Literal["steps", "seconds"] | None = None
    """score runs where the first run of a task ends, from their curves"""
    bars: str | None = None
    """JSON file {"ENV": {"random": 0, "bar": 1}}: scores that are 0 and 1 over tasks"""
    out: str | None = None
    """file of a picture: .png, .svg or .pdf"""
    as_json: Annotated[bool, arg(name="json")] = False
    """print one JSON object"""

    def execute(self) -> None:
        """Prints the comparison, and draws it."""
        from quintet.observe import comparison_page
        from quintet.observe.comparison import compare
        from quintet.observe.figures import require_format, save
        from quintet.observe.sides import At, read_bars, read_sides, scales, scores

        places = self._places()
        ats: list[At] = [] if self.equal is None else [At(self.equal)]
        ats += [] if self.at_steps is None else [At("steps", self.at_steps)]
        ats += [] if self.at_seconds is None else [At("seconds", self.at_seconds)]
        if len(ats) > 1:
            raise ConfigError(
                "quintet compare must get at most one of --at-steps, --at-seconds and --equal, "
                f"got {len(ats)}: leave the others out"
            )
        out = None if self.out is None else given_path(self.out)
        if out is not None:
            require_format(out)
        bars = read_bars(None if self.bars is None else given_path(self.bars))
        sides = read_sides(places)
        if self.metric is not None and describe(signed(self.metric)[0]) is None:
            raise ConfigError(f"--metric must be a metric of runs, got {self.metric}: correct it")
        found, said = scores(sides, ats[0] if ats else None, self.metric)
        scale, of_scale = scales(sides, found, bars)
        parts = compare(found, scale)
        said += [of_scale] if len(parts) > 1 else []
        if self.as_json:
            of = {s: {task: x.tolist() for task, x in own.items()} for s, own in found.items()}
            whole = {"said": said, "scores": of, "parts": [asdict(part) for part in parts]}
            say(json.dumps(whole))
        else:
            lines = [*said, "", *table([comparison_page.HEADER, *comparison_page.rows(parts)]), ""]
            lines += [*table(comparison_page.profile_rows(parts[-1])), ""]
            say("\n".join([*lines, *comparison_page.sentences(parts)]).rstrip())
        if out is not None:
            drawn = save(comparison_page.figure(parts), out)
            if not self.as_json:
                say(shown(drawn))

    def _places(self) -> dict[str, list[Path]]:
        """The places of each side by its name."""
        named: list[tuple[str, list[Path]]] = []
        for words in (self.runs, *self.others):
            begun = False
            for word in words:
                name, _, place = word.partition("=")
                labels = bool(name and place) and "/" not in name and not given_path(word).exists()
                if labels or not begun:
                    named.append((name if labels else "", []))
                named[-1][1].append(run_path(place if labels else word))
                begun = True
        sides: dict[str, list[Path]] = {}
        short = names_apart([own[0] for _, own in named])
        for (name, own), instead in zip(named, short, strict=True):
            sides.setdefault(text(name or instead), []).extend(own)
        if len(sides) < 2:
            raise ConfigError(
                f"quintet compare must get two sides, got {len(sides)}: quintet compare A... "
                "--with B..."
            )
        return sides
