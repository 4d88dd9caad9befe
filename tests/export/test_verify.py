"""Verification by itself: whole exports pass, damaged, changed and forged ones are refused."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cells import Cell
from damage import MUTATIONS

from quintet.cli import main
from quintet.errors import ExportError, QuintetError, UntrustedError
from quintet.export.certificate import CERTIFICATE, as_bytes
from quintet.export.make import export
from quintet.export.verify import verify

pytest.importorskip("onnxscript", reason="exports must have the extra export")

CELL = Cell(
    "ppo", "tuple", "tuple", {"core": "gru", "shared_torso": True}, {"normalize_observations": True}
)


@pytest.fixture(scope="module")
def exports(tmp_path_factory) -> dict[str, Path]:
    """Exports that are verified without PyTorch."""
    root, policy = tmp_path_factory.mktemp("exports"), CELL.policy()
    for format in ("onnx", "numpy"):
        export(policy, root / format, format, steps=400, observations="space")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def of_torch(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "torch"
    export(CELL.policy(), folder, "torch", steps=400, observations="space")
    return folder


@pytest.fixture
def copy(exports, tmp_path) -> Callable[[str], Path]:
    def make(format: str = "onnx") -> Path:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        return shutil.copytree(exports[format], tmp_path / "copy")

    return make


def contents(folder: Path) -> dict[str, bytes | None]:
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


def test_whole_exports_pass(exports, capsys) -> None:
    for format, folder in exports.items():
        assert main(["verify", str(folder)]) == 0, format
        said = capsys.readouterr().out
        assert "400 of 400 greedy and 400 of 400 sampled actions are equal" in said
        assert "samples of the observation space" in said
    assert main(["verify", str(exports["onnx"]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["compared"]["greedy"] == {"compared": 400, "equal": 400, "ties": 0}
    assert found["steps"] == 400
    assert found["played_by"].startswith("onnxruntime")


def test_what_is_no_export(tmp_path, capsys) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert "must be a folder that quintet export wrote" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "absent")]) == 1
    assert main(["verify"]) == 2
    assert "quintet verify must get a folder" in capsys.readouterr().err.split("error: ", 2)[2]


@pytest.mark.parametrize("seed", range(4))
def test_damaged_exports_are_refused(seed: int, exports, copy) -> None:
    """200 mutations, 50 with each seed."""
    rng = np.random.default_rng(seed)
    refused = 0
    while refused < 50:
        format = ("onnx", "numpy")[refused % 2]
        folder = copy(format)
        files = sorted(folder.iterdir())
        file, other = (files[int(i)] for i in rng.choice(len(files), 2, replace=False))
        change = MUTATIONS[int(rng.integers(len(MUTATIONS)))]
        change(file, other, rng)
        if contents(folder) == contents(exports[format]):
            continue
        with pytest.raises(QuintetError):
            verify(folder)
        refused += 1


def edited(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Changes a JSON file as an editor would, without the hashes."""
    held = json.loads((folder / name).read_text())
    change(held)
    (folder / name).write_bytes(as_bytes(held))


def sealed(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda _: None) -> None:
    """Writes all hashes anew, as a forger would."""
    about = json.loads((folder / "policy.json").read_text())
    for name in about["sha256"]:
        about["sha256"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "policy.json").write_bytes(as_bytes(about))
    held = json.loads((folder / CERTIFICATE).read_text())
    for name in held["files"]:
        data = (folder / name).read_bytes()
        held["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change(held)
    rest = {k: x for k, x in held.items() if k != "sha256"}
    held["sha256"] = hashlib.sha256(as_bytes(rest)).hexdigest()
    (folder / CERTIFICATE).write_bytes(as_bytes(held))


def with_steps(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    arrays = dict(np.load(folder / "steps.npz"))
    change(arrays)
    np.savez(folder / "steps.npz", **arrays)


def other_weights(folder: Path) -> None:
    import onnx
    from onnx import numpy_helper

    model = onnx.load(folder / "policy.onnx")
    weights = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    array = numpy_helper.to_array(weights).copy()
    array.flat[0] += 0.5
    weights.raw_data = array.tobytes()
    onnx.save(model, folder / "policy.onnx")


def roll(name: str) -> Callable[[Path], None]:
    return lambda folder: with_steps(
        folder, lambda arrays: arrays.update({name: np.roll(arrays[name], 1, 0)})
    )


def set_in(name: str, value: np.ndarray) -> Callable[[Path], None]:
    return lambda folder: with_steps(folder, lambda arrays: arrays.update({name: value}))


def bomb(folder: Path) -> None:
    """An archive of a few bytes that unpack to megabytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(folder / "steps.npz") as was, zipfile.ZipFile(file, "w", 8) as now:
        for entry in was.infolist():
            data = bytes(2**26) if entry.filename == "in/noise.npy" else was.read(entry)
            now.writestr(entry.filename, data)
    (folder / "steps.npz").write_bytes(file.getvalue())


FORGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "weights": (other_weights, "must answer as its policy"),
    "answers": (roll("greedy/params"), "'params' differs"),
    "actions": (roll("greedy/action/0"), "greedy actions differ"),
    "sampled": (roll("sampled/action/1"), "sampled actions differ"),
    "states": (roll("greedy/next_state/core/h0"), "'next_state/core/h0' differs"),
    "pickle": (set_in("in/noise", np.array([{}])), "must hold the steps"),
    "shape": (set_in("in/noise", np.zeros((2, 2), np.float32)), "must hold the steps"),
    "more": (set_in("in/other", np.zeros(2)), "must hold the steps"),
    "no archive": (lambda f: (f / "steps.npz").write_bytes(b"PK"), "must hold the steps"),
    "bomb": (bomb, "must hold the steps"),
    "model": (lambda f: (f / "policy.onnx").write_bytes(b"\x08\x0a"), "must be a program"),
    "space": (lambda f: edited(f, "policy.json", lambda x: x.update(algo=1)), "algo: "),
    "state": (
        lambda f: edited(f, "policy.json", lambda x: x["state"].clear()),
        "state must name every state",
    ),
    "port": (
        lambda f: edited(f, "policy.json", lambda x: x["inputs"][0].update(name="x")),
        "must have the inputs|must hold the steps",
    ),
    "further": (lambda f: edited(f, "policy.json", lambda x: x.update(more=1)), "more: "),
}


@pytest.mark.parametrize("kind", FORGED)
def test_forged_exports_are_refused(kind: str, copy) -> None:
    folder = copy()
    forge, message = FORGED[kind]
    forge(folder)
    sealed(folder)
    with pytest.raises(ExportError, match=message):
        verify(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.update(rows=10**7), "must have .* bytes of memory|must hold the steps"),
        (lambda x: x.update(rows=0), "rows: "),
        (lambda x: x.update(tolerance=0.1), "tolerance: .*less than or equal to 0.001"),
        (lambda x: x.update(tie=0.1), "tie: "),
        (lambda x: x["files"].pop("policy.json"), "must list policy.json"),
        (lambda x: x["files"].pop("policy.onnx"), "must have the SHA-256 of policy.onnx"),
        (lambda x: x["files"].update({"../x": x["files"]["policy.onnx"]}), "must list plain names"),
    ],
)
def test_forged_certificates_are_refused(change, message, copy) -> None:
    folder = copy()
    sealed(folder, change)
    with pytest.raises(QuintetError, match=message):
        verify(folder)


def test_an_edited_certificate_is_refused(copy) -> None:
    for change in (
        lambda x: x["compared"]["greedy"].update(ties=1),
        lambda x: x["versions"].update(torch="9"),
        lambda x: x.update(signature="v1:0"),
    ):
        folder = copy()
        edited(folder, CERTIFICATE, change)
        with pytest.raises(ExportError):
            verify(folder)


MISSING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Missing())
"""


def run(code: str, *without: str, cwd: Path | None = None) -> str:
    """Runs code in a process in which some packages are missing."""
    done = subprocess.run(
        [sys.executable, "-c", MISSING.format(names=without) + code],
        cwd=cwd, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("format", ["onnx", "numpy"])
def test_without_pytorch(format: str, exports) -> None:
    code = f"from quintet.cli import main; sys.exit(main(['verify', {str(exports[format])!r}]))"
    without = ("torch", "gymnasium", "onnx") + (("onnxruntime",) if format == "numpy" else ())
    assert "400 of 400 greedy" in run(code, *without)


def plays_its_steps(folder: Path, *without: str) -> None:
    code = "import runpy; sys.path.insert(0, '.'); runpy.run_path('example.py')"
    said = run(code, "quintet", *without, cwd=folder)
    assert said.startswith("50 of 50 rows of 8 actions are as recorded"), said


def test_examples_run_without_quintet(exports) -> None:
    plays_its_steps(exports["onnx"], "torch", "onnx", "gymnasium")
    plays_its_steps(exports["numpy"], "torch", "onnx", "gymnasium", "onnxruntime")


def test_noise_may_be_left_out(exports) -> None:
    import onnxruntime

    policy, obs = CELL.policy(), (np.array([1, 0]), np.array([[0.5, -1.0], [2.0, 0.1]], np.float32))
    session = onnxruntime.InferenceSession(exports["onnx"] / "policy.onnx")
    given = {name: np.zeros((2, 5), np.float32) for name in ("state/core/h0",)}
    given |= {"obs/0": obs[0], "obs/1": obs[1], "is_first": np.ones(2, np.bool_)}
    choice, numbers = session.run(["action/0", "action/1"], given)
    wanted = policy.act(obs)[0]
    assert choice.tolist() == wanted[0].tolist()
    assert numbers == pytest.approx(wanted[1], abs=1e-6)


@pytest.mark.slow
def test_programs_of_pytorch_of_others_are_not_loaded(
    exports, of_torch, monkeypatch, tmp_path
) -> None:
    plays_its_steps(of_torch)
    verify(of_torch)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    verify(exports["onnx"])
    with pytest.raises(UntrustedError, match="a program of PyTorch can run code"):
        verify(of_torch)
    verify(of_torch, trust=True)
