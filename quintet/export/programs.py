"""Programs of a whole policy in the formats of exports."""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from quintet.errors import ExportError
from quintet.export.interface import Format
from quintet.export.numpy_policy import OPERATORS
from quintet.export.whole import WholePolicy

OPSET = 20
"""Version of ONNX's operators; onnxruntime plays it from 1.17 on."""

PACKAGES: dict[Format, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "torch": (),
    "numpy": ("onnx", "onnxscript"),
}
"""Packages, beside PyTorch and NumPy, that make and play a program."""

_BATCH = "batch"
_MOST_ROWS = 2**31
"""More than memory holds; PyTorch 2.7 can't trace a slice of a dimension without a bound."""
_SAMPLES = 3
"""Rows of the observations with which a policy is traced: not 1, which PyTorch takes for fixed."""


def traced(whole: WholePolicy) -> torch.export.ExportedProgram:
    """The policy as a graph of PyTorch's operators; raises ExportError where that is impossible."""
    inputs = tuple(
        torch.from_numpy(port.zeros(_SAMPLES)).fill_(port.role == "action_mask")
        for port in whole.inputs
    )
    batch = torch.export.Dim(_BATCH, min=1, max=_MOST_ROWS)
    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(
                whole, (inputs,), dynamic_shapes=(tuple({0: batch} for _ in inputs),), strict=False
            )
    except Exception as fault:  # raised by the exporter, or by a user's module
        raise _cannot("torch.export", fault) from fault


def _without_writes_to_copies(program: torch.export.ExportedProgram) -> None:
    """Makes arithmetic in place on what `Tensor.to` gave, which nothing else reads, arithmetic out
    of place: PyTorch 2.7 refuses to translate it.
    """
    aten = torch.ops.aten
    others = {aten.mul_.Tensor: aten.mul.Tensor, aten.sub_.Tensor: aten.sub.Tensor}
    for node in program.graph.nodes:
        copy = node.args[0] if node.target in others else None
        if (
            isinstance(copy, torch.fx.Node)
            and copy.target is aten.to.dtype
            and len(copy.users) == 1
        ):
            node.target = others[node.target]
    program.graph_module.recompile()


def onnx_program(program: torch.export.ExportedProgram, whole: WholePolicy) -> bytes:
    """A model of ONNX with its weights; raises ExportError where that is impossible."""
    _without_writes_to_copies(program)
    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                input_names=[port.name for port in whole.inputs],
                output_names=[port.name for port in whole.outputs],
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
                external_data=False,
            )
    except Exception as fault:
        raise _cannot("torch.onnx", fault) from fault
    assert made is not None
    model = made.model_proto
    _tidy(model)
    _noise_by_default(model, whole)
    data: bytes = model.SerializeToString()
    return data


def _tidy(model: Any) -> None:
    """Removes names of places on this machine."""
    model.doc_string = model.graph.doc_string = ""
    del model.metadata_props[:], model.graph.metadata_props[:], model.graph.value_info[:]
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output):
        del value.metadata_props[:]


def _noise_by_default(model: Any, whole: WholePolicy) -> None:
    """Gives the noise its default value, a row of zeros that stands for any number of rows: whoever
    leaves it out gets greedy actions.
    """
    from onnx import helper, numpy_helper

    port = next((port for port in whole.inputs if port.role == "noise"), None)
    if port is None:
        return
    graph, rows = model.graph, f"{port.name}/rows"
    graph.initializer.append(numpy_helper.from_array(port.zeros(1), port.name))
    graph.initializer.append(numpy_helper.from_array(np.array(port.shape), f"{rows}/size"))
    for node in graph.node:
        for k, name in enumerate(node.input):
            if name == port.name:
                node.input[k] = rows
    spread = [
        helper.make_node("Shape", [whole.inputs[0].name], [f"{rows}/batch"], start=0, end=1),
        helper.make_node("Concat", [f"{rows}/batch", f"{rows}/size"], [f"{rows}/shape"], axis=0),
        helper.make_node("Expand", [port.name, f"{rows}/shape"], [rows]),
    ]
    graph.node.extend(spread)
    graph.node.sort(key=lambda node: not node.output[0].startswith(rows))


def torch_program(program: torch.export.ExportedProgram) -> bytes:
    """The content of a ``.pt2`` file, which `torch.export.load` reads."""
    file = io.BytesIO()
    with _quiet():
        torch.export.save(program, file)
    return file.getvalue()


def require(format: Format) -> None:
    """Raises ExportError if a package that makes or compares a program is missing."""
    for package in PACKAGES[format]:
        try:
            version(package)
        except PackageNotFoundError as fault:
            raise ExportError(
                f"an export to {format} needs {package}, which is not installed: pip install "
                '"quintet-rl[export]"'
            ) from fault


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides the exporters' remarks about themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _cannot(what: str, fault: Exception) -> ExportError:
    """The error of a policy that `what` can't turn into a graph."""
    said = " ".join(str(fault).split())
    error = ExportError(
        f"{what} can't turn the policy into a graph ({type(fault).__name__}: {said[:400]}); an "
        "encoder of your own must use plain tensor operations, without Python "
        "decisions on values, and x.shape[0] in place of len(x)"
    )
    error.detail = str(fault)
    return error


_USUAL: dict[str, tuple[float, ...]] = {
    "alpha": (1.0,),
    "beta": (1.0,),
    "allowzero": (0, 1),
    "noop_with_empty_axes": (0,),
    "saturate": (1,),
    "stash_type": (1,),
    "select_last_index": (0,),
}
"""Attributes of ONNX's operators, with the values that the numpy format supports."""


def numpy_program(onnx_model: bytes) -> bytes:
    """The content of an .npz that `quintet.export.numpy_policy` plays, from a model of ONNX; raises
    ExportError if it has operators that only larger networks need.
    """
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_from_string(onnx_model).graph
    arrays = {f"c/{each.name}": numpy_helper.to_array(each) for each in graph.initializer}
    nodes = []
    for node in graph.node:
        found = {x.name: _option(x) for x in node.attribute}
        if node.op_type == "Constant":
            arrays[f"c/{node.output[0]}"] = np.asarray(*found.values())
            continue
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            raise ExportError(
                "the numpy format holds an MLP, with or without an LSTM or GRU, and not the "
                f"operator {node.op_type}: use --format onnx"
            )
        options = {name: x for name, x in found.items() if x not in _USUAL.get(name, ())}
        if node.op_type == "Cast":
            options["to"] = str(onnx.helper.tensor_dtype_to_np_dtype(options["to"]))
        nodes.append([node.op_type, [*node.input], [*node.output], options])
    names = {"inputs": graph.input, "outputs": graph.output}
    program = {kind: [each.name for each in ports] for kind, ports in names.items()}
    text = json.dumps({**program, "nodes": nodes}).encode()
    file = io.BytesIO()
    members: dict[str, Any] = {"program": np.frombuffer(text, np.uint8), **arrays}
    np.savez(file, **members)
    return file.getvalue()


def _option(attribute: Any) -> Any:
    """An attribute's value as JSON has it, or an array."""
    from onnx import helper, numpy_helper

    value = helper.get_attribute_value(attribute)
    if attribute.type == attribute.TENSOR:
        return numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode()
    return [*value] if not isinstance(value, int | float) else value
