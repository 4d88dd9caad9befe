"""The same bytes twice: beside a busy neighbour, and after kill -9 at any moment."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from processes_helpers import processes_of

from quintet.checkpoints import checkpoint
from quintet.errors import CheckpointError

SCRIPT = Path(__file__).with_name("exact_run_helpers.py")
KINDS = (
    "atari", "mujoco", "python", "recurrent", "compiled", "compiled_atari", "lockstep",
    "lockstep_pool", "ddpg", "ddpg_lockstep", "acer", "acer_lockstep",
    "stages", "stages_lockstep", "schedule", "schedule_lockstep", "levels", "levels_lockstep",
    "own", "own_lockstep",
)  # fmt: skip
slow = pytest.mark.slow


def start(kind: str, run_dir: Path, **environ: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", SCRIPT, kind, run_dir],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen) -> str:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return out


def final_hashes(run_dir: Path) -> dict[str, str]:
    found = checkpoint.latest(run_dir / "checkpoints", warn=print)
    assert found is not None
    hashes = checkpoint.tensor_hashes(found)
    names = " ".join(hashes)
    of_acer, of_ddpg = "network/critic_head." in names, "network/actor." in names
    memory = "optimizer/mean_sq" if of_acer else "optimizer/exp_avg"
    for part in ("network/", memory, "average/" if of_acer or of_ddpg else "reward_moments/"):
        assert part in names
    return hashes


def updates_of(out: str) -> int:
    return int(re.search(r"^updates (\d+)$", out, re.M)[1])


def checkpoints(run_dir: Path) -> int:
    return len(list((run_dir / "checkpoints").glob("0*")))


def check_twice(kind: str, folder: Path) -> None:
    alone = finish(start(kind, folder / "alone"))
    assert updates_of(alone) >= 200
    neighbours = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())
    ]
    try:
        finish(start(kind, folder / "beside"))
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    assert final_hashes(folder / "beside") == final_hashes(folder / "alone")


def check_killed(kind: str, folder: Path, kills: int, seed: int) -> None:
    finish(start(kind, folder / "whole"))
    draw = random.Random(seed)
    run_dir = folder / "killed"
    inside_write = draw.randrange(kills)
    for kill in range(kills):
        if kill == inside_write:
            # The second write of this process: its first checkpoint stands, the next one is torn.
            process = start(kind, run_dir, KILL_IN_WRITE="3" if kill == 0 else "2")
            process.wait(timeout=300)
        else:
            process = start(kind, run_dir, PAUSE_S="0.05")
            deadline = time.monotonic() + 120
            while checkpoints(run_dir) < 2 or "resumed" not in log(run_dir, kill):
                assert process.poll() is None, process.stdout.read()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(draw.uniform(0.0, 0.6))
            assert process.poll() is None, "the run ended before it was killed"
            workers = processes_of(process.pid)
            if workers and kill % 2:  # the run goes back by itself, and is killed on that way
                draw.choice(workers).kill()
                time.sleep(draw.uniform(0.0, 4.0))
            process.kill()
            process.wait()
        assert process.returncode == -signal.SIGKILL
        process.stdout.close()
    out = finish(start(kind, run_dir))
    resumed = re.search(r"resumed at update ([\d,]+)", out)
    assert int(resumed[1].replace(",", "")) > 0
    assert final_hashes(run_dir) == final_hashes(folder / "whole")


def log(run_dir: Path, kill: int) -> str:
    """What the run has said so far; the first process has nothing to resume from."""
    text = (run_dir / "log.txt").read_text() if (run_dir / "log.txt").exists() else ""
    return "resumed" if kill == 0 or text.count("resumed") >= kill else text


@slow
@pytest.mark.parametrize(
    "kind", ["python", "atari", "mujoco", "recurrent", "compiled", "lockstep_pool", "ddpg_lockstep"]
)
def test_the_same_bytes_beside_a_busy_neighbour(kind: str, tmp_path: Path) -> None:
    check_twice(kind, tmp_path)


@slow
def test_the_same_bytes_after_a_kill_inside_a_checkpoint_write(tmp_path: Path) -> None:
    check_killed("python", tmp_path, kills=1, seed=0)


@slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bytes_after_five_kills(kind: str, tmp_path: Path) -> None:
    check_killed(kind, tmp_path, kills=5, seed=KINDS.index(kind))


def exact_ones(run_dir: Path) -> int:
    """How many there are, but for those that the run removes while they are read."""
    count = 0
    for folder in sorted((run_dir / "checkpoints").glob("0*")):
        with suppress(CheckpointError):
            count += checkpoint.read(folder).meta["exact"]
    return count


def newest_is_exact(run_dir: Path) -> bool:
    try:
        newest = checkpoint.latest(run_dir / "checkpoints", warn=print)
    except CheckpointError:  # the run, which goes on, has removed what was being read
        return True
    assert newest is not None
    return bool(newest.meta["exact"])


@slow
def test_the_same_bytes_after_kills_between_exact_checkpoints(tmp_path: Path) -> None:
    """By the default rule, most checkpoints are not exact; what they hold is given up."""
    finish(start("seldom", tmp_path / "whole"))
    draw = random.Random(0)
    run_dir, lost = tmp_path / "killed", 0
    for kill in range(4):
        process = start("seldom", run_dir, PAUSE_S="0.02", RESUME="exact")
        deadline = time.monotonic() + 120
        while "resumed" not in log(run_dir, kill) or not exact_ones(run_dir):
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(draw.uniform(0.5, 2.0))
        while kill == 3 and not lost and newest_is_exact(run_dir):
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert process.poll() is None, "the run ended before it was killed"
        process.kill()
        process.wait()
        process.stdout.close()
        lost += not newest_is_exact(run_dir)
    assert lost  # once at least there was something off the path
    finish(start("seldom", run_dir, RESUME="exact"))
    assert final_hashes(run_dir) == final_hashes(tmp_path / "whole")


@pytest.mark.parametrize("lag", [0, pytest.param(1, marks=slow)])
def test_lockstep_gives_the_same_bytes_whatever_the_number_of_workers(
    lag: int, tmp_path: Path
) -> None:
    """And with lag 0 those of serial, an inference server's included."""
    import quintet

    def run(name: str, **runtime: object) -> dict[str, str]:
        config = {
            "env.num_streams": 4,
            "env.streams_per_group": 1,
            "unroll_steps": 16,
            "minibatch_steps": 32,
            "eval.episodes": 0,
            "report.sinks": ["jsonl"],
            "checkpoint.interval_iterations": 2,
            "checkpoint.max_cut_frac": 1.0,
        }
        config |= {f"runtime.{key}": value for key, value in runtime.items()}
        quintet.train("ppo", "CartPole-v1", 320, 3, tmp_path / name, config)
        return final_hashes(tmp_path / name)

    lockstep = {"kind": "lockstep", "lag": lag}
    one = run("one", **lockstep, num_workers=1)
    assert run("two", **lockstep, num_workers=2) == one
    if lag == 0:
        assert run("serial") == one
        assert run("served", **lockstep, num_workers=1, inference="server") == one
    else:
        assert run("serial") != one


def test_another_seed_gives_other_bytes(tmp_path: Path) -> None:
    """What the comparisons above would miss if hashes did not depend on the run at all."""
    import quintet

    hashes = []
    for seed in (1, 2):
        config = {
            "env.num_streams": 2,
            "unroll_steps": 16,
            "minibatch_steps": 16,
            "normalize_observations": True,
            "eval.episodes": 0,
        }
        quintet.train(
            "ppo",
            "CartPole-v1",
            64,
            seed,
            tmp_path / str(seed),
            {**config, "report.sinks": ["jsonl"]},
        )
        hashes.append(final_hashes(tmp_path / str(seed)))
    changed = [name for name in hashes[0] if hashes[0][name] != hashes[1][name]]
    assert any("network/" in name for name in changed)
    assert any("normalizer/" in name for name in changed)
