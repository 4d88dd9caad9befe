"""References of an ONNX model to other files, read without the package onnx.

Its form is that of protocol buffers: fields, each with a number, a kind and a value, of which some
are messages of the same form.
"""

from collections.abc import Iterator, Mapping

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_TENSOR = "tensor"
_PLACE_OUTSIDE, _IS_OUTSIDE = 13, 14  # fields of a tensor

_WITHIN: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: _TENSOR, 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: _TENSOR, 6: "graph", 10: _TENSOR, 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: _TENSOR, 2: _TENSOR},
    _TENSOR: {},
}
"""Messages by the number of their field, for each message that may hold tensors."""


def has_outside_data(model: bytes) -> bool:
    """Whether a tensor's data lies in another file, which no hash of an export covers.

    Raises:
        ValueError: it is no model.
    """
    left = [("model", memoryview(model))]
    while left:
        kind, message = left.pop()
        for number, value in _fields(message):
            outside = number == _PLACE_OUTSIDE or (number == _IS_OUTSIDE and value != 0)
            if kind == _TENSOR and outside:
                return True
            if number in _WITHIN[kind]:
                if not isinstance(value, memoryview):
                    raise ValueError("a number where a message belongs")
                left.append((_WITHIN[kind][number], value))
    return False


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Numbers and values of a message's fields."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        kind = key & 7
        value: memoryview | int
        if kind == _VARINT:
            value, at = _varint(message, at)
        else:
            if kind == _LENGTH:
                size, at = _varint(message, at)
            elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
                size = 8 if kind == _EIGHT_BYTES else 4
            else:
                raise ValueError(f"a field has the unknown kind {kind}")
            value, at = message[at : at + size], at + size
            if at > end:
                raise ValueError("it ends within a field")
        yield key >> 3, value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, and the place after it."""
    number = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise ValueError("it ends within a number")
