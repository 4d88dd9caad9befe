"""Folders of strangers that hold several runs: of races, sweeps, groups of seeds and populations,
with links, pipes and hostile values in every place.
"""

import json
import os
import pickle
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import forge_helpers
import numpy as np
import pytest
from small_run_helpers import SMALL

from quintet import cli
from quintet.errors import QuintetError
from quintet.race import choosing, course, portfolio
from quintet.race.portfolio import Entry
from quintet.run import launch, seed_group
from quintet.run.seed_group import Member, Outcome

ENV = "CartPole-v1"
OPTIONS: dict[str, Any] = {**SMALL, "model.policy_hidden": [4], "report.sinks": ["jsonl"]}
WORDS = [
    word
    for name, value in OPTIONS.items()
    if name != "report.sinks"
    for word in (f"--{name}", json.dumps(value))
]
Make = Callable[[str], Path]
KINDS = ("moving", "sweep", "running", "seeds", "race", "population")
POPULATION = ("--population.size", "2", "--population.start-env-steps", "64")


def words(kind: str, folder: Path) -> list[str]:
    """The command whose folder it is."""
    common = ["--env", ENV, "--run-dir", str(folder), *WORDS]
    train = ["train", "ppo", *common, "--total-steps", "128"]
    return {
        "sweep": [
            *("sweep", "ppo", *common, "--total-steps", "128", "--eval.episodes", "1"),
            *("--search", "learning_rate", "--trials", "3", "--best", "1", "--seeds-of-best", "1"),
        ],
        "seeds": [*train, "--seeds", "1,2"],
        "population": [*train[:-1], "256", *POPULATION],
    }.get(kind, ["train", "auto", *common, "--minutes", "1", "--jobs", "1"])


def in_process(module: str, members: Sequence[Member], *_: Any, **more: Any) -> list[Outcome]:
    """Trains runs in this process, for 128 env_steps each."""
    return [Outcome(0, {"status": "ready"}) if x.name == "ready" else trained(x) for x in members]


def trained(member: Member) -> Outcome:
    payload = pickle.loads(member.payload)
    loaded = pickle.loads(payload["run"])
    config = loaded.config.model_copy(update={"total_env_steps": 128})
    try:
        result = launch.run(replace(loaded, config=config))
    except QuintetError as error:
        return Outcome(1, {"error": str(error)})
    metrics = result.metrics
    answer = {"status": "finished", "metrics": metrics, "score": metrics.get("eval/return_mean")}
    if "begin" in payload:
        score = float(config.learner.learning_rate)
        answer = {"status": "ran", "returns": [score, score + 1.0], "sampled": []}
        answer |= {"evaluation_s": 1.0}
        answer |= {"env_steps": 128, "speed": 100.0, "training": score}
    return Outcome(0, answer)


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    """Runs of groups train in this process, and a race has two entries."""
    own = [Entry(x, "ppo", {"learning_rate": y}, "a test") for x, y in (("a", 1e-3), ("b", 2e-3))]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(seed_group, "run_members", in_process)
        patched.setattr(portfolio, "entries", lambda _: own)
        patched.setattr(choosing, "_LEAST_EXAMINED_S", 1e9)
        patched.setattr(course, "prepare", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory, here: None) -> Callable[[str], Path]:
    """Makes a folder of a kind, once."""
    pytest.importorskip("optuna")
    root: Path = tmp_path_factory.mktemp("groups")

    @cache
    def make(kind: str) -> Path:
        folder = root / kind
        if kind in ("moving", "running"):
            shutil.copytree(make("race"), folder)
            unfinished(folder, kind)
        else:
            assert cli.main(words(kind, folder)) == 0
        return folder

    return make


def unfinished(folder: Path, state: str) -> None:
    """Makes the folder of a finished race that of one whose winner is not moved yet, or which is in
    its first rung.
    """
    path = folder / "race" / "race.json"
    held = json.loads(path.read_text())
    place = folder / "race" / held["winner"]
    place.mkdir()
    for each in [x for x in folder.iterdir() if x.name not in ("race", ".lock")]:
        each.rename(place / each.name)
    if state == "running":
        held |= {"winner": None, "rung": 0, "totals": {}}
        for each in held["runners"]:
            each |= {"looks": each["looks"][:1], "out": "", "out_at_s": 0.0}
    path.write_text(json.dumps({**held, "state": state}))


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a file where it is imported."""
    place = tmp_path / "modules"
    place.mkdir()
    (place / "canary.py").write_text(
        "import pathlib\n"
        "pathlib.Path(__file__).with_name('imported').touch()\n"
        "def sing(*_, **__): raise SystemExit\n"
    )
    monkeypatch.syspath_prepend(str(place))
    sys.modules.pop("canary", None)
    return place / "imported"


def content(place: Path) -> dict[str, Any]:
    """All that is in a folder, and when it was written."""
    found = {}
    for path in sorted([place, *place.rglob("*")]):
        held = path.lstat()
        found[str(path)] = (held.st_mtime_ns, held.st_size, held.st_mode, held.st_nlink)
    return found


def suffer(folder_of: Make, tmp_path: Path, canary: Path, seed: int, capsys: Any) -> str:
    """One forged folder and the command that goes on there, or one that reads it; returns what was
    forged.
    """
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    folder, mine = tmp_path / "theirs", tmp_path / "mine"
    shutil.copytree(folder_of(kind), folder)
    shutil.copytree(folder_of("seeds"), mine)  # what a stranger wants to reach
    (mine / "thesis.txt").write_text("mine")
    told = forge_helpers.forge_folder(folder, mine, rng)
    before = content(mine)
    out = str(tmp_path / "page.html")
    command = [
        words(kind, folder), words(kind, folder), words(kind, folder), ["runs", str(folder)],
        ["report", str(folder), "--out", out],
    ][int(rng.integers(5))]  # fmt: skip
    capsys.readouterr()
    begin = time.monotonic()
    try:
        status = cli.main(command)
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {kind}, {told}, {command[:2]}") from error
    said = capsys.readouterr()
    what = (seed, kind, told, command[:2], said.err[-2_000:], said.out[-1_000:])
    assert status in (0, 1, 2), what
    assert "Traceback" not in said.err + said.out, what
    assert content(mine) == before, what
    assert not canary.exists(), what
    assert time.monotonic() - begin < 60.0, what
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 * 2**20, what
    for place in (folder, mine):
        shutil.rmtree(place)
    with suppress(FileNotFoundError):
        os.unlink(out)
    return f"{kind}: {told}"


def test_forged_folders(folder_of: Make, tmp_path: Path, canary: Path, capsys: Any) -> None:
    for seed in range(12):
        if KINDS[seed % len(KINDS)] != "population":  # which is one run
            suffer(folder_of, tmp_path, canary, seed, capsys)


@pytest.mark.slow
def test_many_forged_folders(folder_of: Make, tmp_path: Path, canary: Path, capsys: Any) -> None:
    faults = []
    for seed in range(1_000, 1_500):
        try:
            suffer(folder_of, tmp_path, canary, seed, capsys)
        except AssertionError as fault:
            faults.append(f"{fault}: {fault.__cause__!r}")
            for each in tmp_path.iterdir():
                if each.is_dir() and each.name != "modules":
                    shutil.rmtree(each)
    assert not faults, "\n\n".join(faults)
