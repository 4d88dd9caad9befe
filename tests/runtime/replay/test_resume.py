"""A replay in its files: the same draws after a resume, and nothing but the checkpoint's rows."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from replay_run_helpers import INTERVAL, ITERATIONS, STREAMS, UNROLL, batches, digest, open_replay
from replay_streams_helpers import ROWS, Chances, Run, make, plan

from quintet.errors import CheckpointError, ConfigError
from quintet.observe.timing import PhaseTimer
from quintet.runtime import loop
from quintet.runtime.delivery import Batch, Steps
from quintet.runtime.replay.replay import Replay
from quintet.types import Publication, Rollout

SCRIPT = Path(__file__).with_name("replay_run_helpers.py")
KINDS = ("windows", "sequences")


def step(replay: Replay, batch: Rollout, iteration: int) -> str:
    replay.store(batch)
    return digest(list(replay.draws(int(batch.valid.sum()), iteration)))


def saved(replay: Replay) -> dict:
    """The state as it comes back from a checkpoint's JSON."""
    return json.loads(json.dumps(replay.save()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])
def test_draws_after_a_resume_are_those_of_the_uninterrupted_run(
    kind: str, seed: int, tmp_path: Path
) -> None:
    fresh, draw = batches(), random.Random(seed)
    whole, hurt = open_replay(kind, tmp_path / "whole"), open_replay(kind, tmp_path / "hurt")
    state = None
    drawn = 0
    for begin in range(0, ITERATIONS, INTERVAL):
        part = range(begin + 1, begin + INTERVAL + 1)
        wanted = [step(whole, fresh[i - 1], i) for i in part]
        while True:
            if draw.random() < 0.5:
                # Something else was stored since the checkpoint, and lost.
                other = Run(make(plan("windows", capacity_steps=180), 3), 3, UNROLL, begin + 99)
                for i in range(draw.randint(1, INTERVAL)):
                    step(hurt, other.collect([0, 1, 2]), i)
                hurt = open_replay(kind, tmp_path / "hurt")
                if state is not None:
                    hurt.load(state)
                    hurt.cut()
            else:
                break
        assert [step(hurt, fresh[i - 1], i) for i in part] == wanted
        assert hurt.size == whole.size
        assert hurt.metrics() == whole.metrics()
        drawn += len(set(wanted))
        state = saved(hurt)
        saved(whole)
        for replay in (whole, hurt):
            replay.cut()
    assert drawn > ITERATIONS / 2


@pytest.mark.parametrize("kind", KINDS)
def test_streams_that_were_not_restarted_go_on_after_a_resume(kind: str, tmp_path: Path) -> None:
    """Draws near the newest rows, before anything else is stored and after."""
    replay, run = filled(kind, tmp_path, 6, Chances(end=0, empty=0, lost=0, budget=0))

    def drawn(iteration: int) -> str:
        return digest([batch for i in range(9) for batch in replay.draws(30, iteration + i)])

    state = saved(replay)
    at_once = drawn(10)
    following = run.collect([0, 1, 2])
    head, after = replay._store.head.tolist(), drawn(20)
    replay = open_replay(kind, tmp_path)
    replay.load(state)
    assert drawn(10) == at_once
    replay.store(following)
    assert replay._store.head.tolist() == head
    assert drawn(20) == after


def start(kind: str, folder: Path, pause_s: float) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, SCRIPT, kind, folder, str(pause_s)]
    return subprocess.Popen(words, env=os.environ | found)


def digests(folder: Path) -> dict[int, str]:
    """The last line of each iteration; a line torn by a kill is written again."""
    lines = (folder / "digests.txt").read_text().splitlines()
    return {int(line.split()[0]): line for line in lines if len(line.split()) == 3}


@pytest.mark.slow
def test_the_same_draws_after_kill_9_at_any_moment(tmp_path: Path) -> None:
    kind, draw = "sequences", random.Random(5)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    processes = [start(kind, whole, 0.0), start(kind, killed, 0.02)]
    for kill in range(2):
        if kill:
            processes.append(start(kind, killed, 0.02))
        before = progress(killed)
        deadline = time.monotonic() + 60
        while progress(killed) < before + 4 + draw.randint(0, 9):
            assert processes[-1].poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        processes[-1].kill()
        processes[-1].wait()
    assert start(kind, killed, 0.0).wait(timeout=60) == 0
    assert processes[0].wait(timeout=60) == 0
    assert len(digests(whole)) == ITERATIONS
    assert digests(killed) == digests(whole)
    lines = (killed / "digests.txt").read_text().count("\n")
    assert lines > ITERATIONS  # some iterations were made again


def progress(folder: Path) -> int:
    path = folder / "digests.txt"
    return path.read_text().count("\n") if path.exists() else 0


def filled(
    kind: str, folder: Path, count: int, chances: Chances | None = None
) -> tuple[Replay, Run]:
    replay = open_replay(kind, folder)
    run = Run(replay, STREAMS, UNROLL, 3, chances)
    for _ in range(count):
        run.collect(list(range(STREAMS)))
    return replay, run


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_checkpoint_is_whole_or_refused(kind: str, tmp_path: Path) -> None:
    replay, run = filled(kind, tmp_path, 40)
    state = saved(replay)
    for _ in range(INTERVAL):
        run.collect(list(range(STREAMS)))
    saved(replay)
    open_replay(kind, tmp_path).load(state)  # the slack of one interval
    replay = open_replay(kind, tmp_path)
    replay.load(state)
    run = Run(replay, STREAMS, UNROLL, 4, Chances(empty=0))
    for _ in range(3 * INTERVAL):
        run.collect(list(range(STREAMS)))
    with pytest.raises(CheckpointError, match=r"overwritten since.*resume from the newest"):
        open_replay(kind, tmp_path).load(state)


@pytest.mark.parametrize("kind", KINDS)
def test_every_slack_row_leaves_the_checkpoint_whole(kind: str, tmp_path: Path) -> None:
    """The most that may happen between two checkpoints: every unroll follows on a gap."""
    replay, run = filled(kind, tmp_path, 40)
    state = saved(replay)
    for _ in range(INTERVAL):
        run.restart()
        run.collect(list(range(STREAMS)))
    open_replay(kind, tmp_path).load(state)


@pytest.mark.parametrize("kind", KINDS)
def test_an_old_checkpoint_is_whole_until_the_rings_are_full(kind: str, tmp_path: Path) -> None:
    data_plan = plan(kind, capacity_steps=400 * STREAMS)
    replay = make(data_plan, STREAMS, folder=tmp_path / "replay", slack_steps=2 * UNROLL)
    run = Run(replay, STREAMS, UNROLL, 0)
    every = list(range(STREAMS))
    run.collect(every)
    state = saved(replay)

    def resumed() -> Replay:
        found = make(data_plan, STREAMS, folder=tmp_path / "replay", slack_steps=2 * UNROLL)
        found.load(state)
        return found

    unrolls = 1
    while not replay.full:
        assert unrolls < 400
        resumed()
        before = replay._store.head.max()
        batch = run.collect(every)
        unrolls += 1
    assert before > 400 > 10 * UNROLL  # far beyond the slack
    assert replay.overwrites(batch)
    while replay._store.head.max() < before + 100:
        run.collect(every)
    with pytest.raises(CheckpointError, match=r"overwritten since.*resume from the newest"):
        resumed()


class Given:
    """Sampling that has these batches."""

    restarts = False

    def __init__(self, batches: list[Rollout]):
        self.batches = iter(batches)

    def publish(self, publication: Publication) -> None: ...

    def restart(self, iteration: int) -> None: ...

    def collect(self, env_steps_left: int, restarts_after: object) -> Batch:
        rollout = next(self.batches)
        steps = int(rollout.valid.sum())
        return Batch(rollout, 0, steps, [], Steps(steps, 0, 0, 0, 0))


class Idle:
    version = updates = 0

    def update(self, batch: Rollout, env_steps: int) -> None: ...

    def publication(self) -> Publication:
        return Publication(0, {})


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_ahead_of_the_others_takes_no_row_of_the_last_checkpoint(
    kind: str, tmp_path: Path
) -> None:
    """As in an async run: every kill after a checkpoint finds all its rows."""
    run = Run(make(plan("windows", capacity_steps=180), STREAMS), STREAMS, UNROLL, 3)
    fresh = [run.collect([0, 1, 1, 2] if i % 7 else [1, 1, 1]) for i in range(ITERATIONS)]
    replay = open_replay(kind, tmp_path)
    states: list[tuple[int, dict]] = []

    def save(exact: bool) -> None:
        counters.checkpoint_iteration = counters.iteration
        states.append((counters.iteration, saved(replay)))

    def killed(batch: Batch) -> bool:
        if states:
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "replay", copy / "replay", dirs_exist_ok=True)
            open_replay(kind, copy).load(states[-1][1])
        return counters.iteration == ITERATIONS

    counters = loop.Counters()
    loop.TrainingLoop(
        loop.Components([Idle()], Given(fresh), [replay]),
        counters,
        loop.Budget(10**9, 2 * INTERVAL),
        loop.Hooks(save, killed, lambda *_: ""),
        PhaseTimer(),
    ).run()
    gaps = [b - a for (a, _), (b, _) in pairwise(states)]
    assert {2, 3} == set(gaps)  # as often as a batch would not fit, and no more


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slack_steps", [UNROLL, 10 * INTERVAL * UNROLL])
def test_rings_keep_their_length_with_any_other_slack(
    kind: str, slack_steps: int, tmp_path: Path
) -> None:
    replay, run = filled(kind, tmp_path, 40)
    lengths = {file.name: file.stat().st_size for file in (tmp_path / "replay").glob("*.bin")}
    slack_unrolls = replay.slack_unrolls
    assert slack_unrolls == INTERVAL
    state = saved(replay)
    replay = Replay(
        plan(kind, capacity_steps=180, steps=UNROLL if kind == "sequences" else 3, columns=16),
        ROWS, STREAMS, 0, tmp_path / "replay", slack_steps,
    )  # fmt: skip
    replay.load(state)
    assert slack_unrolls <= replay.slack_unrolls
    assert {name: (tmp_path / "replay" / name).stat().st_size for name in lengths} == lengths
    run = Run(replay, STREAMS, UNROLL, 4, Chances(empty=0))
    state = saved(replay)
    for _ in range(replay.slack_unrolls):
        run.restart()
        run.collect(list(range(STREAMS)))
    open_replay(kind, tmp_path).load(state)


def test_a_resume_needs_no_room_for_slack_that_its_rings_lack(tmp_path: Path) -> None:
    state = saved(filled("windows", tmp_path, 7)[0])
    data_plan = plan("windows", capacity_steps=180, steps=3, columns=16)
    replay = make(data_plan, STREAMS, folder=tmp_path / "replay", slack_steps=10**13)
    replay.load(state)
    with pytest.raises(ConfigError, match="on the disk"):
        make(data_plan, STREAMS, folder=tmp_path / "other", slack_steps=10**13)


@pytest.mark.parametrize("name", ["rows", "states", "frames-0"])
def test_damage_to_any_row_that_counts_is_found(name: str, tmp_path: Path) -> None:
    replay, _ = filled("sequences", tmp_path, 40)
    state = saved(replay)
    store = replay._store
    assert name != "frames-0" or len(store.stacks["obs/image"]._free) < 16
    path = tmp_path / "replay" / f"{name}.bin"
    whole = path.read_bytes()
    found, count = 0, 60
    for i in range(count):
        spot = random.Random(i).randrange(len(whole))
        damaged = bytearray(whole)
        damaged[spot] ^= 0x40
        path.write_bytes(damaged)
        try:
            open_replay("sequences", tmp_path).load(state)
        except CheckpointError:
            found += 1
        path.write_bytes(whole)
    # Rows beyond history and slack, and free places of the pool, don't count.
    assert found > count / 6
    open_replay("sequences", tmp_path).load(state)


def test_damage_to_the_newest_observation_is_found(tmp_path: Path) -> None:
    replay, _ = filled("windows", tmp_path, 7)
    state = saved(replay)
    store = replay._store
    place = store.rows.at(np.arange(STREAMS), store.head)
    store.rows.fields["obs/vector"][place[1], 2] += 1
    with pytest.raises(CheckpointError, match="stream 1"):
        open_replay("windows", tmp_path).load(state)


def test_missing_files_and_other_layouts_are_refused(tmp_path: Path) -> None:
    replay, _ = filled("windows", tmp_path, 7)
    state = saved(replay)
    other = make(
        plan("windows", capacity_steps=240), STREAMS, folder=tmp_path / "replay", slack_steps=20
    )
    with pytest.raises(CheckpointError, match="rows_per_stream was 60 and is 80"):
        other.load(state)
    with pytest.raises(CheckpointError, match="replay must have format 2, got 1"):
        open_replay("windows", tmp_path).load(state | {"format": 1})
    (tmp_path / "replay" / "rows.bin").unlink()
    with pytest.raises(CheckpointError, match=r"rows.bin of [\d,]+ bytes is missing or"):
        open_replay("windows", tmp_path).load(state)


def test_a_checkpoint_before_anything_was_stored(tmp_path: Path) -> None:
    state = saved(open_replay("windows", tmp_path))
    replay = open_replay("windows", tmp_path)
    replay.load(state)
    run = Run(replay, STREAMS, UNROLL, 3)
    run.collect([0, 1, 2])
    assert replay.size == len(run.lists.live())


def test_streams_that_never_came_can_begin_after_a_resume(tmp_path: Path) -> None:
    replay, run = filled("windows", tmp_path, 0)
    run.collect([0, 2])
    state = saved(replay)
    run.collect([1])
    replay = open_replay("windows", tmp_path)
    replay.load(state)
    assert step(replay, batches()[0], 1) != digest([])


def test_a_new_run_in_an_old_folder_begins_empty(tmp_path: Path) -> None:
    filled("windows", tmp_path, 40)
    replay, run = filled("windows", tmp_path, 3)
    again, _ = filled("windows", tmp_path / "elsewhere", 3)
    assert replay.size == len(run.lists.live())
    assert saved(replay)["rows"] == saved(again)["rows"]


def test_only_new_segments_are_read_at_a_checkpoint(tmp_path: Path, monkeypatch) -> None:
    replay, run = filled("windows", tmp_path, 40)
    saved(replay)
    rings, read = replay._store.rows, []
    checksum = rings._checksum
    monkeypatch.setattr(rings, "_checksum", lambda *a: (read.append(a[1]), checksum(*a))[1])
    run.collect([0, 1, 2])
    saved(replay)
    segments = replay._store.head.max() // replay._layout.segment
    assert len(read) <= 3 * (2 + UNROLL // replay._layout.segment + 1)
    assert min(read) > segments - 8
