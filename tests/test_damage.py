"""Run folders that were damaged at random: no traceback, no hang, no other result in silence."""

import shutil
import traceback
from pathlib import Path
from typing import Any

import damage_helpers
import numpy as np
import pytest


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    made = damage_helpers.make_runs(root)
    return made, damage_helpers.undamaged(made, root)


def suffer(runs: Any, tmp_path: Path, seed: int, commands: tuple[Any, ...], mutations: int) -> str:
    """One damaged folder, each command on a copy of its own; says what went wrong, "" if nothing.

    Drawn by the seed alone, so that what was found can be found again.
    """
    made, sound = runs
    name = ("finished", "half")[seed % 2]
    folder = tmp_path / "damaged"
    shutil.copytree(made[name], folder)
    rng = np.random.default_rng(seed)
    try:
        how = [damage_helpers.mutate(folder, rng) for _ in range(mutations)]
        for command in commands:
            copy = tmp_path / "copy"
            shutil.copytree(folder, copy)
            told = f"seed {seed}: {name}, {'; '.join(how)}, {command.__name__}"
            try:
                done = damage_helpers.run_command(lambda c=command, f=copy: c(f))
            except Exception as error:
                return f"{told}: {''.join(traceback.format_exception(error)[-4:])}"
            finally:
                shutil.rmtree(copy)
            wrong = damage_helpers.judge(sound[name, command.__name__], done)
            if wrong:
                return f"{told}: {wrong}: {done.said}"
    finally:
        shutil.rmtree(folder)
    return ""


def test_undamaged_runs_go_on_to_the_same_end(runs):
    """The half-done run's results are those of the finished one: what is compared is the run's."""
    _, sound = runs
    assert sound["half", "train"] == sound["finished", "train"]
    assert len(sound["finished", "train"][3]) > 5


def test_damaged_folders(runs, tmp_path):
    faults = []
    for seed in range(4 * len(damage_helpers.COMMANDS)):
        command = damage_helpers.COMMANDS[(seed // 2) % len(damage_helpers.COMMANDS)]
        faults.append(suffer(runs, tmp_path, seed, (command,), 1))
    assert not [fault for fault in faults if fault]


@pytest.mark.slow
def test_many_damaged_folders(runs, tmp_path):
    commands = (*damage_helpers.COMMANDS, *damage_helpers.DRAWING)
    faults = [
        suffer(runs, tmp_path, seed, commands, 1 + seed % 3) for seed in range(10_000, 12_000)
    ]
    assert not [fault for fault in faults if fault]
