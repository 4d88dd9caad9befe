"""Compares what is compiled with what is eager; run by test_conformance_compile.py as a program of
its own, as shape checks of the tests are no part of what is compiled.
"""

import copy
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from conformance_helpers import (
    CONTINUOUS,
    LEARNERS,
    MASKED,
    NUMBERS,
    STREAMS,
    TOGETHER,
    Case,
    Task,
    copied,
    go_on,
    learn,
    weights,
    whole_batch,
)
from gymnasium import spaces as gym
from torch import Tensor

from quintet.algorithms.parts.setup import ALONE, Compute
from quintet.protocols import Ranks
from quintet.runtime.batch import narrow
from quintet.types import Rollout

EAGER, COMPILED = Compute(), Compute(compile=True)
HYBRID = Task(NUMBERS, gym.Tuple([gym.Discrete(3), gym.Box(-1.0, 1.0, (2,))]), masked=True)
PICTURE = gym.Box(0, 255, (2, 36, 36), np.uint8)
PICTURES = Task(PICTURE, gym.Discrete(3))
SEEN_CONTROL = Task(PICTURE, CONTINUOUS.action)
CNN = {"shared_torso": True, "policy_hidden": (16,)}
WITH_LOSSES = Case(
    "impala",
    Task(NUMBERS, gym.Discrete(3)),
    {"aux_loss_weights": {"per_row": 0.3}},
    network={"encoder": "test_impala_aux:Own"},
)

GAE_WITH_A_CORE = Case("appo", MASKED, {"use_vtrace": False, "gae_lambda": 0.9}, core="gru")


class Twins:
    """The first of two learners, where the other finds what it finds."""

    size, index = 2, 0

    def whole(self, batch: Rollout) -> Rollout:
        return batch

    def shard(self, batch: Rollout) -> Rollout:
        return narrow(batch, 0, batch.valid.shape[1] // 2)

    def sum(self, x: Tensor) -> Tensor:
        return 2 * x

    def gather(self, x: Tensor) -> Tensor:
        return torch.stack((x, x))

    def broadcast(self, tensors: Any) -> None: ...


def awkward(batch: Rollout) -> Rollout:
    """The end of a budget, and columns that are parts of larger tensors."""
    cut, valid = torch.zeros_like(batch.valid), batch.valid.clone()
    last = min(3, len(valid) - 2)
    cut[last], valid[last + 1 :] = True, False
    obs = {name: x.repeat_interleave(2, 1)[:, ::2] for name, x in batch.obs.items()}
    reward = batch.reward.repeat_interleave(2, 1)[:, ::2]
    return replace(batch, obs=obs, reward=reward, trace_cut=cut, valid=valid)


def compare_updates(case: Case, ranks: Ranks = ALONE) -> None:
    """Each update from equal states, as several let rounding grow: where gradients are large, or
    an activation has a kink.
    """
    first, second = (case.learner(compute, ranks) for compute in (EAGER, COMPILED))
    before = weights(first).clone()
    for i, (fresh, *drawn) in enumerate(case.batches(3)):
        second.load(copied(first.save()))
        batches = [awkward(fresh) if i == 1 else fresh, *drawn]
        eager, compiled = (learn(learner, batches, 1000 * i) for learner in (first, second))
        assert eager.keys() == compiled.keys()
        for name, value in eager.items():
            assert abs(value - compiled[name]) <= 1e-4 * max(1.0, abs(value)), (name, value)
        assert (weights(first) - weights(second)).abs().max() <= 1e-5
        states = first.save().tensors, second.save().tensors
        for name, x in states[0].items():
            apart = (x.double() - states[1][name].double()).norm()
            assert apart <= 1e-4 * x.double().norm() + 1e-5 * x.numel() ** 0.5, (name, apart)
    assert first.updates == second.updates
    assert (weights(first) - before).abs().max() > 1e-4


def acts(case: Case, learner: Any, actors: Sequence[Any], batch: Rollout) -> list[list[Any]]:
    """What each of them does by the learner's weights."""
    noise = actors[0].draw_noise(1, STREAMS, torch.Generator().manual_seed(0))[0]
    obs = {name: x[0] for name, x in batch.obs.items()}
    found = []
    for actor in actors:
        actor.load(learner.publication())
        out = actor.act(obs, actor.initial_state(STREAMS), batch.is_first[0], noise)
        found.append([out.action, out.env_action, out.record, out.state])
    return found


def compare_acts(case: Case) -> None:
    """With other weights and statistics in between."""
    learner, actors = case.learner(), [case.actor(compute) for compute in (EAGER, COMPILED)]
    for batches in case.batches(3):
        eager, compiled = acts(case, learner, actors, batches[0])
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)
        go_on(learner, [batches])


def assert_nearer(compiled: Tensor, eager: Tensor, exact: Tensor, most: float, name: str) -> None:
    """What is compiled in bfloat16 beside what is eager: the error of bfloat16 itself is the
    yardstick.  Both round the same tensors to the same 8 bits, so they must be much nearer to each
    other than to float32: a wrong factor of 1% is 10 to 100% of that distance.

    most: largest error of bfloat16, as a share of what is exact.
    """
    rounding = (eager - exact).norm()
    assert 0 < rounding < most * exact.norm(), (name, rounding, exact.norm())
    apart = (compiled - eager).norm()
    assert apart < 0.1 * rounding, (name, apart, rounding)


def gradient(learner: Any, before: dict[str, Tensor]) -> Tensor:
    """Of the last optimizer step, up to a factor that all learners share; with RMSProp its absolute
    value.

    before: the optimizer's memory before that step.
    """
    now = learner.trained.memory
    if "exp_avg" in now:
        return now["exp_avg"] - 0.9 * before["exp_avg"]
    decay = learner.config.rmsprop_decay
    return (now["mean_sq"] - decay * before["mean_sq"]).clamp_min(0).sqrt()


def compare_bf16(case: Case) -> None:
    """The gradient of every tensor of parameters, each from equal weights, by one step of Adam,
    whose first moment tells it, or of RMSProp, whose mean square tells its size.
    """
    computes = Compute("fp32"), Compute("bf16"), Compute("bf16", True)
    exact, *others = learners = [case.learner(compute) for compute in computes]
    for *_, batch in case.batches(2):
        for other in others:
            other.load(copy.deepcopy(exact.save()))
        before = {name: x.clone() for name, x in exact.trained.memory.items()}
        found = [learn(each, [batch]) for each in learners]
        assert found[1].keys() == found[2].keys()
        parameters = exact.trained.parameters
        sizes = [x.numel() for x in parameters.values()]
        parts = [gradient(each, before).split(sizes) for each in learners]
        for name, whole, eager, compiled in zip(parameters, *parts, strict=True):
            # The lower of two critics may be the other one after rounding.
            most = 0.4 if case.algo == "sac" else 0.2
            assert_nearer(compiled, eager, whole, most, name)


def bf16_case(algo: str) -> Case:
    """Pictures, and one step of Adam with all of a batch."""
    one_step = {
        "optimizer": "adam", "max_grad_norm": None, "entropy_coef": 0.01,
        "normalize_observations": False, "normalize_pictures": True,
        # A row that is clipped in one and not in the other would be no error of rounding.
        "clip_epsilon": 10.0, "ratio_clamp": None, "value_clip": None,
    }  # fmt: skip
    known = LEARNERS[algo].config.model_fields
    options = {name: value for name, value in one_step.items() if name in known}
    options |= whole_batch(algo)
    if not LEARNERS[algo].acts_in(PICTURES.action):
        return Case(algo, SEEN_CONTROL, options, network={"policy_hidden": (16, 16)})
    return Case(algo, PICTURES, options, network=CNN)


def compare_gae_in_bf16() -> None:
    """Whose last value APPO's network gives in bfloat16."""
    case = Case("appo", PICTURES, {"use_vtrace": False, "normalize_pictures": True}, network=CNN)
    computes = Compute("fp32"), Compute("bf16"), Compute("bf16", True)
    learners = [case.learner(compute) for compute in computes]
    ((batch, *_),) = case.batches(1)
    exact, eager, compiled = (learner._chunks(batch).estimates for learner in learners)
    for name, x in exact.items():
        assert_nearer(compiled[name], eager[name], x, 0.2, name)


def compare(algo: str) -> None:
    entry = LEARNERS[algo]
    able = entry.acts_in(gym.Discrete(2))
    plain, masked = (HYBRID, MASKED) if able else (CONTINUOUS, CONTINUOUS)
    core = "none" if "model.core" in entry.needs else "gru"
    compare_acts(Case(algo, plain, core=core))
    if not entry.planned_updates(entry.config(), STREAMS, 10**9):
        return
    first, *others = (*TOGETHER.get(algo, ()), {})
    compare_updates(Case(algo, plain, first))
    for options in others:
        compare_updates(Case(algo, masked, options, core=core))
    if entry.shared:
        compare_updates(Case(algo, plain), Twins())
    compare_bf16(bf16_case(algo))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        compare(name)
    if "impala" in sys.argv:
        compare_updates(WITH_LOSSES)
    if "appo" in sys.argv:
        compare_updates(GAE_WITH_A_CORE)
        compare_gae_in_bf16()
    print("same")
