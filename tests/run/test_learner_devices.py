"""Where learners compute."""

import pytest
import torch

from quintet.options.runtime import RuntimeConfig
from quintet.run.learners import batch_device


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [
        ("cpu", 2, ["cpu"] * 3),
        ("cuda", 1, ["cuda"] * 3),
        ("cuda", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", 2, ["cuda:1"] * 3),
    ],
)
def test_policies_take_turns_in_getting_a_gpu(
    device: str, gpus: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    found = [batch_device(RuntimeConfig(device=device), policy) for policy in range(3)]
    assert found == [torch.device(each) for each in expected]


def test_several_learners_move_their_columns_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert batch_device(RuntimeConfig(device="cuda", num_learners=2), 0) == torch.device("cpu")
