"""Tensors of a learner that is not on the CPU are all on its device.

PyTorch's device without memory stands for a GPU.  It takes a number on the CPU beside its tensors
everywhere, which CUDA does not: `OneDevice` refuses it in all operations.
"""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from appo_helpers import SIZES, STREAMS, make_batch
from appo_helpers import make_learner as make_appo
from ppo_helpers import DISCRETE, SMALL, TOTAL, make_rollout
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from quintet.algorithms.appo.config import APPOConfig
from quintet.algorithms.appo.config import Knobs as APPOKnobs
from quintet.algorithms.appo.learner import APPOLearner
from quintet.algorithms.parts.minibatches import Chunks
from quintet.algorithms.parts.setup import Setup
from quintet.algorithms.parts.trained import knobs_of
from quintet.algorithms.ppo import metrics
from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.models.config import resolve_model

META = torch.device("meta")
SETUP = Setup(STREAMS, TOTAL, (1, 2), META)
MODEL = resolve_model(SMALL, DISCRETE)


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        moves = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
        assert moves or len({x.device.type for x in given}) < 2, func
        return func(*args, **(kwargs or {}))


def moved(record: Any) -> Any:
    """The same with its tensors, and those in its dicts, on the device."""

    def move(x: Any) -> Any:
        if isinstance(x, dict):
            return {name: move(each) for name, each in x.items()}
        return x.to(META) if isinstance(x, Tensor) else x

    if isinstance(record, tuple):
        return type(record)(*map(move, record))  # type: ignore[call-arg]
    return replace(record, **{f.name: move(getattr(record, f.name)) for f in fields(record)})


@pytest.mark.parametrize(
    "options", [{"log_prob_clip": 5.0}, {"value_clip": 0.2}, {"clip_epsilon": 0.2}]
)
def test_values_behind_a_loss(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = PPOConfig(log_histograms=True, normalize_observations=False, **options)
    on_cpu = PPOLearner(config, MODEL, DISCRETE, replace(SETUP, device=torch.device("cpu")))
    batch = make_rollout(DISCRETE, seed=1)
    rows, _ = on_cpu._rows(batch, batch.valid)
    learner = PPOLearner(config, MODEL, DISCRETE, SETUP)
    # What is kept are the values of valid rows, whose number a device without memory can't tell.
    monkeypatch.setattr(metrics, "loss_values", lambda terms, *_: {"policy": terms.policy})
    use = batch.valid.to(META)
    with OneDevice():
        chunks = Chunks(use.shape, learner.chunk_steps, META)
        learner._distribute("first", moved(rows), chunks, use)
    assert learner.reports.distributions["first/policy"].device == META


def test_moments_of_advantages_by_several_learners() -> None:
    plain = {"normalize_observations": False}
    on_cpu = make_appo(**plain)
    chunks = on_cpu._chunks(make_batch(on_cpu))
    learner = APPOLearner(APPOConfig(**SIZES, **plain), MODEL, DISCRETE, SETUP)
    with OneDevice():
        sums = learner._sums(moved(chunks), knobs_of(APPOKnobs, learner.config, first=1.0))
    assert sums.device == META
