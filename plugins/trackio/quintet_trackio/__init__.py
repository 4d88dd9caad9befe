"""Reports of quintet's runs to Trackio.

Project and place come from environment variables: TRACKIO_PROJECT (default: quintet), and Trackio's
own, such as TRACKIO_DIR and TRACKIO_SPACE_ID.
"""

import os
from typing import Any

import numpy as np

from quintet.observe.sinks import PackageSink, SinkRun


def _open(run: SinkRun) -> Any:
    import trackio  # takes seconds

    return trackio.init(
        os.environ.get("TRACKIO_PROJECT", "quintet"),
        name=run.run_dir.name,
        config={name: str(value) for name, value in run.options.items()},
        resume="allow" if run.env_steps >= 0 else "never",
        embed=False,
        auto_log_gpu=False,  # quintet reports the machine's use itself
        auto_log_cpu=False,
    )


def _write(to: Any, report: dict[str, float]) -> None:
    to.log(dict(report), step=int(report.get("env_steps", 0)))


def _text(to: Any, name: str, text: str) -> None:
    import trackio

    to.log({name: trackio.Markdown(f"```\n{text}\n```")})


def _picture(to: Any, name: str, env_steps: int, picture: np.ndarray) -> None:
    import trackio

    to.log({name: trackio.Image(picture)}, step=env_steps)


def _close(to: Any) -> None:
    to.finish()


SINK = PackageSink(open=_open, write=_write, text=_text, picture=_picture, close=_close)
