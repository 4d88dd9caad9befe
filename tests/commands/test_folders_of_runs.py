"""Commands that read folders with runs, which may be a stranger's."""

import json
import tracemalloc
from pathlib import Path

import pytest
from forged_runs_helpers import forged

from quintet.commands import cli


@pytest.mark.parametrize("command", ["runs", "plot", "report", "doctor", "compare"])
def test_links_to_runs_elsewhere_are_not_followed(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, others = tmp_path / "given", tmp_path / "others"
    forged(given / "mine")
    forged(others / "private")
    (given / "more").mkdir()
    for name, target in {
        "x": "/", "up": "..", "theirs": others, "mine2": "mine", "more/one": others / "private"
    }.items():  # fmt: skip
        (given / name).symlink_to(target)
    out = tmp_path / {"plot": "out.png", "report": "out.html"}.get(command, "")
    words = [command, given, *(["--out", out] if out != tmp_path else ["--json"])]
    words += ["--with", given / "mine"] if command == "compare" else []
    assert cli.main([str(word) for word in words]) in (0, 1)
    found = capsys.readouterr()
    told = f"links to folders elsewhere are not followed: {given}/more/one, {given}/theirs, "
    assert f"warning: {told}{given}/up and 1 more" in found.err
    assert "mine2" not in found.err
    assert "private" not in found.out.replace(str(tmp_path), "")
    if command == "report":
        assert "private" not in out.read_text().replace(str(tmp_path), "")
    elif command == "runs":
        assert [each["run"] for each in json.loads(found.out)] == [str(given / "mine")]


def test_a_folder_that_is_named_may_be_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged(tmp_path / "others" / "a")
    (tmp_path / "link").symlink_to("others")
    assert cli.main(["runs", str(tmp_path / "link"), "--json"]) == 0
    found = capsys.readouterr()
    assert [each["run"] for each in json.loads(found.out)] == [str(tmp_path / "link" / "a")]
    assert found.err == ""


def test_the_reports_of_listed_runs_are_not_all_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = forged(tmp_path / "run")
    names = ["env_steps", *(f"loss/part_{k}" for k in range(60))]
    rows = [[row + k / 7 for k in range(61)] for row in range(2001)]
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (run / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    size = sum(each.stat().st_size for each in run.iterdir())
    tracemalloc.start()
    assert cli.main(["runs", str(tmp_path), "--json"]) == 0
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["env_steps"], listed["faults"]) == (2000, [])
    assert 2 * most < size
