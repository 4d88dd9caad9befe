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

from quintet.commands import cli
from quintet.errors import QuintetError
from quintet.jobs import group
from quintet.jobs.job import Job, Outcome
from quintet.run import launch
from quintet.search import candidates, portfolio, race_legs
from quintet.search.portfolio import Entry

ENV = "CartPole-v1"
OPTIONS: dict[str, Any] = {**SMALL, "model.policy_hidden": [4], "report.sinks": ["jsonl"]}
WORDS = [
    word
    for name, value in OPTIONS.items()
    if name != "report.sinks"
    for word in (f"--{name}", json.dumps(value))
]
Make = Callable[[str], Path]
KINDS = ("moving", "sweep", "running", "seeds", "race", "population", "export")
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
        "export": ["verify", str(folder)],
    }.get(kind, ["train", "auto", *common, "--minutes", "1", "--jobs", "1"])


def in_process(jobs: Sequence[Job], *_: Any, **more: Any) -> list[Outcome]:
    """Trains runs in this process, for 128 env_steps each."""
    return [Outcome(0, {"status": "ready"}) if x.name == "ready" else trained(x) for x in jobs]


def trained(job: Job) -> Outcome:
    payload = pickle.loads(job.payload)
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
        patched.setattr(group, "run_all", in_process)
        patched.setattr(portfolio, "entries", lambda _: own)
        patched.setattr(candidates, "_LEAST_EXAMINED_S", 1e9)
        patched.setattr(race_legs, "prepare", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory, here: None) -> Callable[[str], Path]:
    """Makes a folder of a kind, once."""
    pytest.importorskip("optuna")
    root: Path = tmp_path_factory.mktemp("groups")

    @cache
    def make(kind: str) -> Path:
        folder = root / kind
        if kind == "export":
            out = ["--out", str(folder), "--format", "numpy", "--steps", "100"]
            assert cli.main(["export", str(make("seeds") / "s1"), *out]) == 0
        elif kind in ("moving", "running"):
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
        found[str(path)] = (held.st_mtime_ns, held.st_size, held.st_mode)
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
    command = _commands(kind, folder, out)[int(rng.integers(12))]
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
    assert not {*"\x1b\x07\x9b"} & {*said.err + said.out}, what
    assert content(mine) == before, what
    assert not canary.exists(), what
    assert time.monotonic() - begin < 60.0, what
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        assert resource.getrusage(who).ru_maxrss < 2 * 2**20, what
    for place in (folder, mine):
        shutil.rmtree(place)
    with suppress(FileNotFoundError):
        os.unlink(out)
    return f"{kind}: {told}"


def _commands(kind: str, folder: Path, out: str) -> list[list[str]]:
    """Twelve commands that somebody may give who was sent a folder."""
    own, place = words(kind, folder), str(folder)
    if kind == "export":
        return [own, ["runs", place], [*own, "--json"]] * 4
    runs = [str(path.parent) for path in sorted(folder.rglob("config.yaml"))][:2] or [place]
    return [
        *[own] * 4, ["runs", place], ["runs", place, "--json"], ["report", place, "--out", out],
        ["compare", runs[0], "--with", runs[-1], "--json"],
        ["plot", place, "--out", out.replace("html", "png")], ["doctor", runs[0]],
        ["diff", runs[0], runs[-1]], ["eval", runs[0], "--episodes", "1"],
    ]  # fmt: skip


LINKS = [
    *(("moving", place) for place in ("race", "race/WINNER", "race/WINNER/checkpoints")),
    *(("running", place) for place in ("race", "race/a", "race/b", "race/race.json")),
    ("race", "race"),
    *(("sweep", place) for place in ("sweep.json", "journal.log", "trials.csv", "best.yaml")),
    *(("sweep", place) for place in ("trials", "trials/0001", "trials/0009", "fresh")),
    *(("sweep", place) for place in ("fresh/0002", "fresh/0001/s1", "importance.png")),
    *(("seeds", place) for place in ("s1", "s2")),
]


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("kind", "place"), LINKS)
def test_nothing_goes_through_a_link(
    kind: str, place: str, relative: bool, folder_of: Make, tmp_path: Path, capsys: Any
) -> None:
    """Where a link leads to what belongs there, and nothing else is forged."""
    folder, mine = tmp_path / "theirs", tmp_path / "mine"
    shutil.copytree(folder_of(kind), folder)
    if kind == "moving":
        held = json.loads((folder / "race" / "race.json").read_text())
        place = place.replace("WINNER", held["winner"])
    path = folder / place
    if path.exists():
        path.rename(mine)
    else:
        shutil.copytree(folder_of("seeds"), mine)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(mine, path.parent) if relative else mine)
    if kind == "sweep":  # which still has a trial to begin
        command = [x if x != "3" else "4" for x in words(kind, folder)]
    else:
        command = [x if x != "128" else "256" for x in words(kind, folder)]
    before = content(mine)
    capsys.readouterr()
    assert cli.main(command) == 1
    said = capsys.readouterr()
    assert f"{path} must be an ordinary file or folder, got a link to" in said.err + said.out
    assert content(mine) == before


def test_a_folder_is_not_moved_into_a_race_by_its_journal(
    folder_of: Make, tmp_path: Path, capsys: Any
) -> None:
    """A journal written by hand, whose winner is a link: nothing else is in the folder."""
    folder, mine = tmp_path / "theirs", tmp_path / "mine"
    shutil.copytree(folder_of("seeds"), mine)
    (folder / "race").mkdir(parents=True)
    held = json.loads((folder_of("race") / "race" / "race.json").read_text())
    for name in ("x", held["winner"]):
        path = folder / "race" / name
        path.symlink_to(mine)
        journal = {**held, "state": "moving", "winner": name}
        (folder / "race" / "race.json").write_text(json.dumps(journal))
        before = content(mine)
        assert cli.main(words("race", folder)) == 1
        assert f"{path} must be an ordinary file or folder" in capsys.readouterr().err
        assert content(mine) == before
        path.unlink()


RACES: dict[str, tuple[dict[str, Any], str]] = {
    "no plan": ({"counts": []}, "counts and leg_s must fit 2 runners"),
    "far": ({"rung": 99}, "rung must be below 2"),
    "nobody runs": ({"jobs": 0}, "jobs: input should be greater than or equal to 1"),
    "endless": ({"leg_s": [1e8, 1e8]}, "leg_s must fit into the minutes"),
    "not a number": ({"spent_s": float("nan")}, "spent_s"),
    "another's name": ({"winner": "x", "state": "moving"}, "x must be one of the runners"),
    "no entry": ({"runners": []}, "a must be one of the runners"),
    "no winner": ({"state": "finished"}, "winner must be there"),
    "deep": ({"told": forge_helpers.DEEP}, "told"),
}


@pytest.mark.parametrize("what", RACES)
def test_what_a_race_says_is_checked(
    what: str, folder_of: Make, tmp_path: Path, capsys: Any
) -> None:
    change, said = RACES[what]
    folder = tmp_path / "theirs"
    shutil.copytree(folder_of("running"), folder)
    path = folder / "race" / "race.json"
    path.write_bytes(forge_helpers.as_text({**json.loads(path.read_text()), **change}))
    assert cli.main(words("race", folder)) == 1
    err = capsys.readouterr().err
    assert "race.json is a damaged journal of a race" in err
    assert said in err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("report.sinks", ["wandb"]),
        ("cluster.address", "localhost"),
        ("model.policy_hidden", [4096, 4096]),
        ("env.num_streams", 512),
        ("num_epochs", 9),
        ("unroll_steps", 10_000),
        ("seed", 3),
    ],
)
def test_a_race_has_no_options_but_those_that_quintet_gives(
    name: str, value: Any, folder_of: Make, tmp_path: Path, capsys: Any
) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(folder_of("running"), folder)
    path = folder / "race" / "race.json"
    held = json.loads(path.read_text())
    held["runners"][1]["options"][name] = value
    path.write_text(json.dumps(held))
    assert cli.main(words("race", folder)) == 1
    assert f"in this version b has no {name}=" in capsys.readouterr().err


def test_a_race_has_no_entries_but_those_that_quintet_gives(
    folder_of: Make, tmp_path: Path, capsys: Any
) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(folder_of("running"), folder)
    path = folder / "race" / "race.json"
    held = json.loads(path.read_text())
    held["runners"][1]["name"] = "c"
    path.write_text(json.dumps({**held, "compiles": {}}))
    assert cli.main(words("race", folder)) == 1
    assert "this race has no candidate c of ppo" in capsys.readouterr().err


def test_a_finished_race_without_a_policy_is_no_success(
    folder_of: Make, tmp_path: Path, capsys: Any
) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(folder_of("race"), folder)
    assert cli.main(words("race", folder)) == 0
    capsys.readouterr()
    for each in [each for each in folder.iterdir() if each.name not in ("race", ".lock")]:
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    assert cli.main(words("race", folder)) == 1
    said = capsys.readouterr()
    assert "says that b won, but there is no checkpoint at" in said.err
    assert "policy:" not in said.out


def test_an_unfinished_race_goes_on(folder_of: Make, tmp_path: Path) -> None:
    """So that what is refused above is refused for what was forged."""
    for kind in ("running", "moving"):
        folder = tmp_path / kind
        shutil.copytree(folder_of(kind), folder)
        assert cli.main(words("race", folder)) == 0
        assert (folder / "policy" / "meta.json").exists()


def test_forged_folders(folder_of: Make, tmp_path: Path, canary: Path, capsys: Any) -> None:
    for seed in range(12):
        if KINDS[seed % len(KINDS)] != "population":  # which is one run
            suffer(folder_of, tmp_path, canary, seed, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 1_700, 100))
def test_many_forged_folders(
    first: int, folder_of: Make, tmp_path: Path, canary: Path, capsys: Any
) -> None:
    faults = []
    for seed in range(first, first + 100):
        try:
            suffer(folder_of, tmp_path, canary, seed, capsys)
        except AssertionError as fault:
            faults.append(f"{fault}: {fault.__cause__!r}")
            for each in tmp_path.iterdir():
                if each.is_dir() and each.name != "modules":
                    shutil.rmtree(each)
    assert not faults, f"{len(faults)} of 100: " + "\n\n".join(faults)
