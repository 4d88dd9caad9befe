"""The inputs and outputs of an exported policy, as ``policy.json`` describes them.

This module, and all that `verify` needs, imports no PyTorch.
"""

import math
from collections import Counter
from typing import Annotated, Any, Literal, Self, final

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

FORMAT_VERSION: Literal[1] = 1

Format = Literal["onnx", "torch", "numpy"]

PROGRAMS: dict[Format, str] = {"onnx": "policy.onnx", "torch": "policy.pt2", "numpy": "policy.npz"}
"""The file of the program, by format."""

Role = Literal[
    "observation", "action_mask", "is_first", "state", "noise",
    "action", "next_state", "params", "value",
]  # fmt: skip

_SINGLE: tuple[Role, ...] = ("is_first", "noise", "params", "value")
"""Roles with at most one input or output, whose name is the role."""

INPUTS: tuple[Role, ...] = ("observation", "action_mask", "is_first", "state", "noise")


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("strings must have only printable characters")
    return text


Text = Annotated[str, Field(max_length=1000), AfterValidator(_printable)]
Meaning = Annotated[str, Field(max_length=10**6), AfterValidator(_printable)]
Size = Annotated[int, Field(ge=0, le=2**40)]
DType = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
]  # fmt: skip
_FLOATS = ("float16", "float32", "float64")


class Strict(BaseModel):
    """Base class of an export's contents: types are not converted, unknown names are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


@final
class Port(Strict):
    """An input or output of the program, an array ``[batch, *shape]``.

    space: of an observation or action, the environment's own space, as
        `quintet.checkpoints.spaces_as_json.to_json` describes it.
    """

    name: Text
    role: Role
    shape: list[Size]
    dtype: DType
    meaning: Meaning
    space: dict[str, Any] | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def size(self) -> int:
        """Numbers of one row."""
        return math.prod(self.shape)

    def zeros(self, *leading: int) -> np.ndarray[Any, Any]:
        """Zeros ``[*leading, *shape]``."""
        return np.zeros((*leading, *self.shape), self.dtype)


@final
class Choice(Strict):
    """Places of one discrete choice, by which a tie is recognised.

    kind: categorical: the largest of `size` parameters wins; bit: a parameter above 0 is a 1.
    action: name of the output; place: index in its flattened row.
    params, noise: index of its first parameter, and of its first number of noise.
    """

    kind: Literal["categorical", "bit"]
    action: Text
    place: Size
    params: Size
    noise: Size
    size: Annotated[int, Field(ge=1, le=2**30)]


@final
class Played(Strict):
    """The environment of the policy's training, and what is added to its observations."""

    id: Text
    backend: Text
    frame_stack: Size
    observe_last: bool


@final
class Interface(Strict):
    """The content of ``policy.json``.

    state: outputs with the next values, by the names of the inputs to which they are fed back.
    versions: of the packages that made the export.
    sha256: of the program and its code, by the files' names.
    """

    format_version: Literal[1]
    format: Format
    algo: Text
    env: Played
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    inputs: list[Port]
    outputs: list[Port]
    state: dict[Text, Text]
    choices: list[Choice]
    versions: dict[Text, Text]
    sha256: dict[Text, Text]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        ports = (*self.inputs, *self.outputs)
        if len({port.name for port in ports}) < len(ports):
            raise ValueError("names of inputs and outputs must differ")
        roles = Counter(port.role for port in ports)
        if not roles["observation"] or not roles["action"]:
            raise ValueError("there must be an observation and an action")
        if any((p.role in _SINGLE or p.name in _SINGLE) and p.role != p.name for p in ports):
            raise ValueError(f"a port with role {', '.join(_SINGLE)} must be named after it")
        if any(len(p.shape) != 1 for p in self.of("noise", "params")):
            raise ValueError("noise and params must have one dimension")
        begin = len(self.inputs)
        if any((port.role in INPUTS) != (k < begin) for k, port in enumerate(ports)):
            raise ValueError("inputs must have roles of inputs, and outputs roles of outputs")
        fed = {port.name: port for port in self.inputs if port.role == "state"}
        given = {port.name: port for port in self.outputs if port.role == "next_state"}
        if {*self.state} != {*fed} or {*self.state.values()} != {*given}:
            raise ValueError("state must map each state to its next_state")
        pairs = [(fed[a], given[b]) for a, b in self.state.items()]
        if any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in pairs):
            raise ValueError("a state and its next value must have the same shape and dtype")
        self._check_choices()
        return self

    def _check_choices(self) -> None:
        """Raises ValueError for a choice beyond its action, the parameters or the noise."""
        sizes = {port.name: port.size for port in self.of("params", "noise")}
        actions = {port.name: port.size for port in self.of("action") if port.dtype not in _FLOATS}
        for choice in self.choices:
            if not (
                choice.place < actions.get(choice.action, 0)
                and choice.params + choice.size <= sizes.get("params", 0)
                and choice.noise + choice.size <= sizes.get("noise", 0)
            ):
                raise ValueError("choices must lie within whole actions, parameters and noise")

    def of(self, *roles: Role) -> list[Port]:
        """The inputs and outputs of these roles, in order."""
        return [port for port in (*self.inputs, *self.outputs) if port.role in roles]

    @property
    def samples(self) -> bool:
        """Whether it has an input of noise, by which actions are sampled."""
        return bool(self.of("noise"))
