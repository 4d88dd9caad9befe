"""Plays an exported policy with NumPy alone: `Program("policy.npz")` maps inputs to outputs by
name; policy.json says what each of them is.  The operators are those of ONNX.
"""

import json

import numpy as np


def _gemm(transA=0, transB=0, alpha=1.0, beta=1.0):
    def gemm(a, b, c=None):
        y = (a.T if transA else a) @ (b.T if transB else b)
        y = y if alpha == 1.0 else y * np.float32(alpha)
        return y if c is None else y + (c if beta == 1.0 else c * np.float32(beta))

    return gemm


def _norm(epsilon=1e-5, axis=-1):
    def norm(x, scale, bias=None):
        axes = tuple(range(axis % x.ndim, x.ndim))
        centred = x - x.mean(axes, keepdims=True)
        variance = (centred * centred).mean(axes, keepdims=True)
        y = centred / np.sqrt(variance + np.float32(epsilon)) * scale
        return y if bias is None else y + bias

    return norm


def _reduce(function):
    def make(keepdims=1, noop_with_empty_axes=0):
        def reduce(x, axes=None):
            if axes is None or not axes.size:
                return x if noop_with_empty_axes else function(x, None, keepdims=bool(keepdims))
            return function(x, tuple(axes.tolist()), keepdims=bool(keepdims))

        return reduce

    return make


def _argmax(axis=0, keepdims=1):
    return lambda x: x.argmax(axis, keepdims=bool(keepdims))


def _slice(x, starts, ends, axes=None, steps=None):
    place = [slice(None)] * x.ndim
    for k, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis = k if axes is None else axes[k]
        place[axis] = slice(start, end, 1 if steps is None else int(steps[k]))
    return x[tuple(place)]


def _split(axis=0, num_outputs=None):
    def split(x, sizes=None):
        if sizes is None:
            return np.array_split(x, num_outputs, axis)
        return np.split(x, np.cumsum(sizes)[:-1], axis)

    return split


def _reshape(allowzero=0):
    def reshape(x, shape):
        sizes = enumerate(shape.tolist())
        return x.reshape([x.shape[i] if not (n or allowzero) else n for i, n in sizes])

    return reshape


def _one_hot(axis=-1):
    def one_hot(x, depth, values):
        found = x[..., None] % depth == np.arange(int(np.ravel(depth)[0]))
        return np.moveaxis(np.where(found, values[1], values[0]), -1, axis)

    return one_hot


def _expand(x, shape):
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist())))


def _clip(x, low=None, high=None):
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _squeeze(x, axes=None):
    return np.squeeze(x, None if axes is None else tuple(axes.tolist()))


def _sigmoid(x):
    half = x.dtype.type(0.5)
    return np.tanh(x * half) * half + half  # does not overflow


def _plain(function):
    return lambda: function


OPERATORS = {
    "Gemm": _gemm, "LayerNormalization": _norm, "ArgMax": _argmax, "Split": _split,
    "Reshape": _reshape, "OneHot": _one_hot, "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min), "ReduceSum": _reduce(np.sum), "ReduceMean": _reduce(np.mean),
    "Cast": lambda to: lambda x: x.astype(to),
    "Concat": lambda axis: lambda *xs: np.concatenate(xs, axis),
    "Transpose": lambda perm: lambda x: x.transpose(perm),
    "Gather": lambda axis=0: lambda x, index: np.take(x, index, axis),
    "Shape": lambda start=0, end=None: lambda x: np.array(x.shape[start:end], np.int64),
    "Flatten": lambda axis=1: lambda x: x.reshape(int(np.prod(x.shape[:axis])), -1),
    "ConstantOfShape": lambda value: lambda shape: np.full(shape.tolist(), *value),
    "CumSum": _plain(lambda x, axis: np.cumsum(x, int(axis))),
    "Slice": _plain(_slice), "Expand": _plain(_expand), "Clip": _plain(_clip),
    "Squeeze": _plain(_squeeze), "Identity": _plain(lambda x: x),
    "Unsqueeze": _plain(lambda x, axes: np.expand_dims(x, tuple(axes.tolist()))),
    "MatMul": _plain(np.matmul), "Add": _plain(np.add), "Sub": _plain(np.subtract),
    "Mul": _plain(np.multiply), "Pow": _plain(np.power), "Where": _plain(np.where),
    "Div": _plain(lambda a, b: a // b if a.dtype.kind in "iu" else a / b),
    "Min": _plain(np.minimum), "Max": _plain(np.maximum), "Neg": _plain(np.negative),
    "Tanh": _plain(np.tanh), "Relu": _plain(lambda x: np.maximum(x, 0)), "Exp": _plain(np.exp),
    "Log": _plain(np.log), "Sqrt": _plain(np.sqrt), "Abs": _plain(np.abs),
    "Sigmoid": _plain(_sigmoid), "IsInf": _plain(np.isinf),
    "Softplus": _plain(lambda x: np.logaddexp(x.dtype.type(0), x)),
    "Reciprocal": _plain(np.reciprocal), "Mod": _plain(np.mod),
    "Not": _plain(np.logical_not), "And": _plain(np.logical_and), "Or": _plain(np.logical_or),
    "Equal": _plain(np.equal),
    "Greater": _plain(np.greater), "Less": _plain(np.less), "IsNaN": _plain(np.isnan),
    "GreaterOrEqual": _plain(np.greater_equal), "LessOrEqual": _plain(np.less_equal),
}  # fmt: skip


class Program:
    """The program in an .npz; outputs: names of those that are needed, None: all."""

    def __init__(self, file, outputs=None):
        with np.load(file, allow_pickle=False) as arrays:
            self.values = {name[2:]: arrays[name] for name in arrays.files if name[:2] == "c/"}
            program = json.loads(arrays["program"].tobytes())
        self.inputs = program["inputs"]
        self.outputs = program["outputs"] if outputs is None else list(outputs)
        needed, steps = set(self.outputs), []
        for name, takes, gives, options in reversed(program["nodes"]):
            if needed & set(gives):
                needed |= set(takes)
                steps.append((OPERATORS[name](**options), takes, gives))
        self.steps = steps[::-1]

    def __call__(self, inputs):
        """Outputs by name, from inputs by name ``[B, ...]``; noise may be left out."""
        values = {**self.values, "": None, **inputs}
        for function, takes, gives in self.steps:
            found = function(*[values[name] for name in takes])
            if len(gives) == 1:
                values[gives[0]] = found
            else:
                values.update(zip(gives, found, strict=True))
        return {name: values[name] for name in self.outputs}
