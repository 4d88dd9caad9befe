"""Draws the terminal's dashboard of a real run, some way through it.

python benchmarks/dashboard_picture.py docs/images/dashboard.svg
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from rich.console import Console

import quintet
from quintet.observe.dashboard import layout
from quintet.observe.pace import NO_SCORE, Score
from quintet.observe.view import View
from quintet.run import trainer

COLUMNS, ROWS = 104, 30
SHARE = 0.06  # of the budget, when the picture is taken


class Camera:
    """A progress that keeps the dashboard's view and draws it once."""

    def __init__(self, view: View, out: Path) -> None:
        self.view, self.out = view, out

    def update(self, report: Mapping[str, float], recent: Score = NO_SCORE) -> None:
        self.view.add(report, recent)
        if self.view.pace.done >= SHARE * self.view.pace.total and not self.out.exists():
            console = Console(width=COLUMNS, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
            console.print(layout(self.view, console, ROWS))
            self.out.write_text(console.export_svg(title="quintet train ppo --env LunarLander-v3"))

    def stage(self, text: str) -> None: ...

    def waiting(self, text: str) -> None: ...

    def say(self, message: str) -> None: ...

    def close(self) -> None: ...


def main(out: Path) -> None:
    out.unlink(missing_ok=True)

    def make_camera(view: View, _: TextIO) -> Camera:
        # Not where this machine keeps temporary files.
        view.folder = f"runs/{view.folder.partition('/runs/')[2]}"
        return Camera(view, out)

    trainer.make_progress = make_camera
    with tempfile.TemporaryDirectory() as folder:
        quintet.train(
            "ppo",
            "LunarLander-v3",
            run_dir=Path(folder) / "runs" / "ppo-LunarLander-v3-s0",
            on_report=lambda _: out.exists(),
            config={"report.sinks": ["jsonl"]},
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
