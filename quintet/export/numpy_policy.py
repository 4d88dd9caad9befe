"""Plays an exported policy with NumPy alone: `Program("policy.npz")` maps inputs to outputs by
name; policy.json says what each of them is.  The operators are those of ONNX.
"""

import json
from functools import partial

import numpy as np


def gemm(a, b, c=0.0, transA=0, transB=0):
    return (a.T if transA else a) @ (b.T if transB else b) + c


def layer_norm(x, scale, bias=0.0, epsilon=1e-5, axis=-1):
    axes = tuple(range(axis, 0))
    centred = x - x.mean(axes, keepdims=True)
    variance = (centred * centred).mean(axes, keepdims=True)
    return centred / np.sqrt(variance + np.float32(epsilon)) * scale + bias


def cut(x, starts, ends, axes, *steps):
    place = [slice(None)] * x.ndim
    for axis, *bounds in zip(axes, starts, ends, *steps, strict=True):
        place[axis] = slice(*bounds)
    return x[tuple(place)]


def split(x, sizes=None, axis=0, num_outputs=None):
    return np.split(x, num_outputs if sizes is None else np.cumsum(sizes)[:-1], axis)


def sigmoid(x):
    half = x.dtype.type(0.5)
    return np.tanh(x * half) * half + half  # does not overflow


OPERATORS = {
    "ArgMax": lambda x, axis, keepdims: x.argmax(axis, keepdims=bool(keepdims)),
    "Cast": lambda x, to: x.astype(to),
    "Clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "Concat": lambda *xs, axis: np.concatenate(xs, axis),
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape))),
    "Gather": lambda x, index, axis: np.take(x, index, axis),
    "ReduceMax": lambda x, axes, keepdims: x.max(tuple(axes), keepdims=bool(keepdims)),
    "Identity": lambda x: x, "Relu": lambda x: np.maximum(x, 0),
    "Reshape": lambda x, shape: x.reshape(shape),
    "Shape": lambda x, start, end: np.array(x.shape[start:end]),
    "Squeeze": lambda x, axes: x.squeeze(tuple(axes)),
    "Unsqueeze": lambda x, axes: np.expand_dims(x, tuple(axes)),
    "Gemm": gemm, "LayerNormalization": layer_norm, "Slice": cut, "Split": split,
    "MatMul": np.matmul, "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide,
    "Min": np.minimum, "Max": np.maximum, "Exp": np.exp, "Tanh": np.tanh, "Sigmoid": sigmoid,
    "Where": np.where, "Not": np.logical_not, "And": np.logical_and, "Or": np.logical_or,
    "Equal": np.equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Less": np.less,
    "IsNaN": np.isnan, "IsInf": np.isinf,
}  # fmt: skip


class Program:
    """The program in an .npz; outputs: names of those that are needed, None: all."""

    def __init__(self, file, outputs=None):
        with np.load(file, allow_pickle=False) as arrays:
            self.values = {name[2:]: arrays[name] for name in arrays.files if name[:2] == "c/"}
            program = json.loads(arrays["program"].tobytes())
        self.inputs, self.outputs = program["inputs"], outputs or program["outputs"]
        needed, self.steps = {*self.outputs}, []
        for name, takes, gives, options in reversed(program["nodes"]):
            if needed & {*gives}:
                needed |= {*takes}
                function = partial(OPERATORS[name], **options) if options else OPERATORS[name]
                self.steps.insert(0, (function, takes, gives))

    def __call__(self, inputs):
        """Outputs by name, from inputs by name ``[B, ...]``; noise may be left out."""
        values = {**self.values, **inputs}
        for function, takes, gives in self.steps:
            found = function(*[values[name] for name in takes])
            if len(gives) == 1:
                values[gives[0]] = found
            else:
                values.update(zip(gives, found, strict=True))
        return {name: values[name] for name in self.outputs}
