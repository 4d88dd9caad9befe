"""A replay that is filled, drawn from and saved, in a process of its own:
`replay_run_helpers.py KIND FOLDER PAUSE_S`.  Killed and started again, it goes on
from its last checkpoint.

``FOLDER/digests.txt`` gets a line per iteration: its number, and a hash of all that was drawn.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from replay_streams_helpers import Run, make, plan

from quintet.runtime.replay.replay import Replay
from quintet.runtime.replay.stored_batch import as_array
from quintet.types import Rollout

STREAMS, UNROLL, INTERVAL, ITERATIONS = 3, 4, 5, 60


def open_replay(kind: str, folder: Path) -> Replay:
    """Small enough to wrap around several times."""
    folder.mkdir(exist_ok=True)
    draws = {"windows": "owed", "sequences": "poisson"}[kind]
    steps = {"windows": 3, "sequences": UNROLL}[kind]
    return make(
        plan(kind, capacity_steps=180, steps=steps, draws=draws, rate=0.7, columns=16),
        STREAMS,
        folder=folder / "replay",
        slack_steps=INTERVAL * UNROLL,
    )


def digest(batches: list[Rollout]) -> str:
    """Of every byte of the batches."""
    found = hashlib.sha256()
    for batch in batches:
        for name, value in vars(batch).items():
            tensors = value if isinstance(value, dict) else {"": value}
            for leaf, x in tensors.items():
                found.update(f"{name}/{leaf}".encode())
                found.update(as_array(x).tobytes() if hasattr(x, "shape") else repr(x).encode())
    return found.hexdigest()


def batches() -> list[Rollout]:
    """The same ones each time; all streams are restarted after each checkpoint."""
    run = Run(make(plan("windows", capacity_steps=180), STREAMS), STREAMS, UNROLL, 11)
    found = []
    for iteration in range(1, ITERATIONS + 1):
        found.append(run.collect(list(range(STREAMS))))
        if iteration % INTERVAL == 0:
            run.restart()
    return found


def main(kind: str, folder: Path, pause_s: float) -> None:
    replay, fresh, done = open_replay(kind, folder), batches(), 0
    saved = folder / "checkpoint.json"
    if saved.exists():
        state = json.loads(saved.read_text())
        done = state["iteration"]
        replay.load(state["replay"])
        replay.cut()
    with (folder / "digests.txt").open("a") as out:
        for iteration in range(done + 1, ITERATIONS + 1):
            batch = fresh[iteration - 1]
            replay.store(batch)
            drawn = list(replay.draws(int(batch.valid.sum()), iteration))
            print(iteration, replay.size, digest(drawn), file=out, flush=True)
            time.sleep(pause_s)
            if iteration % INTERVAL == 0:
                state = {"iteration": iteration, "replay": replay.save()}
                written = folder / "checkpoint.tmp"
                written.write_text(json.dumps(state))
                os.replace(written, saved)
                replay.cut()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
