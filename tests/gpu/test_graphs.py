"""Captured updates and acts on a GPU: the bytes of eager ones, one launch, one wait."""

from collections.abc import Sequence
from typing import Any

import pytest
import standin_helpers
import torch
from conformance_helpers import STREAMS
from gpu_cases_helpers import CPU, CUDA, case_of, learned, learner_on, worst
from gpu_runs_helpers import run

from quintet.algorithms.parts.acting import WARMING_UP
from quintet.algorithms.parts.setup import Compute
from quintet.protocols import Actor
from quintet.runtime import gpu_actor as staging
from quintet.runtime.batch import rollout_to_device
from quintet.runtime.gpu_actor import GpuActor, SharedGpuActor, actors_of
from quintet.runtime.policies import Assignment, PolicyMix
from quintet.types import Publication

GRAPH = Compute(graph=True)
CASES = [
    ("ppo", "normalised"), ("ppo", "masked, gru"), ("impala", "choices, lstm"),
    ("appo", "choices"), ("ddpg", "numbers"), ("acer", "normalised"), ("sac", "numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("algo", "spaces"), [pytest.param(*x, id=" ".join(x)) for x in CASES])
def test_a_captured_learner_has_the_bytes_of_an_eager_one(algo: str, spaces: str) -> None:
    case = case_of(algo, spaces)
    eager, captured = learned(case, CUDA), learned(case, CUDA, compute=GRAPH)
    assert worst(eager.state, captured.state) == (0.0, "")
    assert [repr(each) for each in captured.metrics] == [repr(each) for each in eager.metrics]


@pytest.mark.parametrize(("algo", "spaces"), [pytest.param(*x, id=" ".join(x)) for x in CASES])
def test_a_step_is_one_launch_and_copies_of_its_inputs(algo: str, spaces: str) -> None:
    case = case_of(algo, spaces)
    learner, found = learner_on(case, CUDA, compute=GRAPH), list[standin_helpers.Counts]()
    step = learner.trained.step

    def counted(*args: Any, **given: Any) -> None:
        with standin_helpers.counting() as counts:
            step(*args, **given)
        found.append(counts)

    learner.trained.step = counted
    for batches in case.batches(3):
        for batch in batches:
            learner.update(rollout_to_device(batch, CUDA), 0)
    for counts in found[1:]:
        assert counts.waits == 0, counts.lines()
        assert counts.kinds["graph"] == 1
        assert counts.kinds["kernel"] == 0, counts.kernels
        assert counts.kinds["d2d"] < 30


def copied(publication: Publication) -> Publication:
    return Publication(
        publication.version, {name: x.clone() for name, x in publication.tensors.items()}
    )


def inputs(case: Any, seed: int) -> tuple[Any, Any, Any]:
    """Of a group: what it sees, where episodes begin, and its noise."""
    batch = case.batches(1)[0][0]
    noise = case.actor().draw_noise(1, STREAMS, torch.Generator().manual_seed(seed))[0]
    row = seed % len(batch.valid)
    return {name: x[row] for name, x in batch.obs.items()}, batch.is_first[row], noise


def states_of(outs: Sequence[Any]) -> list[Any]:
    return [out.state for out in outs]


@pytest.mark.parametrize(
    ("algo", "spaces", "options"),
    [
        ("ppo", "masked, gru", {}),
        ("ppo", "normalised", {}),
        ("acer", "parts", {}),
        ("ddpg", "numbers", {"exploration": "normal_0.1, ou_0.2"}),
        ("ddpg", "numbers", {"exploration": "adaptive-param_0.2"}),
        ("sac", "numbers", {"noise_correlation": 0.5}),
    ],
)
@pytest.mark.parametrize("groups", [1, 16])
def test_groups_act_together_with_one_wait(
    algo: str, spaces: str, options: dict[str, Any], groups: int
) -> None:
    """One group, as in exact kinds, with the bytes of an act on the CPU.  Several, as of the server
    in async, up to rounding, which follows the number of rows on some processors.
    """
    case = case_of(algo, spaces, options)
    near = {"rtol": 0.0, "atol": 0.0} if groups == 1 else {"rtol": 1e-5, "atol": 1e-6}
    learner, plain = learner_on(case, CPU), case.actor()
    on_gpu = case.algorithm.make_actor(
        case.config, case.model, case.spaces, Compute(graph=True, act_on="cuda")
    )
    staged = GpuActor(SharedGpuActor(on_gpu, CUDA))
    whole = plain.initial_state(1).keys() == plain.state_specs.keys()  # nothing private
    theirs = [plain.initial_state(STREAMS) for _ in range(groups)]
    ours = [staged.initial_state(STREAMS) for _ in range(groups)]
    for turn in range(4):
        if turn in (0, 2):
            for batch in case.batches(3)[turn]:
                learner.update(batch, 0)
            plain.load(copied(learner.publication()))
            with standin_helpers.counting() as counts:
                staged.load(copied(learner.publication()))
            if turn:  # the first load checks the names
                flags = sum(x.dtype is torch.bool for x in learner.publication().tensors.values())
                assert counts.waits <= flags, counts.lines()
                assert counts.kinds["h2d_async"] == 1
        given = [inputs(case, 10 * turn + group) for group in range(groups)]
        obs, is_first, noise = (list(each) for each in zip(*given, strict=True))
        outs = [
            plain.act(*each[:1], state, *each[1:])
            for each, state in zip(given, theirs, strict=True)
        ]
        theirs = states_of(outs)
        with standin_helpers.counting() as counts:
            out = staged.act_together(obs, ours, is_first, noise)
        for number, wanted in enumerate(outs):
            rows = slice(number * STREAMS, (number + 1) * STREAMS)
            torch.testing.assert_close(out.action[rows], wanted.action, **near)
            torch.testing.assert_close(out.env_action[rows], wanted.env_action, **near)
            for name, x in (wanted.record | wanted.state).items():
                mine = (out.record | out.state)[name]
                assert mine.is_cpu == (name in out.record or name in plain.state_specs)
                torch.testing.assert_close(mine[rows].cpu(), x, **near)
        ours = [
            {name: x[g * STREAMS : (g + 1) * STREAMS] for name, x in out.state.items()}
            for g in range(groups)
        ]
        if turn:
            # Noise on weights is drawn on the CPU where an episode begins, which is looked for.
            looks = "param" in str(options)
            assert counts.waits == 1 + looks, counts.lines()
            assert counts.kinds["graph"] == 1
            assert looks or counts.kinds["h2d_async"] == (not whole)
            if whole:  # its copies are in it
                assert counts.kinds.keys() <= {"graph", "stream"}, counts.kinds
    assert not standin_helpers.races


def test_actions_are_random_as_long_as_a_publication_says_so() -> None:
    case = case_of("sac", "numbers", {})
    learner, plain = learner_on(case, CPU), case.actor()
    on_gpu = case.algorithm.make_actor(
        case.config, case.model, case.spaces, Compute(graph=True, act_on="cuda")
    )
    staged = GpuActor(SharedGpuActor(on_gpu, CUDA))
    state, mine = plain.initial_state(STREAMS), staged.initial_state(STREAMS)
    policys = None
    for random in (False, True, False):
        here, there = (copied(learner.publication()) for _ in range(2))
        for each in (here, there):
            each.tensors[WARMING_UP] = torch.tensor(random)
        plain.load(here)
        staged.load(there)
        obs, is_first, noise = inputs(case, 3)
        wanted = plain.act(obs, state, is_first, noise).action
        assert torch.equal(staged.act(obs, mine, is_first, noise).action, wanted)
        policys = wanted if policys is None else policys
        assert torch.equal(policys, wanted) is not random


def test_groups_in_one_process_share_an_actor_that_loads_once() -> None:
    case, made = case_of("ppo", "masked, gru"), []

    class Counted:
        def __init__(self, actor: Actor) -> None:
            self.actor, self.loads = actor, 0
            self.action_spec, self.state_specs = actor.action_spec, actor.state_specs
            self.record_specs, self.draw_noise = actor.record_specs, actor.draw_noise
            self.initial_state, self.act = actor.initial_state, actor.act

        def load(self, publication: Publication) -> None:
            self.loads += 1
            self.actor.load(publication)

    def make() -> Any:
        compute = Compute(act_on="cuda")
        made.append(
            Counted(case.algorithm.make_actor(case.config, case.model, case.spaces, compute))
        )
        return made[-1]

    actor_of = actors_of(make, "cuda")
    groups = [actor_of(policies) for policies in ((0,), (1,), (0,), (0,))]
    assert len(made) == 2
    publication = learner_on(case, CUDA).publication()
    for group in groups[::2]:
        group.load(publication)
    assert [each.loads for each in made] == [1, 0]


def test_a_mix_of_policies_acts_on_the_gpu() -> None:
    case = case_of("ppo", "choices, lstm")

    def mix(act_on: str) -> PolicyMix:
        compute = Compute(act_on=act_on, graph=act_on != "cpu")
        actors = [
            case.algorithm.make_actor(case.config, case.model, case.spaces, compute)
            for _ in range(2)
        ]
        return PolicyMix(actors, Assignment(2, mixed=True))

    plain, staged = mix("cpu"), GpuActor(SharedGpuActor(mix("cuda"), CUDA))
    for policy in range(2):
        learner = case.learner(seeds=(policy, 1))
        tensors = dict(learner.publication().tensors)
        for actor in (plain, staged):
            actor.load(Publication(policy + 3, tensors, policy))
    theirs, ours = plain.initial_state(STREAMS), staged.initial_state(STREAMS)
    for seed in range(3):
        obs, is_first, _ = inputs(case, seed)
        noise = plain.draw_noise(1, STREAMS, torch.Generator().manual_seed(seed))[0]
        wanted, out = (
            plain.act(obs, theirs, is_first, noise),
            staged.act(obs, ours, is_first, noise),
        )
        theirs, ours = wanted.state, out.state
        assert torch.equal(out.env_action, wanted.env_action)
        for name, x in wanted.record.items():
            assert torch.equal(out.record[name], x), name


@pytest.mark.parametrize("large", [pytest.param(2**18, marks=pytest.mark.slow), 0])
def test_a_run_acts_and_learns_in_graphs(large: int) -> None:
    """With large observations in the slots' own memory, or in the block of the other inputs."""
    assert staging._LARGE == 2**18
    staging._LARGE = large
    try:
        _acts_and_learns_in_graphs(large)
    finally:
        staging._LARGE = 2**18


def _acts_and_learns_in_graphs(large: int) -> None:
    sizes = {
        "env.num_streams": 4, "env.streams_per_group": 2, "unroll_steps": 16, "bptt_steps": 8,
        "minibatch_steps": 32, "model.core": "gru", "model.core_size": 8,
        "model.policy_hidden": [8],
        "env.backend": "gymnasium",  # which reads an action after the other group's act
    }  # fmt: skip
    graphs = {"runtime.compile": "graph", "runtime.inference": "device"}
    on_gpu = run("ppo", "CartPole-v1", 320, sizes | graphs)
    assert on_gpu.differs_by(run("ppo", "CartPole-v1", 320, sizes, "cpu")) == 0.0
    act, update = on_gpu.phases["act"], on_gpu.phases["update"]
    # Each capture waits for the GPU, once for an act's layout.
    assert act.counts.kinds["stream"] == act.calls
    copies = act.counts.kinds["h2d_async"] / act.calls
    assert copies > 1 if large == 0 else copies < 0.1  # those of captures
    assert act.counts.waits <= act.calls + 4
    assert act.counts.kinds["graph"] == act.calls
    assert update.counts.kinds["graph"] >= update.calls
    assert not standin_helpers.races


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lockstep", "async"])
def test_a_server_acts_in_graphs(kind: str) -> None:
    sizes = {
        "env.num_streams": 4, "env.streams_per_group": 2, "unroll_steps": 16,
        "minibatch_steps": 32, "model.policy_hidden": [8], "runtime.num_workers": 2,
        "runtime.kind": kind,
    }  # fmt: skip
    served = {"runtime.inference": "server", "runtime.compile": "graph"}
    on_gpu = run("ppo", "CartPole-v1", 320, sizes | served)
    if kind == "lockstep":
        assert on_gpu.differs_by(run("ppo", "CartPole-v1", 320, sizes, "cpu")) == 0.0
