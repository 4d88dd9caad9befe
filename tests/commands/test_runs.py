"""``quintet runs``, ``diff`` and ``report``: of whole, damaged and foreign folders."""

import base64
import json
import os
import re
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from small_run_helpers import SMALL, TOY

import quintet
from quintet.checkpoints import manifest
from quintet.checkpoints.lock import run_lock
from quintet.commands import cli
from quintet.commands.runs import cells
from quintet.errors import CheckpointError
from quintet.observe import report_figures
from quintet.observe.report_figures import health_over_time
from quintet.observe.run_summary import RunSummary, find_runs, read_summary

OPTIONS = {**SMALL, "report.interval_s": 0.0, "report.sinks": ("jsonl",)}
EVIL = "<script>alert(1)</script>"


def train(folder: Path, steps: int = 512, seed: int = 1, **more: Any) -> None:
    config = {**OPTIONS, **{name.replace("__", "."): x for name, x in more.items()}}
    quintet.train("ppo", TOY, steps, seed, folder, config)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one configuration, and a run with another learning rate."""
    place = tmp_path_factory.mktemp("runs")
    train(place / "group" / "s1")
    train(place / "group" / "s2", seed=2)
    train(place / "other", learning_rate=1e-4, eval__episodes=2)
    return place


@pytest.fixture
def runs(place: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    shutil.copytree(place, tmp_path / "runs")
    return tmp_path / "runs"


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert cli.main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def listed(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, dict[str, Any]]:
    found = json.loads(said(capsys, "runs", folder, "--json"))
    return {str(Path(each["run"]).relative_to(folder)): each for each in found}


# runs


def test_a_table_of_runs(place: Path, capsys: pytest.CaptureFixture[str]):
    lines = said(capsys, "runs", place).splitlines()
    assert lines[0].split() == [
        "run", "learner", "environment", "seed", "state", "env_steps", "score", "time", "when"
    ]  # fmt: skip
    assert [line.split()[:6] for line in lines[1:]] == [
        ["group/s1", "ppo", TOY, "1", "finished", "512"],
        ["group/s2", "ppo", TOY, "2", "finished", "512"],
        ["other", "ppo", TOY, "1", "finished", "512"],
    ]
    assert "(episode)" in lines[1]
    assert re.search(r"  return [-.\d]+ \(eval, greedy\)  ", lines[3])
    won = cells(RunSummary(Path("won"), "finished", reports=[{"eval/success_rate": 1.0}]), Path())
    assert "success 1 (eval)" in won
    assert said(capsys, "runs", place / "other").splitlines()[1].startswith("other  ppo")


def test_for_programs(place: Path, capsys: pytest.CaptureFixture[str]):
    found = listed(capsys, place)
    other = found["other"]
    assert list(found) == ["group/s1", "group/s2", "other"]
    assert (other["learner"], other["seed"], other["state"]) == ("ppo", 1, "finished")
    assert (other["env_steps"], other["total_env_steps"]) == (512, 512)
    assert other["score_metric"] == "eval/return_mean"
    assert isinstance(other["score"], float)
    assert other["wall_s"] > 0
    assert (other["error"], other["faults"], other["choices"]) == (None, [], [])


def test_an_empty_and_a_missing_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert said(capsys, "runs", tmp_path).startswith("no runs in ")
    assert cli.main(["runs", str(tmp_path / "none")]) == 1
    assert "DIR must be a folder" in capsys.readouterr().err


def test_a_run_that_was_moved_aside_is_left_out(runs: Path):
    (runs / "other").rename(runs / "other.old-1")
    assert [each.name for each in find_runs(runs)] == ["s1", "s2"]
    assert [each.name for each in find_runs(runs / "other.old-1")] == ["other.old-1"]


def test_runs_on_fresh_seeds_of_a_sweep_are_found(runs: Path):
    fresh = runs / "sweep-a" / "fresh" / "0007" / "s9"
    fresh.parent.mkdir(parents=True)
    shutil.copytree(runs / "other", fresh)
    assert [each.name for each in find_runs(runs)] == ["s1", "s2", "other", "s9"]


def test_states(runs: Path, capsys: pytest.CaptureFixture[str]):
    def record(name: str, **changes: Any) -> None:
        path = runs / name / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    record("group/s1", state="running")  # killed
    record("group/s2", state="failed", error="ValueError: the floor gave way")
    found = listed(capsys, runs)
    assert found["group/s1"]["state"] == "interrupted"
    assert found["group/s2"]["state"] == "failed"
    record("group/s1", state="stopped")
    with run_lock(runs / "other"):
        found = listed(capsys, runs)
    assert (found["group/s1"]["state"], found["other"]["state"]) == ("interrupted", "running")
    assert "group/s2: ValueError: the floor gave way" in said(capsys, "runs", runs)


def link(run: Path) -> None:
    (run / "log.txt").unlink()
    (run / "log.txt").symlink_to("/etc/hostname")


def pipe(run: Path) -> None:
    (run / ".lock").unlink(missing_ok=True)
    os.mkfifo(run / ".lock")


def reports(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:1], "}{", *lines[2:], ""]))


def checkpoints(run: Path) -> None:
    for path in run.glob("checkpoints/*/meta.json"):
        path.write_text("{}")


def options(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "config.yaml").write_text("[1, 2]")


def test_damaged_runs_are_told(runs: Path, capsys: pytest.CaptureFixture[str]):
    damages = (link, pipe, reports, checkpoints, options)
    for damage in damages:
        shutil.copytree(runs / "other", runs / damage.__name__)
        damage(runs / damage.__name__)
    states = {name: each["state"] for name, each in listed(capsys, runs).items()}
    damaged = {damage.__name__: "damaged" for damage in damages}
    assert states == damaged | dict.fromkeys(("group/s1", "group/s2", "other"), "finished")
    told = said(capsys, "runs", runs)
    assert all(re.search(rf"\n{name}: \S", told) for name in damaged), told
    written = runs / "page.html"
    said(capsys, "report", runs, "--out", written)
    assert written.stat().st_size > 10_000


def test_projects_and_links_are_no_runs(runs: Path, capsys: pytest.CaptureFixture[str]):
    (runs / "config.yaml").write_text("learning_rate: 0.001\n")
    (runs / "checkpoints").mkdir()
    (runs / "latest").symlink_to("other")
    (runs / "circle").symlink_to(".")
    assert [*listed(capsys, runs)] == ["group/s1", "group/s2", "other"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json"])
def test_a_file_that_would_fill_the_memory(
    name: str, runs: Path, capsys: pytest.CaptureFixture[str]
):
    os.truncate(runs / "other" / name, 2**40)
    found = listed(capsys, runs)["other"]
    assert found["state"] == "damaged"
    assert f"{name} must have at most 1,073,741,824 bytes" in found["faults"][0]


def test_reports_that_end_before_the_run_are_told(runs: Path, capsys: pytest.CaptureFixture[str]):
    run = runs / "other"
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    shutil.rmtree(run / "checkpoints")
    found = listed(capsys, runs)["other"]
    assert found["env_steps"] == 512
    assert any(
        re.fullmatch(r"its reports end at 4\d\d of 512 env_steps", x) for x in found["faults"]
    )


def test_values_that_json_can_not_hold_end_no_listing(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = runs / "strange"
    run.mkdir()
    (run / "config.yaml").write_text(
        "algo: ppo\nenv.id: A\nseed: !!binary aGVsbG8=\n"
        "env.kwargs: {1: 2, a: !!set {x}, !!binary aGVsbG8=: 3}\n"
    )
    (run / "metrics.jsonl").write_text('{"env_steps": 8}\n')
    assert {*listed(capsys, runs)} == {"group/s1", "group/s2", "other", "strange"}
    said(capsys, "diff", run, runs / "other", "--json")
    said(capsys, "report", runs, "--out", tmp_path / "page.html")
    assert cli.main(["doctor", str(run)]) in (0, 1)


def test_a_checkpoint_that_would_fill_the_memory(runs: Path, capsys: pytest.CaptureFixture[str]):
    newest = max((runs / "other" / "checkpoints").iterdir())
    size = 2**27
    os.truncate(newest / "meta.json", size)
    found = json.loads((newest / "manifest.json").read_text())
    found["files"]["meta.json"]["bytes"] = size
    (newest / "manifest.json").write_text(json.dumps(found))
    with pytest.raises(CheckpointError, match="at most 67,108,864 were expected"):
        manifest.read_meta(newest.parent, newest.name)
    assert [*listed(capsys, runs)] == ["group/s1", "group/s2", "other"]


def test_times_are_those_of_this_machine(runs: Path, monkeypatch: pytest.MonkeyPatch):
    file = runs / "other" / "run.json"
    record = json.loads(file.read_text()) | {"at": "2026-01-01T12:00:00+00:00"}
    file.write_text(json.dumps(record))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert read_summary(runs / "other").at == "2026-01-01T21:00:00+09:00"
    finally:
        monkeypatch.undo()
        time.tzset()


# diff


def test_a_run_equals_itself(place: Path, capsys: pytest.CaptureFixture[str]):
    out = said(capsys, "diff", place / "other", place / "other")
    assert out.count("no difference") == 4


def test_two_trainings_of_one_command_have_equal_curves(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    train(tmp_path / "again")
    found = json.loads(said(capsys, "diff", place / "group" / "s1", tmp_path / "again", "--json"))
    assert found["reports"]["common"] == found["reports"]["equal"] > 1


def test_policies_have_scores_and_times_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name, speed in (("a", 1.0), ("b", 2.0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("algo: ppo\nenv.id: A\n")
        report = {
            "env_steps": 8, "wall_s": 1.0, "policy_0/throughput/updates_per_s": speed,
            "policy_0/episode/return_mean": 1.0, "policy_1/episode/return_mean": 3.0,
        }  # fmt: skip
        (tmp_path / name / "metrics.jsonl").write_text(f"{json.dumps(report)}\n")
    found = json.loads(said(capsys, "diff", tmp_path / "a", tmp_path / "b", "--json"))
    assert found["reports"]["metrics"] == []
    assert found["scores"] == {"episode/return_mean": [3.0, 3.0]}


def test_differences(place: Path, capsys: pytest.CaptureFixture[str]):
    pair = place / "group" / "s1", place / "other"
    out = said(capsys, "diff", *pair)
    assert re.search(r"\n  learning_rate  +0\.0003 \(default\) +0\.0001 \(call\)\n", out)
    assert re.search(r"\n  eval\.episodes  +0 \(call\) +2 \(call\)\n", out)
    assert "run_dir" not in out
    assert re.search(
        r"\n  of \d reports at the same env_steps the first 0 are equal; at \d+ these ", out
    )
    found = json.loads(said(capsys, "diff", *pair, "--json"))
    assert found["options"]["learning_rate"]["values"] == [3e-4, 1e-4]
    assert found["versions"] == found["environment"] == {}
    assert found["scores"]["eval/return_mean"][0] is None
    assert found["reports"]["equal"] == 0 < found["reports"]["at"] <= 64


def test_versions_and_spaces(runs: Path, capsys: pytest.CaptureFixture[str]):
    run = runs / "other"
    shutil.copytree(run, runs / "twin")
    shutil.rmtree(runs / "twin" / "checkpoints")  # so that run.json tells
    path = runs / "twin" / "run.json"
    record = json.loads(path.read_text())
    record["system"]["numpy"] = "1.0"
    path.write_text(json.dumps(record))
    found = json.loads(said(capsys, "diff", run, runs / "twin", "--json"))
    assert found["versions"]["numpy"][1] == "1.0"
    assert found["options"] == {}
    assert found["reports"] == {"common": 9, "equal": 9, "at": None, "metrics": []}
    assert found["environment"] is None  # which only checkpoints tell


def test_means_over_other_steps_are_not_compared(runs: Path, capsys: pytest.CaptureFixture[str]):
    """As of runs that report by the clock."""
    run = runs / "group" / "s1"
    shutil.copytree(run, runs / "twin")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = {**json.loads(lines[-1]), "loss/policy": 9.0}
    for name, kept in (("group/s1", lines[:-1]), ("twin", lines[:-2])):
        shutil.rmtree(runs / name / "checkpoints")  # which hold a mark of the reports
        text = "\n".join([*kept, lines[-1] if name == "group/s1" else json.dumps(last), ""])
        (runs / name / "metrics.jsonl").write_text(text)
    found = json.loads(said(capsys, "diff", run, runs / "twin", "--json"))["reports"]
    assert found == {"common": 7, "equal": 7, "at": None, "metrics": []}


def test_runs_without_a_report_of_the_same_steps_are_not_called_equal(
    runs: Path, capsys: pytest.CaptureFixture[str]
):
    run = runs / "group" / "s1"
    shutil.copytree(run, runs / "twin")
    for name, odd in (("group/s1", 0), ("twin", 1)):
        shutil.rmtree(runs / name / "checkpoints")
        path = runs / name / "metrics.jsonl"
        reports = [json.loads(line) for line in path.read_text().splitlines()]
        moved = [json.dumps({**each, "env_steps": each["env_steps"] + odd}) for each in reports]
        path.write_text("\n".join([*moved, ""]))
    assert "so none were compared" in said(capsys, "diff", run, runs / "twin")


def test_a_link_in_a_circle_hides_no_run(runs: Path, capsys: pytest.CaptureFixture[str]):
    (runs / "circle").symlink_to("circle")
    assert len(find_runs(runs)) == len(find_runs(runs / "group")) + 1
    capsys.readouterr()


def test_a_run_of_a_learner_that_is_not_here_is_sound(runs: Path):
    run = runs / "other"
    shutil.rmtree(run / "checkpoints")
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace("loss/policy", "loss/of_a_plugin", 1))
    found = read_summary(run)
    assert found.state == "finished"
    assert found.reports
    path.unlink()
    assert read_summary(run).env_steps == found.env_steps  # as run.json says


def test_what_is_not_known_does_not_differ(runs: Path, capsys: pytest.CaptureFixture[str]):
    """Spaces are in checkpoints, which a run that has just begun lacks."""
    shutil.rmtree(runs / "group" / "s2" / "checkpoints")
    pair = runs / "group" / "s1", runs / "group" / "s2"
    assert "environment\n  not known of both\n" in said(capsys, "diff", *pair)
    assert json.loads(said(capsys, "diff", *pair, "--json"))["environment"] is None


def test_what_is_no_run(tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["diff", str(place / "other"), str(tmp_path)]) == 1
    assert "a run must have options" in capsys.readouterr().err
    assert cli.main(["diff", str(place / "other")]) == 2
    assert "must get two runs, got 1" in capsys.readouterr().err


# report


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def page(out: Path, *folders: Path) -> Page:
    assert cli.main(["report", *map(str, folders), "--out", str(out)]) == 0
    return Page(out.read_text())


def require_harmless(found: Page) -> None:
    """No script, no handler, nothing from outside."""
    names = {tag for tag, _ in found.tags}
    assert not names & {"script", "iframe", "object", "embed", "link", "base", "form", "svg"}
    for _, attrs in found.tags:
        assert not [name for name in attrs if name.startswith("on")]
        for name in ("src", "href"):
            assert (attrs.get(name) or "#").startswith(("#", "data:image/svg", "data:video/mp4"))
    (policy,) = [a["content"] for a in found.of("meta") if "http-equiv" in a]
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_a_page(place: Path, tmp_path: Path):
    pytest.importorskip("matplotlib")
    found = page(tmp_path / "page.html", place)
    require_harmless(found)
    pictures = {each["alt"]: each["src"] for each in found.of("img")}
    assert {"Score", "Score over time", "Health over time"} <= set(pictures)
    for source in pictures.values():
        assert source is not None
        data = base64.b64decode(source.partition("base64,")[2])
        assert data.startswith(b"<?xml")
        assert b"<script" not in data
        assert b'href="http' not in data
    assert "group" not in found.of("a")[0]["href"]
    for words in ("learning_rate", "0.0001", "call", "finished", "None was found.", TOY, "torch"):
        assert words in found.text


@pytest.mark.slow
def test_a_page_of_a_population(tmp_path: Path):
    train(tmp_path / "run", 1_024, population__size=2)
    found = page(tmp_path / "page.html", tmp_path / "run")
    require_harmless(found)
    titles = [each["alt"] for each in found.of("img")]
    assert "Copies and tuned options of the population" in titles
    assert "Score" in titles


@pytest.mark.slow
def test_films_are_in_the_page(runs: Path, tmp_path: Path):
    run = runs / "other"
    film = b"\x00\x00\x00\x18ftypisom" + bytes(20)
    (run / "videos").mkdir()
    (run / "videos" / "a.mp4").write_bytes(film)
    (run / "b.mp4").write_bytes(b"no film at all")
    (run / "c.mp4").symlink_to(run / "videos" / "a.mp4")
    found = page(tmp_path / "page.html", run)
    (shown,) = found.of("video")
    assert shown["src"] == f"data:video/mp4;base64,{base64.b64encode(film).decode()}"
    assert "16 MiB" not in found.text
    (run / "videos" / "0.mp4").write_bytes(film + bytes(16 * 2**20))
    for name in ("1.mp4", "2.mp4", "3.mp4"):
        (run / "videos" / name).write_bytes(film)
    found = page(tmp_path / "page.html", run)
    assert len(found.of("video")) == 3
    assert "Left out: 0.mp4, a.mp4." in found.text
    (run / "videos").rename(tmp_path / "elsewhere")
    (run / "videos").symlink_to(tmp_path / "elsewhere")
    assert page(tmp_path / "page.html", run).of("video") == []


def test_a_strangers_folder_does_nothing(runs: Path, tmp_path: Path):
    """Texts that are code stay texts, wherever the folder has them."""
    run = runs / f"{EVIL.replace('/', '')}&"
    (runs / "other").rename(run)
    shutil.rmtree(run / "checkpoints")
    options = (run / "config.yaml").read_text()
    options = re.sub(r"\nenv\.id: .*", f"\nenv.id: '{EVIL}'", options)
    options = re.sub(r"\npreset: .*", "\npreset: '\"><img src=x onerror=alert(2)>'", options)
    (run / "config.yaml").write_text(f"{options}\n'{EVIL}': 'javascript:alert(3)'\n")
    record = json.loads((run / "run.json").read_text())
    record |= {"error": EVIL, "state": "failed", "at": EVIL}
    record["system"] = {EVIL: EVIL}
    record["sources"] = {"gamma": EVIL, "seed": "call"}
    record["choices"] = [{"choice": "gamma", "said": EVIL, "option": EVIL, "env_steps": 2}]
    (run / "run.json").write_text(json.dumps(record))
    line = {"env_steps": 9.0, f"health/{EVIL}": -1.0, "policy_9/health/a": -1.0, "wall_s": 1e308}
    line |= {"episode/return_mean": 1e300, "policy_" + "9" * 5_000 + "/x": 1.0}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    (run / f"{EVIL.replace('/', '')}.mp4").write_bytes(b"\x00\x00\x00\x18ftyp" + bytes(9))
    found = page(tmp_path / "page.html", runs)
    require_harmless(found)
    assert found.text.count(EVIL) >= 6
    raw = (tmp_path / "page.html").read_text()
    assert EVIL not in raw
    assert "<img src=x" not in raw
    for source in (each["src"] for each in found.of("img")):
        assert source is not None
        data = base64.b64decode(source.partition("base64,")[2])
        assert b"<script" not in data


def test_control_characters_reach_no_terminal(runs: Path, capsys: pytest.CaptureFixture[str]):
    run = runs / "other"
    record = json.loads((run / "run.json").read_text())
    choice = {"choice": "x", "said": "a\u202eb\x00", "option": "c\x1bd"}
    record |= {"error": "a\x1b[31mred\nb", "state": "failed", "choices": [choice]}
    (run / "run.json").write_text(json.dumps(record))
    run.rename(runs / "o\x1b[31mther")
    out = said(capsys, "runs", runs)
    assert "\x1b" not in out
    assert "\\x1b[31mred\\nb" in out
    (told,) = read_summary(runs / "o\x1b[31mther").choices
    assert (told.said, told.option) == ("a\\u202eb\\x00", "c\\x1bd")


def test_refusals(tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]):
    for words, told in (
        (["report", str(place)], "must get at least one run and a file"),
        (["report", str(place), "--out", "page.pdf"], "--out must end in .html"),
    ):
        assert cli.main(words) == 2
        assert told in capsys.readouterr().err
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "a.html")]) == 1
    assert "RUN must be a run folder, or a folder with runs" in capsys.readouterr().err
    typo = [str(place / "other"), str(place / "typo"), "--out", str(tmp_path / "x.html")]
    assert cli.main(["report", *typo]) == 1
    assert f"got {place / 'typo'} with none" in capsys.readouterr().err


def test_health_is_drawn_by_state():
    reports = [
        {"env_steps": 10.0, "health/policy": 0.0},
        {"env_steps": 20.0, "health/policy": 1.0},
        {"env_steps": 30.0, "health/policy": -1.0, "health/value_function": 1.0},
    ]
    drawn = health_over_time(reports)
    assert drawn is not None
    for colour in (b"#d9d9d9", b"#009e73", b"#e69f00"):
        assert colour in drawn
    assert health_over_time([{"env_steps": 1.0}]) is None


def test_of_many_policies_the_first_are_drawn_and_the_rest_is_told(
    monkeypatch: pytest.MonkeyPatch,
):
    names = [f"policy_{policy}/health/policy" for policy in range(18)]
    shown: list[Any] = []
    monkeypatch.setattr(report_figures, "svg", lambda figure: shown.append(figure) or b"")
    health_over_time([{"env_steps": 10.0, **dict.fromkeys(names, 1.0)}])
    (axes,) = shown[0].axes
    labels = [each.get_text() for each in axes.get_yticklabels()]
    assert labels == [f"policy of policy {policy}" for policy in range(16)]
    assert axes.get_xlabel() == "env steps (2 more parts are not drawn)"


def test_a_summary_of_a_run_that_has_just_begun(tmp_path: Path):
    (tmp_path / "config.yaml").write_text("algo: ppo\nenv.id: A\nseed: 3\n")
    found = read_summary(tmp_path)
    assert (found.learner, found.environment, found.seed) == ("ppo", "A", "3")
    assert (found.state, found.env_steps, found.score) == ("interrupted", 0, None)
