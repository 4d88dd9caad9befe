"""The file that plays a policy with NumPy alone."""

from pathlib import Path

import pytest
from installed_helpers import need

from quintet.errors import ExportError
from quintet.export import numpy_policy, programs

need("exports must have the extra export", "onnxscript")


def test_it_is_short() -> None:
    assert len(Path(numpy_policy.__file__).read_text().splitlines()) <= 100


def test_it_plays_small_networks_alone() -> None:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 3, 3])
    node = helper.make_node("Conv", ["x", "x"], ["y"])
    model = helper.make_model(helper.make_graph([node], "one", [value], []))
    with pytest.raises(ExportError, match=r"numpy format holds an MLP.*the operator Conv"):
        programs.numpy_program(model.SerializeToString())
