"""Parts that do other things on a GPU than on the CPU, or did."""

from dataclasses import replace
from typing import Any

import gpu_runs_helpers
import pytest
import standin_helpers
import torch
from conformance_helpers import STREAMS
from gpu_cases_helpers import CUDA, case_of, learner_on

import quintet
from quintet.algorithms.parts.setup import Compute
from quintet.errors import ConfigError
from quintet.models.film_grid import _over_grid
from quintet.models.normalize import _moments_of_bytes
from quintet.policies import evaluation
from quintet.runtime.policies import Assignment


def test_a_mix_of_policies_acts_without_waits() -> None:
    case = case_of("ppo", "choices, lstm")
    actors = {
        device: Assignment(2, True).make_actor(lambda on=device: case.actor(Compute(act_on=on)))
        for device in ("cpu", "cuda")
    }
    for policy in range(2):
        publication = case.learner(seeds=(policy, 1)).publication()
        for actor in actors.values():
            actor.load(replace(publication, policy=policy))
    batch = case.batches(1)[0][0]
    noise = actors["cpu"].draw_noise(2, STREAMS, torch.Generator().manual_seed(1))
    found = {}
    for device, actor in actors.items():
        state = {k: x.to(device) for k, x in actor.initial_state(STREAMS).items()}
        for step in range(2):
            obs = {name: x[step].to(device) for name, x in batch.obs.items()}
            is_first, draws = torch.full((STREAMS,), not step).to(device), noise[step].to(device)
            with standin_helpers.counting() as counts:
                out = actor.act(obs, state, is_first, draws)
            state = out.state
        assert counts.waits == 0, counts.lines()
        found[device] = [x.cpu() for x in (out.action, *out.record.values(), *state.values())]
    assert all(torch.equal(x, y) for x, y in zip(*found.values(), strict=True))


def test_a_publication_is_fetched_once_and_again_when_a_tensor_has_changed() -> None:
    """Actors on the CPU need copies; without an update, statistics alone may change."""
    learner = learner_on(case_of("ppo", "normalised"), CUDA)
    first = learner.publication().tensors
    with standin_helpers.counting() as counts:
        again = learner.publication().tensors
    assert counts.waits == 0, counts.lines()
    assert all(x.is_cpu and torch.equal(x, again[name]) for name, x in first.items())
    mean = learner.normalizers.observations.moments[0].mean
    with torch.no_grad():
        mean.add_(1.0)
    with standin_helpers.counting() as counts:
        changed = learner.publication().tensors
    assert counts.waits == 1, counts.lines()
    name = "normalizer/moments.0.mean"
    assert torch.equal(changed[name], first[name] + 1.0)
    own = learner_on(case_of("ppo", "normalised"), CUDA, compute=Compute(act_on="cuda"))
    assert all(x.is_cuda for x in own.publication().tensors.values())


def test_the_maximum_over_a_grid_and_its_gradient() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 3, (4, 5, 6, 7), generator=generator).float()  # with equal cells
    upstream = torch.randn(4, 5, generator=generator)
    found = []
    for device in ("cpu", CUDA):
        leaf = x.clone().to(device).requires_grad_()
        top = _over_grid(leaf)
        with standin_helpers.counting() as counts:
            top.backward(upstream.to(device))
        assert "adaptive_max_pool2d_backward.grad_input" not in counts.kernels
        found.append((top.detach().cpu(), leaf.grad.cpu()))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_statistics_of_pictures_take_few_kernels() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (1024, 4, 84, 84), dtype=torch.uint8, generator=generator)
    x[:, 0] = 255
    there = x.to(CUDA)
    with standin_helpers.counting() as counts:
        found = _moments_of_bytes(there)
    assert counts.launches < 20
    assert all(
        torch.equal(one, other.cpu())
        for one, other in zip(_moments_of_bytes(x), found, strict=True)
    )


@pytest.mark.slow
def test_evaluations_act_where_the_run_acts() -> None:
    small = {"env.num_streams": 4, "unroll_steps": 64, "model.policy_hidden": (8,)}
    options = {**small, "eval.episodes": 2, "eval.interval": 256, "report.interval_s": 0.0}
    kernels, scores = {}, {}
    for inference in ("local", "device"):
        played: list[int] = []
        play = evaluation.evaluate_in

        def counted(*given: Any, of: Any = play, told: list[int] = played) -> Any:
            with standin_helpers.counting() as counts:
                found = of(*given)
            told.append(counts.kinds["kernel"])
            return found

        evaluation.evaluate_in = counted
        try:
            ran = gpu_runs_helpers.run(
                "ppo", "CartPole-v1", 512, options | {"runtime.inference": inference}, "cuda"
            )
        finally:
            evaluation.evaluate_in = play
        kernels[inference] = played
        scores[inference] = ran.result.metrics["eval/return_mean"]
    assert sum(kernels["local"]) == 0
    assert all(kernels["device"])
    assert scores["local"] == scores["device"]


def test_an_evaluation_may_compute_on_the_gpu() -> None:
    options = {"env.num_streams": 4, "unroll_steps": 64, "model.core": "gru", "model.core_size": 4}
    small = {"model.policy_hidden": (8,), "bptt_steps": 16}
    policy = gpu_runs_helpers.run("ppo", "CartPole-v1", 256, options | small, "cpu").result.policy
    with standin_helpers.counting() as counts:
        there = quintet.evaluate(policy, episodes=3, deterministic=False, device="cuda")
    assert counts.kinds["kernel"]
    here = quintet.evaluate(policy, episodes=3, deterministic=False)
    assert there.returns.tolist() == here.returns.tolist()
    with pytest.raises(ConfigError, match=r"device=cuda:5 must have 6 CUDA GPUs .*got 1"):
        quintet.evaluate(policy, episodes=3, device="cuda:5")
