"""``quintet doctor``: its command line, its output, and its exit status."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import quintet
from quintet.commands import doctor
from quintet.commands.cli import main
from quintet.doctor import apart, units
from quintet.doctor.apart import Examined
from quintet.errors import ConfigError
from quintet.findings import engine
from quintet.findings.record import Finding
from quintet.observe.run_summary import read_summary

FOUND = Finding(
    "gamma is short", {"worth": 0.001}, "raise it", command="quintet train ppo", weight=0.8,
    name="gamma",
)  # fmt: skip


def _written(folder: Path, **options: Any) -> Path:
    """A run folder with reports of a run that learns nothing."""
    folder.mkdir(parents=True)
    values = {"algo": "ppo", "seed": 0, "total_env_steps": 60_000, "env": {"id": "CartPole-v1"}}
    (folder / "config.yaml").write_text(json.dumps(values | options))
    sources = dict.fromkeys(options, "command line")
    (folder / "run.json").write_text(json.dumps({"state": "finished", "sources": sources}))
    reports = [
        {
            "env_steps": 6_000.0 * i,
            "updates": 100.0 * i,
            "episode/return_mean": 20.0,
            "episode/return_std": 5.0,
            "episode/count": 30.0,
        }
        for i in range(1, 11)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in reports))
    return folder


@pytest.mark.parametrize("unmade", [{}, {"memory": "the time was over"}])
def test_nothing_found_is_no_proof_where_not_everything_was_examined(
    unmade: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examined = Examined([], unmade=unmade)
    monkeypatch.setattr(apart, "examine_apart", lambda *_, **__: examined)
    assert main(["doctor", "CartPole-v1"]) == 0
    said = capsys.readouterr().out
    assert "nothing was found" in said
    assert ("not everything was examined" in said) == bool(unmade)


def test_a_run_is_examined(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = _written(tmp_path / "run", learning_rate=0.5)
    assert main(["doctor", str(run)]) == 1
    said = capsys.readouterr().out
    assert "1. likely" in said
    assert "learning_rate=0.5 is far above" in said
    assert "--learning-rate 0.0015" in said  # of the preset of CartPole-v1
    assert "docs/not-learning.md#option-far" in said


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = _written(tmp_path / "run", learning_rate=0.5)
    assert main(["doctor", str(run), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "run"
    assert told["findings"][0]["subject"] == "learning_rate"
    _written(tmp_path / "other")
    assert main(["doctor", str(tmp_path), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


def test_nothing_likely_is_status_0_and_no_praise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["doctor", str(_written(tmp_path / "run"))]) == 0
    assert "no proof that there is none" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["metrics.jsonl", "run.json", "config.yaml"])
def test_a_damaged_folder_is_no_traceback(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
):
    run = _written(tmp_path / "run")
    for content in (b"\xff\x00{", b"[1, 2", b'{"state": 3}', b"algo: [1]\nseed: {}\n"):
        (run / damage).write_bytes(content)
        assert main(["doctor", str(run)]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().out


def test_foreign_options_are_read_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    _written(
        tmp_path / "run", learning_rate=[1], gamma="high", model={"policy_hidden": ["x", None]}
    )
    assert main(["doctor", str(tmp_path / "run")]) in (0, 1)
    _written(tmp_path / "strange", algo="dqn", clip_epsilon={"a": 1})
    assert main(["doctor", str(tmp_path / "strange")]) in (0, 1)
    capsys.readouterr()


def test_a_command_with_foreign_words_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(engine, "helps", lambda name: True)
    run = _written(tmp_path / "a b", env={"id": "x; rm -rf ~"}, learning_rate=10**400, gamma=1e999)
    choice = {"choice": "gamma", "said": "s", "option": "--gamma $(reboot)", "env_steps": 1}
    record = {"state": "finished", "choices": [choice]}
    (run / "run.json").write_text(json.dumps(record))
    main(["doctor", str(run), "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    for each in found:
        words = shlex.split(each["command"])
        assert not {";", "rm", "-rf"} & {*words}
        assert shlex.join(words) == each["command"]
    assert any("'$(reboot)'" in each["command"] for each in found)


def test_an_environment_is_examined(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked: list[Any] = []

    def examine(*given: Any) -> Examined:
        asked.append(given)
        return Examined([FOUND.as_json()], {"pairs": "no time was left"})

    monkeypatch.setattr("quintet.doctor.apart.examine_apart", examine)
    assert main(["doctor", "CartPole-v1", "--gamma", "0.5", "--most-s", "9", "--json"]) == 1
    algo, words, typed, seed, most_s, _ = asked[0]
    assert (algo, seed, most_s) == ("ppo", 0, 9.0)
    assert words == ["--env", "CartPole-v1", "--gamma", "0.5"]
    assert typed == " --gamma 0.5"
    assert json.loads(capsys.readouterr().out)["findings"][0]["name"] == "gamma"
    assert main(["doctor", "CartPole-v1"]) == 1
    said = capsys.readouterr().out
    assert "not looked at: what other actions change (no time was left)" in said
    assert "evidence: worth 0.001" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "must get an environment or a run"),
        (["--algo"], "--algo needs a value"),
        (["--gamma", "0.9", "CartPole-v1"], "before other options, got --gamma"),
        (["CartPole-v1", "--most-s", "x"], "must be numbers"),
        (["CartPole-v1", "--most-s", "nan"], "must be in"),
        (["CartPole-v1", "--algo", "dqn"], "the algorithm must be one of"),
        (["CartPole-v1", "Acrobot-v1"], "must get one environment"),
        (["."], "must be a run folder"),
        (["./missing"], "must be a run folder, .* got ./missing which does not exist"),
    ],
)
def test_wrong_usage_is_a_sentence(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        doctor.main(words)


@pytest.mark.parametrize("words", [["--gamma", "0.5"], ["--algo", "ddpg"], ["--most-s=60"]])
def test_options_of_environments_are_refused_for_a_run(words: list[str], tmp_path: Path):
    with pytest.raises(ConfigError, match="must have no option of an environment, got --"):
        doctor.main([str(_written(tmp_path / "run")), *words])


def test_values_of_own_options_may_be_joined():
    given = doctor.parse_arguments(["CartPole-v1", "--algo=ddpg", "--most-s=7", "--gamma=0.9"])
    assert (given.algo, given.most_s, given.others) == ("ddpg", 7.0, ["--gamma=0.9"])


@pytest.mark.parametrize("command", ["doctor", "report"])
def test_the_policy_is_looked_at(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
):
    looked: list[Path] = []

    def dead(folder: Path) -> list[Finding]:
        looked.append(folder)
        return [Finding("all are off", weight=0.65, name="dead-units")]

    monkeypatch.setattr(units, "dead_units", dead)
    run = _written(tmp_path / "run")
    page = tmp_path / "page.html"
    main([command, str(run), *(["--out", str(page)] if command == "report" else [])])
    assert looked == [run]
    assert "all are off" in (page.read_text() if command == "report" else capsys.readouterr().out)


@pytest.mark.parametrize("how", [["--known", "option-far", "not-learning"], "in the run"])
def test_what_is_known_is_left_out(how: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    known = ["option-far:learning_rate", "not-learning"]
    own = {"doctor": {"known": known}} if how == "in the run" else {}
    run = _written(tmp_path / "run", learning_rate=0.5, **own)
    words = [] if own else how
    assert main(["doctor", str(run), *words]) == 0
    said = capsys.readouterr().out
    assert "option-far:" not in said
    assert ("left out, since you know it: option-far, not-learning" in said) is (not own)
    assert main(["doctor", str(run), *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["known"] == (
        [] if own else ["option-far", "not-learning"]
    )
    page = tmp_path / "page.html"
    assert main(["report", str(run), "--out", str(page)]) == 0
    assert ("is far above" in page.read_text()) is (not own)


def test_what_is_known_of_an_environment_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(
        "quintet.doctor.apart.examine_apart", lambda *_: Examined([FOUND.as_json()], {})
    )
    assert main(["doctor", "CartPole-v1"]) == 1
    assert main(["doctor", "CartPole-v1", "--known", "gamma"]) == 0
    assert "left out, since you know it: gamma" in capsys.readouterr().out


def test_a_run_that_does_well_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = _written(tmp_path / "run", learning_rate=0.5)
    reports = [
        {"env_steps": 6_000.0 * i, "episode/return_mean": min(50.0 * i, 499.0),
         "episode/return_std": 5.0, "episode/count": 30.0}
        for i in range(1, 21)
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in reports))
    assert main(["doctor", str(run)]) == 0
    said = capsys.readouterr().out
    assert "it does well: its last returns are 499, above 475" in said
    assert "learning_rate" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--known", "time_limit"], "did you mean time-limit?"),
        (["--known", "xyz"], "docs/not-learning.md lists them"),
        (["--known"], "--known needs a name of a finding"),
        (["--minutes", "3"], "--minutes has no effect without --try"),
        (["--try", "--minutes", "0"], "--minutes in 0.1 .. 10,000"),
        (["--try", "--known", "option-far"], "--try needs a finding whose command"),
    ],
)
def test_what_cannot_be_known_or_tried_is_refused(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = _written(tmp_path / "run", learning_rate=0.5)
    assert main(["doctor", str(run), *words]) == 2
    assert said in capsys.readouterr().err


def _trained(folder: Path) -> Path:
    """A run that learns nothing, with a checkpoint."""
    config = {"learning_rate": 0.5, "unroll_steps": 25, "minibatch_steps": 25, "eval.episodes": 0}
    config |= {"env.num_streams": 1, "report.progress": False, "report.interval_s": 0.0}
    quintet.train("ppo", "quintet.envs.toy:FinitePay", 200, run_dir=folder, config=config)
    return folder


def test_the_first_command_is_tried_beside_the_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run = _trained(tmp_path / "run")

    def train(group: Any, jobs: int | None, minutes: float) -> None:
        assert minutes == 0.5
        rates = [each.config.learner.learning_rate for each in group]
        assert rates == [0.5, 0.0003]
        for each, score in zip(group, (10.0, 90.0), strict=True):
            place = each.config.run_dir
            _written(place, learning_rate=each.config.learner.learning_rate)
            report = {"env_steps": 100, "episode/return_std": 1.0, "episode/count": 50.0}
            report["episode/return_mean"] = score
            (place / "metrics.jsonl").write_text(json.dumps(report) + "\n")

    monkeypatch.setattr("quintet.search.seed_group.run_seeds", train)
    main(["doctor", str(run), "--try", "--minutes", "0.5"])
    said = capsys.readouterr().out
    assert "as it was: mean return 10 of the last 50 episodes" in said
    assert "--learning-rate 0.0003: mean return 90 of the last 50 episodes" in said
    assert "the change helps so far" in said


def clever(observation: Any) -> int:
    """A rule for FinitePay, which is far from what the planted reports say."""
    return 0


def test_a_rule_of_the_users_own_shows_an_exploited_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run = _trained(tmp_path / "run")
    words = ["doctor", str(run), "--baseline", "test_doctor:clever", "--json"]
    main(words)
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "reward-exploited" not in {each["name"] for each in found}
    assert main(["doctor", str(run), "--baseline", "test_doctor:none"]) == 2
    capsys.readouterr()
    own = read_summary(run)

    def reported(end: float) -> None:
        reports = [
            {"env_steps": 50.0 * i, "episode/return_mean": x, "episode/return_std": 0.1,
             "episode/count": 20.0}
            for i, x in enumerate([-1e4, -1e4, *[end] * 6], 1)
        ]  # fmt: skip
        monkeypatch.setattr(doctor, "read_summary", lambda _: replace(own, reports=reports))

    reported(-1e3)
    main(words)
    told = json.loads(capsys.readouterr().out)
    assert re.search(
        r"the rule: mean return .* its end: -1000, which is below the", told["baseline"]
    )
    assert not told["well"], "although its returns rose"
    reported(1e5)
    assert main(words) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "reward-exploited" in {each["name"] for each in found}
    assert main([*words, "--known", "reward-exploited"]) == 0


@pytest.mark.slow
def test_the_first_command_is_really_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = _trained(tmp_path / "run")
    main(["doctor", str(run), "--try", "--minutes", "0.1", "--json"])
    told = json.loads(capsys.readouterr().out)["tried"]
    assert told["changed"] == "--learning-rate 0.0003"
    assert told["lines"][2].startswith("   --learning-rate 0.0003: ")
    for name, rate in (("as-it-was", 0.5), ("changed", 0.0003)):
        run = read_summary(tmp_path / "run-try" / name)
        assert run.options["learning_rate"] == rate
        assert run.reports
