"""Whole races: who stays and falls out, failures, kills, refusals; most with our own clock."""

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from quick_helpers import PRELOAD, begin
from small_run_helpers import SMALL, TOY

import quintet
from quintet.checkpoints import checkpoint
from quintet.checkpoints.lock import run_lock
from quintet.commands import cli
from quintet.errors import ConfigError, QuintetError
from quintet.jobs import group
from quintet.jobs.job import Job, Outcome
from quintet.observe.report_page import write_page
from quintet.observe.run_summary import find_runs, read_summary
from quintet.options import facts
from quintet.options.layers import Layer
from quintet.search import (
    candidates,
    placement,
    portfolio,
    race,
    race_journal,
    race_legs,
    race_page,
    race_state,
    rungs,
)
from quintet.search.portfolio import Entry
from quintet.search.race_asked import Asked

NAMES = ("slow", "good", "bad", "breaks")
SCORES = {"slow": 3.0, "good": 9.0, "bad": 1.0}
SMALL_ENTRY = {
    name: list(x) if isinstance(x, tuple) else x
    for name, x in SMALL.items()
    if name.split(".")[0] not in ("report", "eval")
}


def command(folder: Path, *more: str, minutes: str = "4") -> list[str]:
    return ["train", "auto", "--env", TOY, "--minutes", minutes, "--run-dir", str(folder), *more]


@dataclass
class Fake:
    """Legs without processes: each takes its time, and answers by the entry's name.

    dies_at: number of the leg in which the command is killed: at its begin, or if `trains`, in its
        middle; stops_at: in whose middle the user stops it, or, if `heeded` is False, while its
        process ends anyway.
    trained: seconds of training in the checkpoint of each entry.
    answers: of entries that answer otherwise.
    speeds: env_steps per second of entries.
    failure_s: seconds until a broken entry fails; None: all of its leg.
    """

    now: float = 1000.0
    legs: list[tuple[str, float]] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    dies_at: int = -1
    trains: bool = False
    trained: dict[str, float] = field(default_factory=dict)
    stops_at: int = -1
    heeded: bool = True
    begins: list[list[float]] = field(default_factory=list)
    training_s: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    failure_s: float | None = None
    broken: tuple[str, ...] = ("breaks",)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    speeds: dict[str, float] = field(default_factory=dict)
    env_steps: dict[str, int] = field(default_factory=dict)

    def monotonic(self) -> float:
        return self.now

    def job(self, name: str, module: str, loaded: Any, more: Mapping[str, Any]) -> Job:
        assert module.startswith("quintet.search.leg:")
        self.totals[loaded.config.run_dir.name] = loaded.config.total_env_steps
        return Job(name, module, json.dumps(more).encode(), loaded.config.run_dir)

    def run(self, jobs: Sequence[Job], *more: Any, **others: Any) -> list[Outcome]:
        stop = others["stop"]
        if jobs[0].name == "ready":
            return [Outcome(0, {"status": "ready"})]
        found, leg_s = [], 0.0
        self.begins.append([json.loads(each.payload)["begin"] for each in jobs])
        for each in jobs:
            asked = json.loads(each.payload)
            self.training_s.append(asked["training_s"])
            self.seeds.append(asked["seed"])
            if len(self.legs) == self.dies_at:
                self.dies_at = -1
                if self.trains:
                    self._trains(each.name, asked["most_s"] / 2)
                    self.now += asked["most_s"] / 2
                raise KeyboardInterrupt
            if len(self.legs) == self.stops_at:
                self.stops_at, stop.made = -1, True
                if self.heeded:
                    self.now += asked["most_s"] / 2
                    self.legs.append((each.name, asked["most_s"] / 2))
                    return [Outcome(130, None)]
            assert asked["training_s"] < asked["most_s"] < each.limits.seconds
            fails_soon = each.name in self.broken and self.failure_s is not None
            leg_s = max(leg_s, self.failure_s or 0.0 if fails_soon else asked["most_s"])
            self._trains(each.name, asked["most_s"])
            if each.name in self.broken:
                found.append(Outcome(1, {"error": "the environment broke\nfor good"}))
                continue
            if each.name in self.answers:
                found.append(Outcome(0, self.answers[each.name]))
                continue
            assert each.folder is not None
            each.folder.mkdir(parents=True, exist_ok=True)
            (each.folder / "config.yaml").write_text(each.name)
            checkpoint.write(each.folder, "policy", {}, {})
            returns = [SCORES[each.name] + x for x in (-1.0, 1.0)]
            self.env_steps[each.name] = self._env_steps(each.name, asked["training_s"])
            answer = {"returns": returns, "sampled": [], "env_steps": self.env_steps[each.name]}
            answer |= {
                "speed": self.speeds.get(each.name, 100.0),
                "training": 0.0,
                "status": "ran",
                "evaluation_s": 1.0,
            }
            found.append(Outcome(0, answer))
        self.now += leg_s
        return found

    def _env_steps(self, name: str, seconds: float) -> int:
        """5,000 of an entry whose speed is not given."""
        if name not in self.speeds:
            return 5_000
        return self.env_steps.get(name, 0) + int(self.speeds[name] * seconds)

    def _trains(self, name: str, seconds: float) -> None:
        self.legs.append((name, seconds))
        self.trained[name] = self.trained.get(name, 0.0) + seconds


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = [SMALL_ENTRY | {"learning_rate": 1e-4 * (place + 1)} for place in range(len(NAMES))]
    own = [Entry(name, "ppo", x, "a test") for name, x in zip(NAMES, rates, strict=True)]
    monkeypatch.setattr(portfolio, "entries", lambda _: own)
    monkeypatch.setattr(candidates, "_LEAST_EXAMINED_S", 1e9)


@pytest.fixture
def fake(few: None, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(race_legs, "time", made)
    monkeypatch.setattr(race_state, "time", made)
    monkeypatch.setattr(placement, "job", made.job)
    monkeypatch.setattr(group, "run_all", made.run)
    monkeypatch.setattr(race_legs, "prepare", lambda *_: None)
    for module in (race, race_legs):
        monkeypatch.setattr(module, "trained_s", lambda each: made.trained.get(each.name, 0.0))
    monkeypatch.setattr(race_page, "write_page", lambda *_, **__: Path("race.html"))
    return made


@pytest.fixture
def drawn(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are written, after every round: most of the time of a race of fakes."""
    monkeypatch.setattr(race_page, "write_page", write_page)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "race" / "race.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_worst_fall_out_and_the_best_one_s_run_is_that_of_the_folder(
    fake: Fake, drawn: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a"
    assert cli.main(command(folder, "--jobs", "1")) == 0
    said = capsys.readouterr().out
    assert (folder / "config.yaml").read_text() == "good"
    assert sorted(x.name for x in (folder / "race").iterdir() if x.is_dir()) == ["bad", "slow"]
    ran = [name for name, _ in fake.legs]
    assert ran == [*NAMES, "slow", "good", "good"]
    # Those of a rung have the same episodes, which no other rung nor `quintet eval` has.
    assert fake.seeds == [*[30_000] * 4, *[31_000] * 2, 32_000]
    assert "breaks falls out: the environment broke\n" in said
    assert (
        "round 1: good 9 [8, 10] (greedy), slow 3 [2, 4] (greedy) stay; out: bad 1 [0, 2]" in said
    )
    assert "this race is finished: good won" in said
    rows = {(row["entry"], row["rung"]): row for row in table(folder)}
    assert rows["bad", "1"]["out"] == "place 3 of 3 in round 1"
    assert rows["slow", "2"]["out"] == "place 2 of 2 in round 2"
    assert rows["breaks", ""]["out"].startswith("the environment broke")
    assert rows["good", "3"]["out"] == ""
    page = (folder / "race" / "race.html").read_text()
    assert "good won" in page
    assert "running" not in page  # though the race holds the folder of the winner's run
    assert "place 3 of 3 in round 1" in page
    first_cells = re.findall(r"<tr><td>(?:<a[^>]*>)?([\w-]+)", page)  # of the race, of its runs
    assert first_cells[:7] == ["good", "slow", "bad", "breaks", "good", "slow", "bad"]
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    # All legs together take the time, the last one half of it.
    assert fake.now - 1000.0 == pytest.approx(240.0, rel=0.05)
    assert fake.legs[-1][1] == pytest.approx(120.0, rel=0.1)
    # By 100 env_steps per second, as many as fit its time after 5,000.
    assert fake.totals["good"] == pytest.approx(5000 + 100 * 105, rel=0.1)

    # The same command again says so, without an environment; others are refused.
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(facts, "_look", lambda _: pytest.fail("an environment was made"))
        assert cli.main(command(folder, "--jobs", "1")) == 0
    assert "this race is finished" in capsys.readouterr().out
    assert len(fake.legs) == 7
    assert cli.main(command(folder, "--jobs", "1", "--gamma", "0.9")) == 2
    assert "gamma: the race has None, this command has 0.9" in capsys.readouterr().err


def test_who_cannot_go_on_in_the_time_left_falls_out_before_others(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = race_legs.load

    def refuses(asked: Asked, entry: Entry, more: Mapping[str, Any], **how: Any) -> Any:
        if entry.name == "good" and more.get("total_env_steps", 1e9) < 100_000:
            raise ConfigError("nothing is learned from replay")
        return load(asked, entry, more, **how)

    monkeypatch.setattr(race_legs, "load", refuses)
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    assert [name for name, _ in fake.legs] == [*NAMES, "slow", "bad", "slow"]
    assert "good falls out: nothing is learned from replay\n" in capsys.readouterr().out


def test_an_entry_without_an_episode_stays_until_others_have_scores(
    fake: Fake, drawn: None, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fake.run
    unended = {*NAMES}

    def without(jobs: Sequence[Job], *more: Any, **others: Any) -> list[Outcome]:
        ended = run(jobs, *more, **others)
        for each, how in zip(jobs, ended, strict=True):
            if each.name in unended and how.answer and "returns" in how.answer:
                how.answer.update(returns=[], training=None)
        return ended

    monkeypatch.setattr(group, "run_all", without)
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    assert (tmp_path / "a" / "config.yaml").read_text() == "slow"  # the first in the portfolio
    assert "round 1: slow too few episodes ended" in capsys.readouterr().out
    assert "too few episodes ended" in (tmp_path / "a" / "race" / "race.html").read_text()
    unended.remove("bad")
    assert cli.main(command(tmp_path / "b", "--jobs", "1")) == 0
    assert (tmp_path / "b" / "config.yaml").read_text() == "bad"


def test_entries_that_run_side_by_side_begin_at_once_and_evaluate_as_long_as_before(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = race_legs.load

    def slowly(*given: Any, **more: Any) -> Any:
        fake.now += 3.0
        return load(*given, **more)

    monkeypatch.setattr(race_legs, "load", slowly)
    assert cli.main(command(tmp_path / "a", "--jobs", "2")) == 0
    assert all(len(set(begins)) == 1 for begins in fake.begins)
    assert {len(begins) for begins in fake.begins} == {2}
    first_s, last_s = fake.legs[0][1], fake.legs[-1][1]
    assert first_s - fake.training_s[0] > 0.1 * first_s
    assert last_s - fake.training_s[-1] < 0.1 * last_s  # its evaluation took a second


def test_a_full_disk_is_no_fault_of_the_entry(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fake.run

    def full(jobs: Sequence[Job], *more: Any, **others: Any) -> list[Outcome]:
        ended = run(jobs, *more, **others)
        if [each.name for each in jobs] == ["good"] and not capsys.readouterr().err:
            return [Outcome(1, {"error": "no room; make room there", "blameless": True})]
        return ended

    monkeypatch.setattr(group, "run_all", full)
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 1
    assert "[good] no room; make room there" in capsys.readouterr().err
    monkeypatch.setattr(group, "run_all", run)
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    assert (tmp_path / "a" / "config.yaml").read_text() == "good"


def test_a_race_whose_folder_goes_away_ends_and_does_not_make_it_again(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder, away = fake.run, tmp_path / "a", tmp_path / "away"

    def goes(jobs: Sequence[Job], *more: Any, **others: Any) -> list[Outcome]:
        if fake.legs:
            folder.rename(away)
            return [Outcome(1, {"error": "its folder is not there"})]
        return run(jobs, *more, **others)

    monkeypatch.setattr(group, "run_all", goes)
    assert cli.main(command(folder, "--jobs", "1")) == 1
    shown = capsys.readouterr()
    assert f"the folder {folder} was moved or removed" in shown.err
    assert "falls out" not in shown.out
    assert not folder.exists()
    away.rename(folder)
    monkeypatch.setattr(group, "run_all", run)
    assert cli.main(command(folder, "--jobs", "1")) == 0


@pytest.mark.parametrize(
    ("speed", "how"), [(400.0, "trains on"), (40.0, "stays too"), (900.0, "falls out")]
)
def test_the_default_does_not_fall_out_before_it_had_as_many_env_steps(
    fake: Fake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    speed: float,
    how: str,
) -> None:
    """It is the first entry, and has the worst score of the first rung."""
    monkeypatch.setitem(SCORES, "slow", 0.0)
    fake.speeds = dict.fromkeys(NAMES, 900.0) | {"slow": speed}
    assert cli.main(command(tmp_path / "a", "--jobs", "1", minutes="10")) == 0
    said = capsys.readouterr().out
    legs = [name for name, _ in fake.legs]
    had = {
        row["entry"]: int(row["env_steps"]) for row in table(tmp_path / "a") if row["rung"] == "1"
    }
    if how == "trains on":
        assert re.search(r"slow trains on to [\d,]+ env_steps, as many as others had\n", said)
        assert legs == [*NAMES, "slow", "good", "bad", "good"]
        assert had["slow"] > 0.9 * had["good"]
    elif how == "stays too":
        assert re.search(r"slow stays too, since it has had only [\d,]+ env_steps; out: ", said)
        assert legs[:7] == [*NAMES, "slow", "good", "bad"]
    else:
        assert legs == [*NAMES, "good", "bad", "good"]
    assert json.loads((tmp_path / "a" / "race" / "race.json").read_text())["winner"] == "good"
    assert fake.now - 1000.0 == pytest.approx(600.0, rel=0.05)
    assert (
        cli.main(command(tmp_path / "a", "--jobs", "1", minutes="10")) == 0
    )  # its journal is whole


@pytest.mark.parametrize("typed", [False, True])
def test_entries_share_the_cores_unless_threads_are_typed(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: bool
) -> None:
    monkeypatch.setattr(race, "usable_cores", lambda: 4)
    resolved = candidates.resolved
    two = {} if typed else {"runtime.threads": 2}  # as of large networks
    monkeypatch.setattr(
        candidates, "resolved", lambda x: ({**resolved(x)[0], **two}, *resolved(x)[1:])
    )
    more = ["--runtime.threads", "2"] if typed else []
    assert cli.main(command(tmp_path / "a", *more)) == 0
    held = json.loads((tmp_path / "a" / "race" / "race.json").read_text())
    assert held["jobs"] == (2 if typed else 4)


def test_a_slow_environment_has_fewer_entries_and_shorter_batches(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "examined", lambda _, able, say: (able, [], 1.0))
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    held = json.loads((tmp_path / "a" / "race" / "race.json").read_text())
    assert len(held["runners"]) == 1
    assert held["runners"][0]["options"]["unroll_steps"] == 8
    assert any(line.startswith("slow: unroll_steps=8, so that") for line in held["told"])


@pytest.mark.parametrize("dies_at", range(7))
def test_an_interrupted_race_goes_on_to_the_same_end(
    fake: Fake, tmp_path: Path, dies_at: int, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a"
    fake.dies_at = dies_at
    assert cli.main(command(folder, "--jobs", "1")) == 130
    assert cli.main(command(folder, "--jobs", "1")) == 0
    assert (folder / "config.yaml").read_text() == "good"
    assert [name for name, _ in fake.legs] == [*NAMES, "slow", "good", "good"]
    capsys.readouterr()


@pytest.mark.parametrize("failure_s", [None, 0.5])
def test_the_time_that_a_failed_entry_leaves_is_not_for_those_after_it(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure_s: float | None
) -> None:
    monkeypatch.setitem(SCORES, "breaks", 2.0)
    fake.broken, fake.failure_s = ("good",), failure_s
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    first = dict(fake.legs[:4])
    assert max(first.values()) == pytest.approx(min(first.values()), rel=0.05)
    assert fake.now - 1000.0 == pytest.approx(240.0, rel=0.05)  # the last ones have it


def test_after_a_stop_an_entry_has_the_rest_of_its_leg(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCORES, "breaks", 2.0)
    fake.broken, fake.stops_at = (), 1
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 130
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    had = {name: sum(s for x, s in fake.legs[:5] if x == name) for name in NAMES}
    assert max(had.values()) == pytest.approx(min(had.values()), rel=0.05)


@pytest.mark.parametrize("dies_at", [1, 4, 6])
def test_after_a_kill_an_entry_has_the_rest_of_its_leg(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    """In the first rung, in a later one, and of the winner, which has the rest of the time."""
    monkeypatch.setitem(SCORES, "breaks", 2.0)
    fake.broken, fake.dies_at, fake.trains = (), dies_at, True
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 130
    killed, half_s = fake.legs[-1]
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    assert fake.legs[dies_at + 1][0] == killed
    assert fake.legs[dies_at + 1][1] == pytest.approx(half_s, rel=0.1)
    assert fake.now - 1000.0 == pytest.approx(240.0, rel=0.05)


def test_a_stop_is_heeded_also_where_the_processes_have_just_ended(
    fake: Fake, tmp_path: Path
) -> None:
    fake.stops_at, fake.heeded = 1, False
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 130
    assert [name for name, _ in fake.legs] == ["slow", "good"]
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    assert [name for name, _ in fake.legs] == [*NAMES, "slow", "good", "good"]


def test_a_refused_race_leaves_the_folder_where_it_is(fake: Fake, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    assert cli.main(command(folder)) == 0
    assert cli.main(command(folder, "--overwrite", "--gama", "0.9")) == 2
    assert (folder / "config.yaml").read_text() == "good"
    assert cli.main(command(tmp_path / "b", "--gama", "0.9")) == 2
    assert not (tmp_path / "b").exists()


def test_a_kill_while_the_winner_is_moved_loses_nothing(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    rename = Path.rename

    def dies(path: Path, target: Path) -> Path:
        rename(path, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", dies)
        assert cli.main(command(folder)) == 130
    assert json.loads((folder / "race" / "race.json").read_text())["state"] == "moving"
    assert cli.main(command(folder)) == 0
    assert (folder / "config.yaml").read_text() == "good"
    assert not (folder / "race" / "good").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").touch()
    assert cli.main(command(tmp_path / "b", "--overwrite")) == 2
    assert cli.main(command(folder, "--overwrite", "--seed", "1")) == 0
    assert (tmp_path / "a.old-1" / "config.yaml").read_text() == "good"


def test_if_all_entries_fail_the_first_reason_is_told(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.broken = NAMES
    assert cli.main(command(tmp_path / "a", "--jobs", "2")) == 1
    said = capsys.readouterr().err
    assert "no candidate trained; the reason of slow was: the environment broke" in said
    assert cli.main(command(tmp_path / "a", "--jobs", "2")) == 1


def test_if_the_last_entries_fail_the_best_policy_so_far_is_named(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fake.run

    def fails_at_the_end(jobs: Sequence[Job], *more: Any, **others: Any) -> list[Outcome]:
        if len(fake.legs) == 4 + 2:
            fake.broken = NAMES
        return run(jobs, *more, **others)

    monkeypatch.setattr(group, "run_all", fails_at_the_end)
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 1
    said = capsys.readouterr().err
    assert "no candidate trained to the end; the reason of good was: the environment broke" in said
    assert "the best policy so far is that of good, with 9 [8, 10] (greedy): quintet eval " in said
    assert str(tmp_path / "a" / "race" / "good") in said


def test_a_leg_without_a_report_keeps_what_was_known(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fake.run

    def resumed_too_late(jobs: Sequence[Job], *more: Any, **others: Any) -> list[Outcome]:
        ended = run(jobs, *more, **others)
        if len(fake.legs) == 7:
            assert ended[0].answer is not None
            ended[0].answer.update(returns=[], speed=0.0, training=None)
        return ended

    monkeypatch.setattr(group, "run_all", resumed_too_late)
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    good = json.loads((tmp_path / "a" / "race" / "race.json").read_text())["runners"][1]
    assert [look["speed"] for look in good["looks"]] == [100.0, 100.0, 100.0]
    assert good["looks"][-1]["training"] == 0.0


def test_an_entry_that_began_too_late_falls_out_with_that_reason(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.answers = {"bad": {"status": "late"}}
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    said = capsys.readouterr().out
    assert re.search(r"bad falls out: it had not begun to train within its \d+ s\n", said)


def test_a_race_without_time_for_any_entry_ends_with_the_default_s_policy(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trains once more, alone and as long as it takes."""
    run = fake.run
    patient: list[bool] = []

    def late(jobs: Sequence[Job], *more: Any, **others: Any) -> list[Outcome]:
        if jobs[0].name != "ready":
            patient.extend(json.loads(each.payload)["patient"] for each in jobs)
            fake.answers = {} if patient[-1] else {name: {"status": "late"} for name in NAMES}
        return run(jobs, *more, **others)

    monkeypatch.setattr(group, "run_all", late)
    assert cli.main(command(tmp_path / "a", "--jobs", "2")) == 0
    assert sum(patient) == 1
    assert patient[-1]
    said = capsys.readouterr().out
    assert f"{NAMES[0]} trains alone, until it has learned from a batch" in said
    assert f"this race is finished: {NAMES[0]} won" in said
    assert (tmp_path / "a" / "policy").is_dir()


def test_in_a_slow_environment_the_default_trains_alone_from_the_start(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(race, "least_run_s", lambda *_: 500.0)
    assert cli.main(command(tmp_path / "a", "--jobs", "2")) == 0
    assert [name for name, _ in fake.legs] == [NAMES[0]]
    said = capsys.readouterr().out
    assert f"{NAMES[0]} trains alone: the environment is slow" in said
    assert "one batch and an evaluation take about 8.3 minutes, more than is left" in said


def test_the_environment_is_made_once_for_the_spaces_of_all_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    asked = Asked(
        minutes=1.0, layers=(Layer("call", {"env.id": TOY, "run_dir": str(tmp_path / "a")}),)
    )
    look = facts._look
    monkeypatch.setattr(facts, "_look", lambda env: made.append(env.config.id) or look(env))
    with facts.looks_kept():
        assert len(candidates.able(asked, portfolio.entries("vector_discrete"), print)) > 3
    assert made == [TOY]
    assert facts._kept is None


def test_no_leg_begins_before_an_orphan_of_its_run_has_ended(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited: list[tuple[str, int]] = []

    def note(place: Path) -> None:
        awaited.append((place.name, len(fake.legs)))

    for module in (race, race_legs):
        monkeypatch.setattr(module, "await_left", note)
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    legs = [(name, number) for number, (name, _) in enumerate(fake.legs)]
    assert awaited == [*legs, ("good", 7)]  # and once more before the run is moved


def test_a_long_finding_is_kept_short(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "examined", lambda _, able, say: (able, ["x" * 3_000], None))
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0
    assert cli.main(command(tmp_path / "a", "--jobs", "1")) == 0  # its journal is whole
    held = json.loads((tmp_path / "a" / "race" / "race.json").read_text())
    assert held["told"] == ["x" * 2_000]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--seeds", "1,2"), "--seeds does not belong to a race"),
        (("--total-steps", "5"), "leave one out"),
        (("--resume", "latest"), "resume must be left out of a race"),
        (("--algo", "acer"), "algo must be left out of a race"),
        (("--jobs", "0"), "jobs must be a whole number of at least 1"),
        (("--gama", "0.9"), "correct its name; did you mean 'gamma'?"),
        (("--model.core", "lsmt"), "model.core"),
        (("--env.num-streams", "-1"), "env.num_streams"),
    ],
)
def test_wrong_words_are_refused(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], said: str
) -> None:
    assert cli.main(command(tmp_path / "a", *more)) == 2
    assert said in capsys.readouterr().err
    assert find_runs(tmp_path) == []


def test_an_option_of_some_learners_only_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(command(tmp_path / "a", "--clip-epsilon", "0.1")) == 2
    said = capsys.readouterr().err
    assert "got clip_epsilon, of appo, ppo only: leave it out, or give it to quintet train" in said
    assert cli.main(["train", "auto", "--env", TOY]) == 2
    assert "needs a time: --minutes 10" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"jobs must be a whole number .* got 1\.5: give one"):
        quintet.train("auto", TOY, minutes=1, jobs=1.5)  # type: ignore[arg-type]


def test_other_folders_two_races_in_one_and_damage_are_refused(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").touch()
    assert cli.main(command(tmp_path)) == 2
    assert "or one with a race" in capsys.readouterr().err
    folder = tmp_path / "a"
    fake.dies_at = 0
    assert cli.main(command(folder)) == 130
    capsys.readouterr()
    with run_lock(folder):
        assert cli.main(command(folder)) == 1
    assert "in use by the process" in capsys.readouterr().err
    path = folder / "race" / "race.json"
    path.rename(tmp_path / "theirs")
    path.symlink_to(tmp_path / "theirs")
    assert cli.main(command(folder)) == 1
    assert "must be an ordinary file or folder, got a link" in capsys.readouterr().err
    path.unlink()
    (tmp_path / "theirs").rename(path)
    held = json.loads(path.read_text())
    for name, value in {"name": "../..", "options": {"model.encoder": "os:system"}}.items():
        runners = [{**held["runners"][0], name: value}]
        path.write_text(json.dumps({**held, "runners": runners}))
        assert cli.main(command(folder)) == 1
        assert "is a damaged journal of a race" in capsys.readouterr().err


# With processes


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    monkeypatch.setattr(race_legs, "PRELOAD", PRELOAD)
    monkeypatch.setattr(rungs, "LEAST_S", 1.0)
    monkeypatch.setattr(rungs, "SHORTEST_S", 4.0)
    return lambda: None


def make(num_contexts: int = 3) -> Any:
    from quintet.envs.toy import Contextual

    return Contextual(num_contexts)


def test_a_race_in_python_ends_in_time_with_a_run_that_goes_on(
    few: None, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [
        Entry("unfit", "ppo", {**SMALL_ENTRY, "num_epochs": 0}, "a test"),
        Entry("good", "ppo", {**SMALL_ENTRY, "learning_rate": 0.01}, "a test"),
        Entry("still", "ppo", {**SMALL_ENTRY, "learning_rate": 1e-9}, "a test"),
    ]
    monkeypatch.setattr(portfolio, "entries", lambda _: own)
    folder = tmp_path / "a"
    result = quintet.train("auto", TOY, minutes=0.16, run_dir=folder, jobs=1)
    assert result.status == "finished"
    assert result.run_dir == folder
    assert read_summary(folder).state == "finished"
    journal = json.loads((folder / "race" / "race.json").read_text())
    assert journal["winner"] == "good"
    assert [x["name"] for x in journal["runners"]] == ["good", "still"]
    assert 5.0 < journal["spent_s"] < 30.0  # on a busy machine
    last = journal["runners"][0]["looks"][-1]
    assert result.metrics["env_steps"] == last["env_steps"]
    assert len(last["returns"]) >= 5
    assert "Returns over time" in (folder / "race" / "race.html").read_text()
    assert quintet.evaluate(result.policy, episodes=5).mean > 0.5
    with pytest.raises(QuintetError, match="on_report does not belong to a race"):
        quintet.train("auto", TOY, minutes=0.1, on_report=lambda _: None)


@pytest.mark.slow
def test_a_killed_race_goes_on(tmp_path: Path) -> None:
    words = command(tmp_path / "a", minutes="0.8")
    with begin(["-m", "quintet", *words]) as process:
        for line in process.stdout:
            if ": the last " in line or "round 1" in line.split("] ")[-1][:8]:
                break
        process.kill()
    before = json.loads((tmp_path / "a" / "race" / "race.json").read_text())
    assert before["state"] == "running"
    assert cli.main(words) == 0
    after = json.loads((tmp_path / "a" / "race" / "race.json").read_text())
    assert after["state"] == "finished"
    assert [x["name"] for x in before["runners"]] == [x["name"] for x in after["runners"]]
    assert read_summary(tmp_path / "a").state == "finished"
    for one, other in zip(before["runners"], after["runners"], strict=True):
        assert other["looks"][: len(one["looks"])] == one["looks"]
    last = next(x for x in after["runners"] if x["name"] == after["winner"])["looks"][-1]
    assert read_summary(tmp_path / "a").env_steps == last["env_steps"]


@pytest.mark.parametrize("late", [True, False])
def test_an_entry_that_the_system_kills_is_not_said_to_be_slow(
    late: bool,
    fake: Fake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where its neighbour takes all of the time."""
    run = fake.run

    def killed(jobs: Sequence[Job], *more: Any, **others: Any) -> list[Outcome]:
        ended = run(jobs, *more, **others)
        fake.now += 60.0
        return [
            Outcome(-9, None, late) if each.name == "bad" else how
            for each, how in zip(jobs, ended, strict=True)
        ]

    monkeypatch.setattr(group, "run_all", killed)
    assert cli.main(command(tmp_path / "a", "--jobs", "2")) == 0
    said = capsys.readouterr().out
    assert ("bad falls out: it did not stop within" in said) is late
    assert ("bad falls out: its process was ended by SIGKILL" in said) is not late


def test_what_is_left_of_a_race_without_a_journal_is_in_nobody_s_way(
    fake: Fake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "a"

    def full(*_: Any) -> None:
        (folder / "race").mkdir(parents=True)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(race_journal, "write", full)
        assert cli.main(command(folder)) == 1
    said = capsys.readouterr().err
    assert f"the race in {folder} can't go on: " in said
    assert "--out" not in said
    assert cli.main(command(folder)) == 0


def test_a_damaged_race_may_be_overwritten_but_not_from_inside(
    fake: Fake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "a"
    assert cli.main(command(folder)) == 0
    (folder / "race" / "race.json").write_text("{")
    assert cli.main(command(folder)) == 1
    monkeypatch.chdir(folder)
    assert cli.main(command(folder, "--overwrite")) == 2
    assert "must not name the working folder" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert cli.main(command(folder, "--overwrite")) == 0
    assert (tmp_path / "a.old-1" / "race" / "race.json").read_text() == "{"
