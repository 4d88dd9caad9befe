"""Compiled graphs give what the methods give, for every layout of their inputs."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from quintet.models.compiled import Graph, _layout
from quintet.models.encoders import Mlp


class Affine:
    def __init__(self) -> None:
        self.weight = torch.randn(3, 2)
        self.calls = 0

    def apply(self, obs: dict[str, Tensor], is_first: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        x = torch.where(is_first[:, None], 0.0, obs["obs"])
        return x @ self.weight, {"sum": x.sum(-1)}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [[4, 4], [4, 2, 4], [1, 5, 1]])
@torch.inference_mode()
def test_rows_graph_serves_any_number_of_rows_and_new_weights(rows: list[int]):
    model = Affine()
    graph = Graph(model.apply)
    for count in rows:
        model.weight.normal_()
        obs, is_first = {"obs": torch.randn(count, 3)}, torch.rand(count) < 0.5
        given, record = graph(obs, is_first)
        wanted, wanted_record = model.apply(obs, is_first)
        torch.testing.assert_close(given, wanted)
        torch.testing.assert_close(record, wanted_record)


@torch.inference_mode()
def test_each_layout_has_a_graph_of_its_own(monkeypatch: pytest.MonkeyPatch):
    """Made for the number of rows, their strides and their type, and used again for them alone."""
    made = []

    def compiled(self, args):
        made.append(layout := _layout(args))

        def call(model, *args):
            assert _layout(args) == layout

        return call

    monkeypatch.setattr(Graph, "_compiled", compiled)
    graph = Graph(Affine().apply)
    square, wide = torch.randn(3, 3), torch.randn(3, 6)
    for _ in range(2):
        for obs in (square, square.T, wide[:, ::2], square.double(), square[:2]):
            graph({"obs": obs}, torch.zeros(len(obs), dtype=torch.bool))
    assert len(made) == len({*made}) == 5


@pytest.mark.slow
@torch.inference_mode()
def test_rows_graph_reads_rows_as_they_lie():
    """A graph that was compiled for whole rows would read over a transposed batch."""
    model = Affine()
    graph = Graph(model.apply)
    is_first = torch.zeros(3, dtype=torch.bool)
    for obs in (torch.randn(3, 3), torch.randn(3, 3).T, torch.randn(3, 6)[:, ::2]):
        given, _ = graph({"obs": obs}, is_first)
        torch.testing.assert_close(given, obs @ model.weight)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@torch.inference_mode()
def test_an_encoder_of_discrete_leaves_is_one_graph(backend: str):
    leaves = {
        "a": spaces.Discrete(5),
        "b": spaces.MultiDiscrete([2, 3], start=[0, 4]),
        "c": spaces.Box(0, 255, (2, 2), np.uint8),
    }
    mlp = Mlp(leaves, (4,), "tanh")
    obs = {
        "a": torch.tensor([4, 0]),
        "b": torch.tensor([[1, 4], [0, 6]]),
        "c": torch.tensor([[[255, 0], [0, 1]]] * 2, dtype=torch.uint8),
    }
    wanted = mlp(obs)
    if backend == "eager":  # it is traced, and not compiled
        found = torch.compile(mlp.forward, fullgraph=True, dynamic=False, backend=backend)(obs)
    else:
        found = Graph(mlp.forward)(obs)
    torch.testing.assert_close(found, wanted)


PROGRAM = """
import torch
from test_compiled import Affine
from torch._dynamo.utils import counters
from quintet.models.compiled import Graph

with torch.inference_mode():
    model = Affine()
    obs, is_first = {"obs": torch.randn(4, 3)}, torch.zeros(4, dtype=torch.bool)
    given, _ = Graph(model.apply)(obs, is_first)
    torch.testing.assert_close(given, model.apply(obs, is_first)[0])
print(counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.mark.slow
def test_a_second_process_finds_the_graph_in_the_cache(tmp_path: Path) -> None:
    """So that a run begins, or goes on, seconds earlier."""
    env = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parent),
    }
    said = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert said == ["1 0", "0 1"]
