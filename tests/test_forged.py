"""Run folders of strangers whose files say something hostile, with hashes that fit."""

import json
import shutil
from pathlib import Path
from typing import Any

import forge_helpers
import numpy as np
import pytest

import quintet
from quintet.checkpoints import checkpoint
from quintet.commands import cli
from quintet.errors import CheckpointError

ENV = "Pendulum-v1"
OPTIONS: dict[str, Any] = {
    "env.num_streams": 2, "unroll_steps": 16, "replay_capacity_steps": 200, "batch_size": 4,
    "updates_per_env_step": 0.1, "preset": "none", "checkpoint.keep": 2,
    "checkpoint.interval_iterations": 8, "checkpoint.max_cut_frac": 1.0, "runtime.kind": "serial",
    "eval.episodes": 1, "report.progress": False, "report.interval_s": 0.0,
    "model.policy_hidden": [4], "model.value_hidden": [4, 4], "report.sinks": ["jsonl"],
}  # fmt: skip
POPULATION = {
    "population.size": 2, "population.start_env_steps": 32, "population.period_env_steps": 16,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {"one": {}, "population": POPULATION}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for kind, more in KINDS.items():
        quintet.train("ddpg", ENV, 288, seed=1, run_dir=root / kind, config=OPTIONS | more)
    return root


def words(command: str, kind: str, folder: Path) -> list[str]:
    asked = [
        f"--{name.replace('_', '-')}={str(x).lower() if isinstance(x, bool) else json.dumps(x)}"
        for name, x in (OPTIONS | KINDS[kind]).items()
        if not isinstance(x, str)
    ]
    asked += ["--preset", "none", "--runtime.kind", "serial"]
    train = ["train", "ddpg", "--env", ENV, "--total-steps", "320", "--seed", "1", *asked]
    beside = folder.parent
    return {
        "train": [*train, "--run-dir", str(folder)],
        "init": [*train, "--run-dir", str(beside / "new"), "--init-from", str(folder)],
        "config": ["config", *train[1:], "--run-dir", str(folder)],
        "eval": ["eval", str(folder), "--episodes", "1"],
        "best": ["eval", str(folder), "--episodes", "1", "--checkpoint", "best"],
        "plot": ["plot", str(folder), "--out", str(beside / "p.svg")],
        "bars": ["plot", str(folder), "--out", str(beside / "p.svg"), "--kind", "bars"],
        "lineage": ["plot", str(folder), "--out", str(beside / "p.svg"), "--lineage"],
    }[command]


WRITING = ("train", "init")
COMMANDS = ("train", "train", "config", "eval", "best", "plot", "bars", "lineage", "init")


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def suffer(runs: Path, tmp_path: Path, seed: int, capsys) -> None:
    """One forged folder and one command; any error that is not quintet's own fails the test."""
    kind, folder = list(KINDS)[seed % 2], tmp_path / "forged"
    rng = np.random.default_rng(seed)
    shutil.copytree(runs / kind, folder)
    told = forge_helpers.forge(folder, rng)
    before, around = content(folder), {path.name for path in tmp_path.iterdir()}
    command = COMMANDS[int(rng.integers(len(COMMANDS)))]
    capsys.readouterr()
    try:
        status = cli.main(words(command, kind, folder))
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {kind}, {told}, {command}") from error
    said = capsys.readouterr().err
    assert status in (0, 1, 2), (seed, told, command, said)
    assert said.count("error: ") == (status != 0), (seed, told, command, said)
    assert len(said) < 5_000, (seed, told, command, said[:500])
    if command not in WRITING:
        assert content(folder) == before, (seed, told, command)
    new = {path.name for path in tmp_path.iterdir()} - around
    assert new <= {"new", "p.svg"}, (seed, told, command, new)
    for place in (folder, tmp_path / "new"):
        shutil.rmtree(place, ignore_errors=True)


def test_forged_folders(runs, tmp_path, capsys):
    for seed in range(8):
        suffer(runs, tmp_path, seed, capsys)


@pytest.mark.slow
def test_many_forged_folders(runs, tmp_path, capsys):
    for seed in range(10_000, 12_000):
        suffer(runs, tmp_path, seed, capsys)


def forged(runs: Path, tmp_path: Path, change: Any, kind: str = "one") -> Path:
    """A copy of a run in whose newest checkpoint `change` was made."""
    folder = tmp_path / "forged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(runs / kind, folder)
    file = checkpoint.latest(folder / "checkpoints", warn=print).path / "meta.json"
    (meta,) = forge_helpers.documents(file)
    change(meta)
    forge_helpers.write(file, [meta])
    return folder


REPLAY: dict[str, Any] = {
    "size": lambda rows: rows.update(size=rows["size"] - 1),
    "stored": lambda rows: rows.update(stored=10**6),
    "first": lambda rows: rows.update(first=[0] * len(rows["first"])),
    "last": lambda rows: rows.update(last=[2**53] * len(rows["last"])),
    "head": lambda rows: rows["head"].pop(),
    "checksums": lambda rows: rows["checksums"][0].pop(),
    "stacks": lambda rows: rows["layout"].update(stacks={"obs/obs": 0}),
    "pools": lambda rows: rows.update(pools=[2**53]),
    "ring_rows": lambda rows: rows["layout"].update(ring_rows=2**53),
    "flags": lambda rows: rows.update(newest_flags=[300, 1]),
}


@pytest.mark.parametrize("what", REPLAY)
def test_a_forged_replay_is_refused(runs, tmp_path, capsys, what):
    """None of these can be seen in hashes, and none changes what is reported."""
    folder = forged(runs, tmp_path, lambda meta: REPLAY[what](meta["replay"]["rows"]))
    assert cli.main(words("train", "one", folder)) == 1
    said = capsys.readouterr().err
    assert "replay" in said or "rows" in said, said


@pytest.mark.parametrize("name", ["owed_draws", "drawn_rows", "counted_steps"])
def test_forged_draws_are_refused(runs, tmp_path, capsys, name):
    folder = forged(runs, tmp_path, lambda meta: meta["replay"].update({name: 10**9}))
    assert cli.main(words("train", "one", folder)) == 1
    assert "draws" in capsys.readouterr().err


META: dict[str, Any] = {
    "counters.env_steps": lambda meta: meta["counters"].update(env_steps=-1),
    "env_steps must equal": lambda meta: meta["counters"].update(env_steps=1),
    "wall_s": lambda meta: meta.pop("wall_s"),
    "report_bytes": lambda meta: meta.update(report_bytes=["x", "y"]),
    "system": lambda meta: meta.update(system=[]),
    "learner.updates": lambda meta: meta["learner"].update(updates=0.5),
    "learner.has_reference": lambda meta: meta["learner"].update(has_reference=1),
    "best": lambda meta: meta.update(best="x"),
    "policy.algo": lambda meta: meta["policy"].update(algo=["ppo"]),
    "policy.own": lambda meta: meta["policy"].update(own=3),
    "policy.threads": lambda meta: meta["policy"].update(threads=-1),
    "policy.eval_max_steps": lambda meta: meta["policy"].update(eval_max_steps=[]),
}


@pytest.mark.parametrize("what", META)
def test_what_a_checkpoint_says_is_checked(runs, tmp_path, capsys, what):
    folder = forged(runs, tmp_path, META[what])
    shutil.rmtree(min((folder / "checkpoints").iterdir()))
    assert cli.main(words("train", "one", folder)) == 1
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("value", [0.5, None, [], ""])
def test_a_forged_encoder_is_no_policys(runs, tmp_path, capsys, value):
    folder = forged(runs, tmp_path, lambda meta: meta["policy"]["model"].update(encoder=value))
    assert cli.main(words("eval", "one", folder)) == 1
    assert "must hold a policy" in capsys.readouterr().err


@pytest.mark.parametrize("value", [0.5, None, []])
def test_a_forged_environment_is_no_policys(runs, tmp_path, capsys, value):
    folder = forged(runs, tmp_path, lambda meta: meta["policy"]["env"].update(id=value))
    assert cli.main(words("eval", "one", folder)) == 1
    assert "must hold a policy" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_a_forged_space_is_no_donors(runs, tmp_path, capsys, name):
    folder = forged(runs, tmp_path, lambda meta: meta["policy"].update({name: {"kind": "box"}}))
    shutil.rmtree(min((folder / "checkpoints").iterdir()))
    assert cli.main(words("init", "one", folder)) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1
    assert "none (" in said


def test_a_forged_checkpoint_is_passed_over_for_the_one_before(runs, tmp_path, capsys):
    folder = tmp_path / "forged"
    shutil.copytree(runs / "one", folder)
    *_, before, newest = sorted((folder / "checkpoints").iterdir())
    (meta,) = forge_helpers.documents(newest / "meta.json")
    forge_helpers.write(newest / "meta.json", [meta | {"wall_s": "long"}])
    capsys.readouterr()
    assert cli.main(words("train", "one", folder)) == 0
    said = capsys.readouterr()
    assert "wall_s: input should be a valid number" in said.out + said.err
    assert f"Using {before} instead" in said.out + said.err


DISCRETE: dict[str, Any] = {"kind": "discrete", "n": 5, "start": 7}
BOX: dict[str, Any] = {"kind": "box", "shape": [11], "dtype": "float32", "low": -1, "high": 1}


@pytest.mark.parametrize(
    "own",
    [
        {"action_space": BOX},
        {"action_space": DISCRETE},
        {"observation_space": BOX},
        {"observation_space": {"kind": "dict", "items": [["a", BOX]]}},
    ],
)
def test_own_spaces_of_another_form_are_refused(runs, tmp_path, own):
    folder = forged(runs, tmp_path, lambda meta: meta["policy"]["own"].update(own))
    with pytest.raises(CheckpointError, match="spaces must have the shapes of the stored spaces"):
        quintet.load(folder)
