"""Draws from a replay whose large observations lie on the GPU are those from the CPU."""

from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
import standin_helpers
import torch
from gpu_runs_helpers import run
from gymnasium import spaces
from replay_streams_helpers import Chances, Run, make, plan

from quintet.errors import ConfigError
from quintet.runtime.batch import rollout_to_device
from quintet.runtime.replay import layout
from quintet.types import Rollout

CUDA = torch.device("cuda")
STREAMS = 3


class Pictures(gymnasium.Env[Any, Any]):
    """Random pictures that are no stacks."""

    observation_space = spaces.Box(0, 255, (2, 36, 36), np.uint8)

    def __init__(self, box: bool = False) -> None:
        of_numbers: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = of_numbers if box else spaces.Discrete(3)

    def _seen(self) -> Any:
        return self.np_random.integers(0, 256, (2, 36, 36), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.row = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.row += 1
        return self._seen(), float(self.np_random.normal()), False, self.row >= 12, {}


def same(one: Rollout, other: Rollout) -> bool:
    for name, x in vars(one).items():
        y = getattr(other, name)
        leaves = x if isinstance(x, dict) else {"": x}
        for leaf, value in leaves.items():
            theirs = y[leaf] if isinstance(x, dict) else y
            if isinstance(value, torch.Tensor) and not torch.equal(value, theirs.cpu()):
                return False
    return True


@pytest.mark.parametrize("packed_bytes", [1024, 0])
@pytest.mark.parametrize(
    ("kind", "options"), [("windows", {"steps": 3}), ("windows", {}), ("sequences", {})]
)
def test_draws_have_the_same_bytes(
    kind: str, options: dict[str, Any], packed_bytes: int, tmp_path: Path
) -> None:
    """With rings that wrap, gaps, odd frames and a resume; packed_bytes=0: of every leaf."""
    with mock.patch.object(layout, "_PACKED_BYTES", packed_bytes):
        of_plan = plan(kind, capacity_steps=60, rate=0.5, **options)
        host = make(of_plan, STREAMS)

        def on_device() -> Any:
            made = make(of_plan, STREAMS, folder=tmp_path)
            made.draw_on(CUDA, must=True)
            return made

        device = on_device()
        chances = Chances(odd=0.02, end=0.1)
        source = Run(host, STREAMS, of_plan.unroll_steps, 1, chances)
        drawn = 0
        for iteration in range(60):
            batch = source.collect(list(range(STREAMS))[: 1 + iteration % STREAMS])
            device.store(batch)
            count = int(batch.valid.sum())
            mine = chain(host.draws(count, iteration))
            with standin_helpers.counting() as counts:
                theirs = list(device.draws(count, iteration))
            assert counts.waits == 0, counts.lines()
            for one, other in zip(mine, theirs, strict=True):
                assert other.obs["image"].is_cuda
                assert other.obs["vector"].is_cuda == (packed_bytes == 0)
                moved = rollout_to_device(other, CUDA)
                assert all(x.is_cuda for x in moved.obs.values())
                assert same(one, moved)
                drawn += 1
            if iteration == 40:
                state = device.save()
                device = on_device()
                device.load(state)
            if iteration % 20 == 19:
                source.restart()
                device.cut()
        assert drawn > 20
        assert "MiB of it also on cuda, for draws" in device.describe()


def test_what_does_not_fit_stays_on_the_cpu_or_is_refused() -> None:
    for must in (False, True):
        replay = make(plan("windows"), 1)
        replay.draw_on(CUDA, must)
        source = Run(replay, 1, 4, 1)
        with mock.patch.object(torch.cuda, "mem_get_info", return_value=(1000, 2000)):
            if must:
                with pytest.raises(
                    ConfigError, match=r"replay_device=learner must fit .* MiB into 50%"
                ):
                    source.collect([0])
                continue
            batch = source.collect([0])
        assert "draws read it on the CPU, since" in replay.describe()
        for drawn in replay.draws(int(batch.valid.sum()), 0):
            assert not drawn.obs["image"].is_cuda


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["acer", "ddpg"])
def test_a_run_has_the_same_weights_wherever_its_draws_are(algo: str) -> None:
    options: dict[str, Any] = {"env.num_streams": 4, "env.streams_per_group": 4}
    options |= {"model.policy_hidden": [8, 8], "runtime.inference": "local"}
    if algo == "acer":
        options["replay_start_steps_per_stream"] = 20
    else:
        options |= {"replay_start_steps": 64, "replay_capacity_steps": 2000, "batch_size": 8}
        options["env.kwargs"] = {"box": True}
    found = {
        where: run(algo, Pictures, 400, options | {"runtime.replay_device": where})
        for where in ("cpu", "learner")
    }
    assert found["learner"].differs_by(found["cpu"]) == 0
    sent = [found[where].phases["run"].counts.bytes["h2d_async"] for where in ("cpu", "learner")]
    assert sent[1] < 0.6 * sent[0]
