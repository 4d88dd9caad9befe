"""Verification by itself: whole exports pass, damaged, changed and forged ones are refused."""

import hashlib
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cells_helpers import Cell, once
from damage_helpers import MUTATIONS
from forge_helpers import HOSTILE, place_in, replaced
from installed_helpers import need

from quintet.commands.cli import main
from quintet.errors import ExportError, QuintetError
from quintet.export import programs
from quintet.export.certificate import CERTIFICATE, as_bytes
from quintet.export.make import export
from quintet.export.verification import verify

need("exports must have the extra export", "onnxscript")

CELL = Cell(
    "ppo",
    "tuple",
    "tuple",
    {"core": "gru", "shared_torso": True, "layer_norm": True},
    {"normalize_observations": True},
)


@pytest.fixture(scope="module")
def exports(tmp_path_factory) -> dict[str, Path]:
    """Exports that are verified without PyTorch, of a policy that is traced once."""
    root, policy = tmp_path_factory.mktemp("exports"), CELL.policy()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("traced", "onnx_program"):
            patch.setattr(programs, name, once(getattr(programs, name)))
        for format in ("onnx", "numpy"):
            export(policy, root / format, format, steps=400, observations="space")
    return {path.name: path for path in root.iterdir()}


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
    assert found["compared"]["single"] == {"compared": 50, "equal": 50, "ties": 0}
    assert found["steps"] == 400
    assert found["played_by"].startswith("onnxruntime")


def test_what_is_no_export(tmp_path, capsys) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert "must be a folder that quintet export wrote" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "absent")]) == 1
    assert main(["verify"]) == 2
    assert "quintet verify needs a folder" in capsys.readouterr().err.split("error: ", 2)[2]


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


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sealed(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda _: None) -> None:
    """Writes all hashes anew, as a forger would."""
    about = json.loads((folder / "policy.json").read_text())
    for name in about["sha256"]:
        about["sha256"][name] = sha256((folder / name).read_bytes())
    (folder / "policy.json").write_bytes(as_bytes(about))
    resealed(folder, change)


def resealed(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda _: None) -> None:
    """Writes all hashes of the certificate anew."""
    held = json.loads((folder / CERTIFICATE).read_text())
    for name in held["files"]:
        data = (folder / name).read_bytes()
        held["files"][name] = {"size": len(data), "sha256": sha256(data)}
    change(held)
    rest = {k: x for k, x in held.items() if k != "sha256"}
    held["sha256"] = sha256(as_bytes(rest))
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
    "model": (lambda f: (f / "policy.onnx").write_bytes(b"\x08\x0a"), "onnx can't be played"),
    "space": (lambda f: edited(f, "policy.json", lambda x: x.update(algo=1)), "algo: "),
    "state": (
        lambda f: edited(f, "policy.json", lambda x: x["state"].clear()),
        "state must map each state",
    ),
    "port": (
        lambda f: edited(f, "policy.json", lambda x: x["inputs"][0].update(name="x")),
        "must have the inputs|must hold the steps",
    ),
    "further": (lambda f: edited(f, "policy.json", lambda x: x.update(more=1)), "more: "),
    "escapes": (
        lambda f: edited(f, "policy.json", lambda x: x["env"].update(id="\x1b[2J")),
        "env.id: strings must have only printable characters",
    ),
    "escapes in a name": (
        lambda f: edited(f, "policy.json", lambda x: x["versions"].update({"\x1b[2J": "1"})),
        "strings must have only printable characters",
    ),
    "no action": (
        lambda f: edited(f, "policy.json", lambda x: x.update(outputs=x["outputs"][2:])),
        "there must be an observation and an action",
    ),
    "noise of another name": (
        lambda f: edited(f, "policy.json", lambda x: x["inputs"][-1].update(name="x")),
        "a port with role is_first, noise, params, value must be named after it",
    ),
    "table of parameters": (
        lambda f: edited(f, "policy.json", lambda x: params_of(x).update(shape=[2, 3])),
        "noise and params must have one dimension",
    ),
    "choice of numbers": (
        lambda f: edited(
            f, "policy.json", lambda x: x["choices"][0].update(action="action/1", size=1)
        ),
        "choices must lie within whole actions",
    ),
}


def params_of(interface: dict[str, Any]) -> dict[str, Any]:
    return next(port for port in interface["outputs"] if port["name"] == "params")


@pytest.mark.parametrize("kind", FORGED)
def test_forged_exports_are_refused(kind: str, copy) -> None:
    folder = copy()
    forge, message = FORGED[kind]
    forge(folder)
    sealed(folder)
    with pytest.raises(ExportError, match=message) as refused:
        verify(folder)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.update(rows=10**7), "must have .* bytes of memory|must hold the steps"),
        (lambda x: x.update(rows=0), "rows: "),
        (lambda x: x.update(tolerance=0.1), "tolerance: .*less than or equal to 0.001"),
        (lambda x: x.update(tie=0.1), "tie: "),
        (lambda x: x["files"].pop("policy.json"), "must list policy.json"),
        (
            lambda x: x["files"].pop("policy.onnx"),
            "must have the SHA-256 that the certificate lists for policy.onnx",
        ),
        (lambda x: x["files"].update({"../x": x["files"]["policy.onnx"]}), "must list plain names"),
        (lambda x: x["files"].update({"": x["files"]["policy.onnx"]}), "can't be read"),
        (lambda x: x["files"].update({"\udc9b": x["files"]["policy.onnx"]}), "valid string"),
        (lambda x: x["files"].update({"\x7f": x["files"]["policy.onnx"]}), "printable"),
        (lambda x: x.update(observations="\x1b]0;"), "observations: .*printable"),
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


@pytest.mark.parametrize("name", [CERTIFICATE, "policy.onnx"])
def test_files_that_would_fill_the_memory_are_not_read(name: str, copy) -> None:
    folder = copy()
    with open(folder / name, "r+b") as file:
        file.truncate(2**43)  # a hole, which takes no place
    with pytest.raises(ExportError, match=f"{name} must have at most .* bytes, got 8,796,093"):
        verify(folder)


def test_a_program_that_unpacks_to_more_is_refused(copy) -> None:
    folder = copy("numpy")
    arrays = dict(np.load(folder / "policy.npz"))
    np.savez_compressed(folder / "policy.npz", **arrays, **{"c/more": np.zeros(10**6)})
    sealed(folder)
    with pytest.raises(ExportError, match=r"ValueError: it has compressed arrays"):
        verify(folder)


def endless(folder: Path) -> None:
    """A number is added to an output that a loop without an end computes."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def constant(name: str, value: Any, dtype: str = "float32") -> Any:
        return numpy_helper.from_array(np.array(value, dtype), name)

    model = onnx.load(folder / "policy.onnx")
    graph = model.graph
    out = next(x for x in graph.output if x.type.tensor_type.elem_type == TensorProto.FLOAT)
    for node in graph.node:
        node.output[:] = [f"{name}/as_was" if name == out.name else name for name in node.output]
        node.input[:] = [f"{name}/as_was" if name == out.name else name for name in node.input]

    def port(name: str, kind: int, shape: list[int]) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Identity", ["goes_on"], ["still"]),
            helper.make_node("Add", ["x", "loop/one"], ["x_after"]),
        ],
        "body",
        [port("step", TensorProto.INT64, []), port("goes_on", TensorProto.BOOL, []),
         port("x", TensorProto.FLOAT, [])],
        [port("still", TensorProto.BOOL, []), port("x_after", TensorProto.FLOAT, [])],
    )  # fmt: skip
    graph.initializer.extend(
        [constant("loop/one", 1.0), constant("loop/zero", 0.0), constant("loop/on", True, "bool")]
    )
    graph.node.extend(
        [
            helper.make_node("Loop", ["", "loop/on", "loop/zero"], ["loop/x"], body=body),
            helper.make_node("Mul", ["loop/x", "loop/zero"], ["loop/nothing"]),
            helper.make_node("Add", [f"{out.name}/as_was", "loop/nothing"], [out.name]),
        ]
    )
    onnx.save(model, folder / "policy.onnx")


def with_nodes(*nodes: tuple[Any, ...], **constants: Any) -> Callable[[Path], None]:
    """Adds nodes, the first of which takes only constants, to a model whose first output takes
    part of the last one's.
    """

    def change(folder: Path) -> None:
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        model = onnx.load(folder / "policy.onnx")
        graph = model.graph
        out = next(x for x in graph.output if x.type.tensor_type.elem_type == TensorProto.FLOAT)
        for node in graph.node:
            node.output[:] = [f"{x}/was" if x == out.name else x for x in node.output]
            node.input[:] = [f"{x}/was" if x == out.name else x for x in node.input]
        graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
        )
        made = [helper.make_node(*each[:3], **dict(*each[3:])) for each in nodes]
        last = nodes[-1][2][0]
        made += [
            helper.make_node("ReduceMax", [last], ["most"], keepdims=0),
            helper.make_node("Add", [f"{out.name}/was", "most"], [out.name]),
        ]
        graph.node.extend(made)
        onnx.save(model, folder / "policy.onnx")

    return change


def outside(folder: Path) -> None:
    """Weights in a file of the working folder."""
    import onnx

    model = onnx.load(folder / "policy.onnx")
    tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    (folder.parent / "weights").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights")
    (folder / "policy.onnx").write_bytes(model.SerializeToString())


def lying(folder: Path) -> None:
    """An archive with an entry that unpacks to 256 MiB, and says that it has 2,000 bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(folder / "steps.npz") as was, zipfile.ZipFile(file, "w", 8) as archive:
        for entry in was.infolist():
            if entry.filename != "in/noise.npy":
                archive.writestr(entry.filename, was.read(entry))
        with archive.open("in/noise.npy", "w") as out:
            for _ in range(2**4):
                out.write(bytes(2**24))
        archive.getinfo("in/noise.npy").file_size = 2000
    (folder / "steps.npz").write_bytes(file.getvalue())


def in_numpy(*nodes: tuple[Any, ...], **constants: Any) -> Callable[[Path], None]:
    """Puts nodes before those of a program for NumPy, and has its outputs wait for them."""

    def change(folder: Path) -> None:
        arrays = dict(np.load(folder / "policy.npz"))
        program = json.loads(arrays["program"].tobytes())
        out = next(x for x in program["outputs"] if x == "value")
        program["nodes"] = [
            [name, takes, [f"{x}/was" if x == out else x for x in gives], options]
            for name, takes, gives, options in program["nodes"]
        ]
        last = nodes[-1][2][0]
        program["nodes"] += [
            *nodes,
            ["ReduceMax", [last], ["most"], {"axes": [0, 1], "keepdims": 0}],
            ["Add", [f"{out}/was", "most"], [out], {}],
        ]
        text = np.frombuffer(json.dumps(program).encode(), np.uint8)
        added = {f"c/{name}": np.asarray(value) for name, value in constants.items()}
        np.savez(folder / "policy.npz", **arrays | added | {"program": text})

    return change


MEMORY, TIME = (
    "takes more memory than allowed (60 s and 2 GiB)",
    "must take at most 2 s and 2 GiB, but had",
)
HELD = "must hold the steps"
SIDE = 4000
WIDE = np.zeros((SIDE, 1), np.float32)
COSTLY: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "constant": (
        "onnx",
        with_nodes(("ConstantOfShape", ["shape"], ["large"]), shape=[30000, 30000]),
        MEMORY,
    ),
    "products of constants": (
        "onnx",
        with_nodes(
            ("MatMul", ["column", "row"], ["x0"]),
            *(("MatMul", [f"x{k}", f"x{k}"], [f"x{k + 1}"]) for k in range(400)),
            column=WIDE,
            row=WIDE.T,
        ),
        TIME,
    ),
    "expanded": (
        "onnx",
        with_nodes(
            ("Expand", ["is_first/number", "shape"], ["large"]),
            shape=[30000, 30000],
            **{"is_first/number": np.zeros(1, np.float32)},
        ),
        MEMORY,
    ),
    "loop": ("onnx", endless, TIME),
    "data outside": ("onnx", outside, "tensors in other files, which no hash covers"),
    "archive that lies": ("onnx", lying, HELD),
    "sum in numpy": (
        "numpy",
        in_numpy(
            ["Expand", ["one", "shape"], ["large"], {}],
            ["Exp", ["large"], ["x"], {}],
            one=np.zeros(1, np.float32),
            shape=[30000, 30000],
        ),
        MEMORY,
    ),
    "products in numpy": (
        "numpy",
        in_numpy(
            ["MatMul", ["column", "row"], ["x0"], {}],
            *(["MatMul", [f"x{k}", f"x{k}"], [f"x{k + 1}"], {}] for k in range(400)),
            column=WIDE,
            row=WIDE.T,
        ),
        TIME,
    ),
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(x, marks=[pytest.mark.slow] * (x == "products of constants")) for x in COSTLY],
)
def test_an_export_takes_no_more_memory_and_time_than_allowed(
    kind: str, copy, capsys, monkeypatch
) -> None:
    format, forge, said = COSTLY[kind]
    folder = copy(format)
    forge(folder)
    sealed(folder)
    monkeypatch.chdir(folder.parent)
    options = {TIME: ["--most-s", "2"], HELD: ["--most-gib", "0.2"]}.get(said, [])
    # The largest child of this process so far, which may be another test's.
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert main(["verify", str(folder), *options]) == 1
    assert said in capsys.readouterr().err
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert largest <= max(before, 2.5 * 2**20)  # KiB


def test_limits_that_are_none(copy, capsys) -> None:
    for option in ("--most-s", "--most-gib"):
        assert main(["verify", str(copy()), option, "0"]) == 2
        assert f"{option} must be in 0 .. 1,000,000, got 0" in capsys.readouterr().err


def test_hostile_documents(copy) -> None:
    """Values that a stranger may write, with all hashes: refused in a sentence, or of no effect."""
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(80):
        folder = copy(("onnx", "numpy")[int(rng.integers(2))])
        hostile(folder, rng)
        try:
            said = verify(folder).summary()
        except QuintetError as error:
            said = str(error)
            refused += 1
        assert said.isprintable()
    assert refused > 40


def hostile(folder: Path, rng: np.random.Generator) -> None:
    """Puts a hostile value in place of one, in one of the documents."""
    value = HOSTILE[int(rng.integers(len(HOSTILE)))]
    which = rng.choice(["policy.json", CERTIFICATE, "policy.npz"])
    if which == "policy.npz" and (folder / which).exists():
        arrays = dict(np.load(folder / which))
        program = json.loads(arrays["program"].tobytes())
        text = json.dumps(replaced(program, place_in(program, rng), value))
        np.savez(folder / which, **arrays | {"program": np.frombuffer(text.encode(), np.uint8)})
        sealed(folder)
        return
    file = folder / (CERTIFICATE if which == CERTIFICATE else "policy.json")
    held = json.loads(file.read_text())
    changed = replaced(held, place_in(held, rng), value)
    file.write_bytes(as_bytes(changed))
    if file.name == CERTIFICATE and isinstance(changed, dict):
        rest = {k: x for k, x in changed.items() if k != "sha256"}
        file.write_bytes(as_bytes({**rest, "sha256": sha256(as_bytes(rest))}))
    elif file.name != CERTIFICATE:
        resealed(folder)


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
    code = "from quintet.commands.cli import main; "
    code += f"sys.exit(main(['verify', {str(exports[format])!r}]))"
    without = ("torch", "gymnasium", "onnx") + (("onnxruntime",) if format == "numpy" else ())
    assert "400 of 400 greedy" in run(code, *without)


def plays_its_steps(folder: Path, *without: str) -> None:
    code = "import runpy; sys.path.insert(0, '.'); runpy.run_path('example.py')"
    said = run(code, "quintet", *without, cwd=folder)
    assert said.startswith("50 of 50 rows of 8 actions are as recorded"), said


def test_examples_run_without_quintet(exports) -> None:
    plays_its_steps(exports["onnx"], "torch", "onnx", "gymnasium")
    plays_its_steps(exports["numpy"], "torch", "onnx", "gymnasium", "onnxruntime")


@pytest.mark.slow
def test_examples_run_in_a_fresh_environment(exports, tmp_path) -> None:
    """First with numpy alone, then with numpy and onnxruntime."""
    home = tmp_path / "env"
    venv.create(home, with_pip=True)
    variables = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def python(*words: str | Path) -> str:
        done = subprocess.run(
            [home / "bin" / "python", "-B", *words], env=variables, capture_output=True, text=True
        )
        if "Could not find a version" in done.stderr:
            pytest.skip(f"no package index can be reached: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    for package, format in (("numpy", "numpy"), ("onnxruntime", "onnx")):
        python("-m", "pip", "install", "--quiet", package)
        said = python(exports[format] / "example.py")
        assert said.startswith("50 of 50 rows of 8 actions are as recorded"), said
    packages = python("-m", "pip", "list", "--format=freeze")
    assert "quintet" not in packages
    assert "torch" not in packages


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
def test_the_example_of_pytorch_runs(tmp_path) -> None:
    export(CELL.policy(), tmp_path / "torch", "torch", steps=400, observations="space")
    assert main(["verify", str(tmp_path / "torch"), "--trust"]) == 0
    plays_its_steps(tmp_path / "torch")


def test_programs_that_run_no_code_need_no_signature(exports, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    verify(exports["onnx"])
