"""Rows that stay on a GPU, against those of the same environments on the CPU."""

from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensor_helpers import Counting
from torch import Tensor

from quintet.envs.tensors_as_arrays import HostedEnv
from quintet.envs.torch_toys import CartPole, Grid
from quintet.envs.wrappers import FromRewards, clip_reward
from quintet.errors import EnvironmentFault
from quintet.observe.timing import PhaseTimer
from quintet.protocols import DataPlan
from quintet.runtime import device_rows
from quintet.runtime.batch import Episode, select
from quintet.runtime.delivery import Batch
from quintet.runtime.sampler import SerialOptions, SerialSampling
from quintet.spaces import action_spec
from quintet.types import ActOutput, Publication, TensorSpec

SEED, STEPS, STREAMS = 5, 7, 3
RULE = "reward>11"


class Remembering:
    """Acts by its noise; remembers the sum of what it saw, and records it."""

    record_specs = {"seen": TensorSpec((), torch.float32), "sum": TensorSpec((), torch.float32)}
    state_specs = {"sum": TensorSpec((), torch.float32)}

    def __init__(self, space, device: str) -> None:
        self.action_spec, self.device = action_spec(space), device
        self.weight = torch.zeros((), device=device)

    def load(self, publication: Publication) -> None:
        self.weight.copy_(publication.tensors["weight"])

    def initial_state(self, num_streams: int) -> dict[str, Tensor]:
        return {"sum": torch.zeros(num_streams, device=self.device)}

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        return torch.rand(steps, num_streams, generator=generator, device=self.device)

    @torch.inference_mode()
    def act(self, obs, state, is_first, noise) -> ActOutput:
        seen = sum(x.float().flatten(1).sum(1) for x in obs.values())
        total = torch.where(is_first, 0.0, state["sum"]) + seen
        action = (noise > 0.5).long()
        record = {"seen": seen * self.weight, "sum": total}
        return ActOutput(action, action, record, {"sum": total})


def both(env, streams=STREAMS, clip="none", success=None, may_lag=False, graph=False, **plan):
    """Samplings of equal environments: on the GPU, and on the CPU."""
    given = DataPlan(**({"unroll_steps": STEPS, "columns_per_batch": streams} | plan))
    above = float(success.partition(">")[2]) if success and ">" in success else None

    def sampling(device: str) -> SerialSampling:
        made = env(device)
        hosted = HostedEnv(made)
        vector = FromRewards(hosted, clip, success, above) if clip != "none" or above else hosted
        rows = partial(device_rows.DeviceRows, env=made, graph=graph) if device == "cuda" else None
        options = SerialOptions(may_lag=may_lag, act_on=device, on_gpu=rows)
        make_actor = lambda: Remembering(made.spaces.action, device)  # noqa: E731
        return SerialSampling([vector], make_actor, given, SEED, PhaseTimer(), options)

    return sampling("cuda"), sampling("cpu")


def publish(sampling, version: int) -> None:
    sampling.publish(Publication(version, {"weight": torch.tensor(float(version))}))


def kept(batch: Batch) -> Batch:
    """The batch in memory of its own."""
    columns = torch.arange(batch.rollout.reward.shape[1])
    return replace(batch, rollout=select(batch.rollout, columns))


def run(sampling, batches: int, budget: int = 10**6, restart_after: int = -1) -> list[Batch]:
    """Batches of a run that restarts after one of them; each has its own memory."""
    publish(sampling, 0)
    sampling.restart(0)
    found = []
    for index in range(batches):
        batch = sampling.collect(budget, lambda _: index == restart_after)  # noqa: B023
        budget -= batch.env_steps
        found.append(kept(batch))
        if not budget:
            break
        publish(sampling, index + 1)
        if index == restart_after:
            sampling.restart(index + 1)
    return found


def require_equal(mine: Batch, theirs: Batch) -> None:
    assert mine.rollout.source is not None
    for name in ("valid", "terminated", "truncated", "version", "stream_id"):
        known = getattr(mine.rollout.source, name)
        assert known.is_cpu
        assert torch.equal(known, getattr(theirs.rollout, name)), name
    for field in fields(mine.rollout):
        x, y = getattr(mine.rollout, field.name), getattr(theirs.rollout, field.name)
        x, y = (each if isinstance(each, dict) else {"": each} for each in (x, y))
        assert x.keys() == y.keys()
        for key in x.keys() if field.name != "source" else ():
            name, one, other = f"{field.name}/{key}", x[key], y[key]
            if isinstance(one, Tensor):
                assert one.is_cuda
                assert one.dtype == other.dtype, name
                assert torch.equal(one.cpu(), other), f"{name}\n{one}\n{other}"
            else:
                assert one == other, name
    assert mine.episodes == theirs.episodes
    assert (mine.env_steps, mine.steps) == (theirs.env_steps, theirs.steps)


ENVS = {
    "same step": lambda device: Counting(STREAMS, device=device),
    "no final observation": lambda device: Counting(STREAMS, final=False, device=device),
    "next step": lambda device: Counting(STREAMS, AutoresetMode.NEXT_STEP, device=device),
    "cartpole": lambda device: CartPole(STREAMS, device, max_episode_steps=9),
    "grid": lambda device: Grid(STREAMS, device, size=5, max_episode_steps=6, masked=True),
}


@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"columns_per_batch": 2, "max_policy_lag": 1, "return_discount": 0.5},
        {"columns_per_batch": 7, "state_every": 7},
        {"columns_per_batch": 1, "max_policy_lag": 0},
    ],
    ids=["whole", "fewer columns", "more columns", "old columns"],
)
def test_batches_are_those_of_the_cpu(name, plan) -> None:
    device, serial = both(ENVS[name], **plan)
    many = zip(run(device, 8, 120, 3), run(serial, 8, 120, 3), strict=True)
    for mine, theirs in many:
        require_equal(mine, theirs)
    assert device.report() == serial.report()


@pytest.mark.parametrize("steps", [STEPS, 1])
@pytest.mark.parametrize("budget", [1, 8, 20, 31])
def test_the_budget_ends_within_an_unroll(budget: int, steps: int) -> None:
    device, serial = both(ENVS["next step"], return_discount=0.9, unroll_steps=steps)
    mine, theirs = run(device, 40, budget), run(serial, 40, budget)
    assert sum(batch.env_steps for batch in mine) == budget
    for one, other in zip(mine, theirs, strict=True):
        require_equal(one, other)


def test_a_graph_follows_a_short_unroll() -> None:
    batches = []
    for sampling in both(ENVS["cartpole"], graph=True, return_discount=0.9):
        publish(sampling, 0)
        sampling.restart(0)
        budgets = 10**6, 10**6, 4, 10**6, 10**6
        batches.append([kept(sampling.collect(budget)) for budget in budgets])
    for mine, theirs in zip(*batches, strict=True):
        require_equal(mine, theirs)


@pytest.mark.parametrize("kind", ["none", "abs_one", "soft_asymmetric"])
def test_rewards_of_both_signs_are_clipped_as_on_the_cpu(kind) -> None:
    here = np.linspace(-30, 30, 121, dtype=np.float32)
    there = torch.from_numpy(here.copy()).cuda()
    for reward in (here, there):
        clip_reward(reward, kind)
    torch.testing.assert_close(there.cpu(), torch.from_numpy(here), rtol=1e-6, atol=0)


@pytest.mark.parametrize("clip", ["abs_one", "soft_asymmetric"])
def test_rewards_are_clipped_and_success_is_of_raw_ones(clip: str) -> None:
    device, serial = both(ENVS["same step"], clip=clip, success=RULE, may_lag=True)
    episodes = []
    for mine, theirs in zip(run(device, 4), run(serial, 4), strict=True):
        reward = mine.rollout.reward.cpu()
        torch.testing.assert_close(reward, theirs.rollout.reward, rtol=1e-6, atol=0)
        assert mine.episodes == theirs.episodes
        episodes += mine.episodes
    assert {each.success for each in episodes} == {True, False}


def test_success_of_info() -> None:
    device, serial = both(lambda device: Counting(STREAMS, success="info:won", device=device))
    episodes = [each for batch in run(device, 4) for each in batch.episodes]
    assert {each.success for each in episodes} == {True, False}
    assert episodes == [each for batch in run(serial, 4) for each in batch.episodes]


def test_more_episodes_end_than_are_sent_at_first() -> None:
    device, serial = both(ENVS["next step"])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(device_rows, "_MOST_TOLD", 1)
        mine = run(device, 3)
    for one, other in zip(mine, run(serial, 3), strict=True):
        assert one.episodes == other.episodes
        assert len(one.episodes) > STREAMS


def test_the_discarded_step_is_in_no_row() -> None:
    """Same step: row after an ending shows the final observation, the next the second one."""
    device, _ = both(ENVS["same step"])
    rollout = run(device, 1)[0].rollout
    # Stream 0: two steps, the discarded one, then from the second observation on.
    assert rollout.obs["obs"][:, 0, 2].tolist()[:7] == [0, 1, 2, 1, 2, 1, 2]
    assert rollout.valid[:, 0].tolist() == [True, True, False, True, False, True, False]
    assert rollout.is_first[:, 0].tolist()[:5] == [True, False, False, True, False]


def test_an_ending_in_a_discarded_step_is_not_seen() -> None:
    device, _ = both(lambda device: Counting(1, least=1, device=device), streams=1)
    batch = run(device, 1)[0]
    odd = [row % 2 == 0 for row in range(STEPS)]
    assert batch.rollout.valid[:, 0].tolist() == odd
    assert batch.rollout.truncated[:, 0].tolist() == odd
    assert len(batch.episodes) == batch.env_steps == sum(odd)


def test_without_a_final_observation_the_last_one_stands_for_it() -> None:
    device, _ = both(ENVS["no final observation"])
    assert run(device, 1)[0].rollout.obs["obs"][:, 0, 2].tolist()[:4] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("obs", r"stream 1, step 9 after .*observation 'obs'\[2\] is nan"),
        ("reward", r"stream 1, step 8 after .*reward is inf"),
    ],
)
def test_what_is_not_finite_is_named(part: str, message: str) -> None:
    class Broken(Counting):
        steps = 0

        def step(self, action):
            self.steps += 1
            out = super().step(action)
            if self.steps == 9 and part == "reward":
                out.reward[1] = torch.inf
            if self.steps == 9 and part == "obs":
                out.obs["obs"][1, 2] = torch.nan
            return out

    device, _ = both(lambda device: Broken(STREAMS, AutoresetMode.NEXT_STEP, device=device))
    with pytest.raises(EnvironmentFault, match=message):
        run(device, 3)


def test_a_mask_without_a_choice_is_named() -> None:
    class Stuck(Grid):
        def _obs(self):
            found = super()._obs()
            found["action_mask"][2] = 0
            return found

    device, _ = both(lambda device: Stuck(STREAMS, device, size=5, masked=True))
    with pytest.raises(EnvironmentFault, match="stream 2, step 0: it allows none"):
        run(device, 1)


UNFIT = {
    "shape": (lambda out: out._replace(reward=out.reward.unsqueeze(1)), r"reward of shape \(3,\)"),
    "name": (lambda out: out._replace(obs={"x": out.reward}), r"observations \['obs'\] by name"),
    "kind": (lambda out: out._replace(terminated=[True] * 3), "terminated as a torch.Tensor"),
    "place": (lambda out: out._replace(truncated=out.truncated.cpu()), "truncated on cuda"),
    "error": (lambda out: 1 / 0, "ZeroDivisionError"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_unfit_steps_are_refused(name: str) -> None:
    change, message = UNFIT[name]

    class Unfit(Counting):
        def step(self, action):
            return change(super().step(action))

    device, _ = both(lambda device: Unfit(STREAMS, device=device))
    with pytest.raises(EnvironmentFault, match=message):
        run(device, 1)


def test_episodes_are_told_in_order() -> None:
    device, _ = both(ENVS["next step"])
    episodes: list[Episode] = run(device, 1)[0].episodes
    assert episodes == sorted(episodes, key=lambda each: (each.row, each.column))
