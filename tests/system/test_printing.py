"""What quintet prints of others' text, and that it prints through one module."""

import ast
import io
import sys
from pathlib import Path

import pytest

import quintet
from quintet.observe.dashboard import TerminalProgress
from quintet.observe.pace import Pace
from quintet.observe.view import View
from quintet.system.printing import LogFile, QuietStream, message, note, plain, say, short

HOME = Path(quintet.__file__).parent
OWN = {"system/printing.py", "export/example_onnx.py"}  # the latter is given to users
PRINTS = {"print", "sys.stdout.write", "sys.stderr.write", "traceback.print_exc"}
EVIL = "\x1b]0;a\x07b\rc\x9bd\x00e\x7f\u202ef\u2066"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain text", "plain text"),
        ("Zürich 東京 👩‍🔬\n\tnext", "Zürich 東京 👩‍🔬\n\tnext"),
        (EVIL, r"\x1b]0;a\x07b\rc\x9bd\x00e\x7f\u202ef\u2066"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("a\r\nb", "a\nb"),
    ],
)
def test_control_characters_have_their_names(text, seen):
    assert plain(text) == seen


def test_a_long_text_has_its_ends_and_says_how_much_is_left_out():
    text = "".join(map(str, range(1000)))
    cut = short(text, 100)
    assert cut == f"{text[:75]} [... {len(text) - 100:,} characters left out ...] {text[-25:]}"
    assert short(text, len(text)) == text
    assert len(message("\x1b" * 5_000_000)) < 21_000


def test_every_way_out_names_control_characters(capsys, tmp_path):
    say(EVIL)
    note(EVIL)
    QuietStream(sys.stdout).line(EVIL)
    log = LogFile(tmp_path / "log.txt")
    log.write(EVIL)
    log.close()
    shown = [*capsys.readouterr(), (tmp_path / "log.txt").read_text()]
    assert all(r"a\x07b\rc\x9bd" in text for text in shown)
    assert not {*"\x1b\x07\r\x9b"} & {*"".join(shown)}


def test_a_dashboard_shows_names_of_others_without_commands(capsys):
    stream = io.StringIO()
    progress = TerminalProgress(View(EVIL, Pace(10, 0), EVIL, choices=(EVIL,)), stream)
    progress.close()
    shown = stream.getvalue()
    assert r"\x1b]0;a\x07b" in shown
    assert "\x1b]0" not in shown
    assert "\x07" not in shown


def test_nothing_but_the_one_module_prints():
    for path in sorted(HOME.rglob("*.py")):
        if path.relative_to(HOME).as_posix() in OWN:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name | ast.Attribute):
                assert ast.unparse(node) not in PRINTS, f"{path}:{node.lineno}"
