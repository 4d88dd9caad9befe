"""Programs of exported policies, ready to be played: one class for each format."""

import io
import zipfile
from typing import Any, Protocol, final

import numpy as np

from quintet.errors import ExportError
from quintet.export.interface import Interface, Port
from quintet.export.onnx_file import has_outside_data
from quintet.export.steps import Arrays


class Player(Protocol):
    """A policy's program."""

    @property
    def version(self) -> str:
        """Name and version of what plays it."""
        ...

    def __call__(self, inputs: Arrays) -> Arrays:
        """All outputs by name, from all inputs by name, ``[B, ...]``."""
        ...


@final
class OnnxPlayer:
    """A program of ONNX, played by onnxruntime on one thread."""

    def __init__(self, program: bytes, interface: Interface):
        """Raises ExportError if onnxruntime is missing or can't play it, or if its inputs and
        outputs differ from the interface's.
        """
        try:
            import onnxruntime
        except ImportError as fault:
            raise ExportError(
                "playing an ONNX program needs onnxruntime, which is not installed: "
                'pip install onnxruntime, or "quintet-rl[export]"'
            ) from fault
        self.version = f"onnxruntime {onnxruntime.__version__}"
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # faults come as errors, too
        self._outputs = [port.name for port in interface.outputs]
        try:
            if has_outside_data(program):
                raise ValueError("it has tensors in other files, which no hash covers")
            self._session: Any = onnxruntime.InferenceSession(
                program, options, providers=["CPUExecutionProvider"]
            )
            has = [self._session.get_inputs(), self._session.get_overridable_initializers()]
            inputs = [_described(node) for node in (*has[0], *has[1])]
            outputs = [_described(node) for node in self._session.get_outputs()]
        except Exception as fault:  # onnxruntime's own classes have no common base
            raise _unplayable("policy.onnx", fault) from fault
        _require_ports("policy.onnx", interface, inputs, outputs)

    def __call__(self, inputs: Arrays) -> Arrays:
        try:
            found = self._session.run(self._outputs, inputs)
        except Exception as fault:
            raise _unplayable("policy.onnx", fault) from fault
        return dict(zip(self._outputs, found, strict=True))


@final
class NumpyPlayer:
    """A program of ONNX's operators, played with NumPy by `quintet.export.numpy_policy`."""

    def __init__(self, program: bytes, interface: Interface):
        """Raises ExportError as `OnnxPlayer` does."""
        from quintet.export.numpy_policy import Program

        self.version = f"numpy {np.__version__}"
        try:
            _require_unpacked(program)
            make: Any = Program  # untyped, because it is copied for readers
            self._program = make(io.BytesIO(program))
            inputs, outputs = sorted(self._program.inputs), sorted(self._program.outputs)
        except Exception as fault:  # whatever a forged program causes
            raise _unplayable("policy.npz", fault) from fault
        for what, given, ports in (
            ("inputs", inputs, interface.inputs), ("outputs", outputs, interface.outputs)
        ):  # fmt: skip
            if given != (own := sorted(port.name for port in ports)):
                raise _other_ports("policy.npz", what, own, given)

    def __call__(self, inputs: Arrays) -> Arrays:
        try:
            with np.errstate(all="ignore"):
                found: Arrays = self._program(inputs)
        except Exception as fault:
            raise _unplayable("policy.npz", fault) from fault
        return found


def _require_unpacked(program: bytes) -> None:
    """Raises ValueError for an archive that would unpack to more bytes than it has.  The size
    that it states for a compressed array may be wrong."""
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it has compressed arrays")
        if sum(entry.file_size for entry in entries) > len(program):
            raise ValueError("its arrays are larger than the file")


@final
class TorchPlayer:
    """A program of `torch.export`."""

    def __init__(self, program: bytes, interface: Interface):
        """Loads the program, which can run code; raises ExportError as `OnnxPlayer` does."""
        try:
            import torch
        except ImportError as fault:
            raise ExportError(
                "playing a PyTorch program needs torch, which is not installed: pip install torch"
            ) from fault
        self.version, self._torch = f"torch {torch.__version__}", torch
        self._inputs = [port.name for port in interface.inputs]
        self._outputs = [port.name for port in interface.outputs]
        try:
            self._module: Any = torch.export.load(io.BytesIO(program)).module()
        except Exception as fault:
            raise _unplayable("policy.pt2", fault) from fault

    def __call__(self, inputs: Arrays) -> Arrays:
        try:
            tensors = tuple(self._torch.from_numpy(inputs[name].copy()) for name in self._inputs)
            with self._torch.inference_mode():
                found = self._module(tensors)
            arrays = [x.numpy() for x in found]
            return dict(zip(self._outputs, arrays, strict=True))
        except Exception as fault:
            raise _unplayable("policy.pt2", fault) from fault


_ONNX_TYPES = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool"}


def _described(node: Any) -> tuple[str, str, tuple[int, ...]]:
    """Name, dtype and row shape of an input or output of a session."""
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    return node.name, _ONNX_TYPES.get(kind, kind), tuple(node.shape[1:])


def _require_ports(
    file: str,
    interface: Interface,
    inputs: list[tuple[str, str, tuple[int, ...]]],
    outputs: list[tuple[str, str, tuple[int, ...]]],
) -> None:
    """Raises ExportError if a program's inputs or outputs are not the interface's."""

    def told(ports: list[Port]) -> list[tuple[str, str, tuple[int, ...]]]:
        return sorted((port.name, port.dtype, tuple(port.shape)) for port in ports)

    for what, own, given in (
        ("inputs", told(interface.inputs), inputs),
        ("outputs", told(interface.outputs), outputs),
    ):
        if own != sorted(given):
            raise _other_ports(file, what, own, sorted(given))


def _other_ports(file: str, what: str, own: object, given: object) -> ExportError:
    return ExportError(
        f"{file} must have the {what} {own} of policy.json, got {given}: export the policy again"
    )


def _unplayable(file: str, fault: Exception) -> ExportError:
    said = " ".join(str(fault).split())
    return ExportError(
        f"{file} can't be played ({type(fault).__name__}: {said[:300]}); export the policy again"
    )


def play(player: Player, inputs: Arrays, interface: Interface) -> Arrays:
    """Outputs of all rows ``[T, B, ...]`` by name, from inputs ``[T, B, ...]`` without the state,
    which is fed back from row to row and begins with zeros.  Raises ExportError if a row is not as
    the interface says.
    """
    rows, streams = next(iter(inputs.values())).shape[:2]
    outputs = {port.name: port.zeros(rows, streams) for port in interface.outputs}
    state = {port.name: port.zeros(streams) for port in interface.of("state")}
    for row in range(rows):
        found = player({**{name: x[row] for name, x in inputs.items()}, **state})
        for port in interface.outputs:
            x = found[port.name]
            if (x.shape, x.dtype) != ((streams, *port.shape), np.dtype(port.dtype)):
                raise ExportError(
                    f"output {port.name!r} must be {port.dtype} {[streams, *port.shape]}, as "
                    f"policy.json says, got {x.dtype} {list(x.shape)}: export the policy again"
                )
            outputs[port.name][row] = x
        state = {name: found[after] for name, after in interface.state.items()}
    return outputs


def player_of(program: bytes, interface: Interface) -> Player:
    """The player of an export's program."""
    if interface.format == "onnx":
        return OnnxPlayer(program, interface)
    if interface.format == "numpy":
        return NumpyPlayer(program, interface)
    return TorchPlayer(program, interface)
