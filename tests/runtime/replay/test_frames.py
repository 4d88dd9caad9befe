"""Stacks of frames are found, kept once, and come back as they were."""

import errno
import os

import numpy as np
import pytest
import torch
from folders_helpers import new_folder
from gymnasium import spaces
from replay_streams_helpers import SPACES, Chances, Run, check_window, make, plan

from quintet.envs.public import make_vector_env
from quintet.envs.vector import StepRow, allocate_obs
from quintet.errors import ConfigError
from quintet.protocols import DataPlan, ReplayPlan
from quintet.runtime.replay.frames import frame_slices, may_stack
from quintet.runtime.replay.replay import Replay
from quintet.runtime.slots import RowSpecs
from quintet.types import Rollout, Spaces, TensorSpec

QUIET = Chances(end=0.1, masked=0, odd=0, empty=0, lost=0, budget=0)


def stacked(frames: np.ndarray, count: int, axis_slices: int) -> np.ndarray:
    """Rows ``[T, B, count * slices, ...]`` of frames ``[T + count - 1, B, slices, ...]``."""
    steps = len(frames) - count + 1
    rows = np.stack([frames[i : i + steps] for i in range(count)], 2)
    return rows.reshape(steps, frames.shape[1], count * axis_slices, *frames.shape[3:])


@pytest.mark.parametrize(
    ("frame", "count", "found"),
    [
        ((1, 8, 8), 4, 1),
        ((3, 8, 8), 4, 3),
        ((1, 8, 8, 3), 4, 1),
        ((1, 5), 2, 1),
        ((3, 8, 8), 1, None),
    ],
)
def test_stacks_are_told_by_what_they_hold(frame, count: int, found: int | None) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (24, 2, *frame), np.uint8)
    rows = stacked(frames, count, frame[0])
    assert frame_slices(rows) == found
    mixed = rows[np.random.default_rng(1).permutation(len(rows))]
    assert frame_slices(mixed) is None


@pytest.mark.parametrize("moved", [0, 1, 5])
def test_rows_in_which_little_moves_are_no_sign_of_a_stack(moved: int) -> None:
    """A color image whose lowest lines show something after a black start."""
    rows = np.zeros((30, 2, 84, 84, 3), np.uint8)
    assert frame_slices(rows) is None
    rows[-1 - moved :, :, -5:] = 200
    assert frame_slices(rows) is None


def test_a_stack_that_begins_static_is_told_by_what_moves_in_it() -> None:
    frames = np.zeros((60, 2, 1, 8, 8), np.uint8)
    frames[-5:] = np.random.default_rng(0).integers(0, 256, (5, 2, 1, 8, 8), np.uint8)
    assert frame_slices(stacked(frames, 4, 1)) == 1


@pytest.mark.parametrize(("frame", "found"), [((1, 8, 8), 1), ((3, 8, 8), 3), ((2, 5), 2)])
def test_the_first_two_rows_of_episodes_tell_a_stack(frame, found: int) -> None:
    """Unrolls of one row: the first frame several times, then once less beside the second."""
    frames = np.random.default_rng(0).integers(0, 256, (5, 2, *frame), np.uint8)
    frames[:4] = frames[3]
    assert frame_slices(stacked(frames, 4, frame[0])) == found
    image = np.random.default_rng(1).integers(0, 256, (1, 2, 3, 8, 8), np.uint8)
    assert frame_slices(np.repeat(image, 2, 0)) is None


def test_only_bytes_with_a_leading_axis_can_be_stacks() -> None:
    assert may_stack(TensorSpec((4, 84, 84), torch.uint8))
    assert not may_stack(TensorSpec((4, 84, 84), torch.float32))
    assert not may_stack(TensorSpec((4,), torch.uint8))
    assert not may_stack(TensorSpec((1, 84, 84), torch.uint8))
    assert not may_stack(TensorSpec((97, 96, 3), torch.uint8))  # deeper than any stack


def test_a_single_image_is_kept_as_it_is() -> None:
    replay = make(plan("windows", columns=100), 1)
    run = Run(replay, 1, 4, 0, Chances(end=0, masked=0, odd=1, empty=0, lost=0, budget=0))
    run.collect([0])
    assert not replay._store.stacks
    live = run.lists.live()
    for batch in replay.draws(1, 0):
        for column in range(100):
            check_window(batch, column, run.lists, live)


def stacks_of(replay: Replay) -> dict[str, int]:
    return {name: stack.slices for name, stack in replay._store.stacks.items()}


def used(replay: Replay) -> int:
    """Rows kept whole, of both leaves."""
    return sum(stack.entries - len(stack._free) for stack in replay._store.stacks.values())


def long_run(chances: Chances, batches: int) -> tuple[Replay, Run]:
    replay = make(plan("windows", capacity_steps=200, columns=100, steps=2, unroll=10), 2)
    run = Run(replay, 2, 10, 1, QUIET)
    run.collect([0, 1])
    run.chances = chances
    for stream in run.streams:
        stream.chances = chances
    for _ in range(batches):
        run.collect([0, 1])
    assert stacks_of(replay) == {"obs/image": 1, "obs/color": 3}
    return replay, run


def test_odd_stacks_are_kept_whole_however_many_and_given_back() -> None:
    replay, run = long_run(Chances(end=0.1, masked=0, odd=1, empty=0, lost=0, budget=0), 8)
    first = replay._store.stacks["obs/image"].entries
    assert used(replay) > 100
    live = run.lists.live()
    for batch in replay.draws(1, 0):
        for column in range(100):
            check_window(batch, column, run.lists, live)
    for _ in range(60):
        run.collect([0, 1])
    assert replay._store.stacks["obs/image"].entries <= len(replay._store.flags)
    assert replay._store.stacks["obs/image"].entries > 16 + 1
    assert first <= replay._store.stacks["obs/image"].entries
    for stream in run.streams:
        stream.chances = Chances(end=0, masked=0, odd=0, empty=0, lost=0, budget=0)
    for _ in range(40):
        run.collect([0, 1])
    assert used(replay) == 0


def test_windows_that_are_drawn_one_by_one_have_their_frames_from_before_a_break() -> None:
    """Whatever of the others in a batch would show them."""
    replay = make(plan("windows", capacity_steps=100, columns=1, rate=600), 1)
    run = Run(replay, 1, 4, 0, Chances(end=0.2, masked=0, odd=0, empty=0, lost=0, budget=0))
    for _ in range(20):
        run.collect([0])
    assert stacks_of(replay) == {"obs/image": 1, "obs/color": 3}
    live = run.lists.live()
    found = {check_window(batch, 0, run.lists, live) for batch in replay.draws(1, 0)}
    assert found == live.keys()


@pytest.mark.parametrize(("kind", "whole"), [("repeat", 0), ("zero", 0), ("random", 5)])
def test_first_rows_of_episodes_take_no_room_unless_their_stack_is_unlike_any(
    kind: str, whole: int
) -> None:
    random = np.random.default_rng(0)
    rows = []
    for _ in range(6):
        frames = random.integers(1, 256, (23, 1, 1, 4, 4), np.uint8)
        frames[:3] = {"repeat": frames[3], "zero": 0, "random": frames[:3]}[kind]
        rows.append(stacked(frames, 4, 1))
    space = spaces.Box(0, 255, (4, 4, 4), np.uint8)
    replay = check_pixels(np.concatenate(rows), Spaces(space, SPACES.action), 1, 10)
    assert used(replay) == whole + (kind == "random")  # the very first row too


def test_unrolls_of_one_row_keep_frames_once() -> None:
    random = np.random.default_rng(0)
    frames = random.integers(1, 256, (63, 1, 1, 4, 4), np.uint8)
    frames[:3] = frames[3]
    space = spaces.Box(0, 255, (4, 4, 4), np.uint8)
    replay = check_pixels(stacked(frames, 4, 1), Spaces(space, SPACES.action), 1, 1)
    assert used(replay) == 0


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES])
def test_a_full_disk_says_what_to_do(fault: int, tmp_path, monkeypatch) -> None:
    replay = make(plan("windows", capacity_steps=600, columns=100, unroll=10), 1, folder=tmp_path)
    run = Run(replay, 1, 10, 1, QUIET)
    run.collect([0])
    for stream in run.streams:
        stream.chances = Chances(end=0, masked=0, odd=1, empty=0, lost=0, budget=0)

    def full(*_) -> None:
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(os, "posix_fallocate", full)

    def go_on() -> None:
        for _ in range(10):
            run.collect([0])

    with pytest.raises(ConfigError, match=r"frames-\d.bin, got less .*make room"):
        go_on()


def pong(steps: int, kwargs: dict) -> tuple[np.ndarray, Spaces]:
    """Observations ``[T + 1, B, ...]`` of EnvPool's Pong under random actions."""
    pytest.importorskip("envpool")
    env = make_vector_env("Pong-v5", 2, kwargs=kwargs)
    try:
        first = allocate_obs(env.spaces.observation, (2,))
        env.restart([1, 2], first)
        rows, random = [first["obs"]], np.random.default_rng(0)
        for _ in range(steps):
            env.send(random.integers(0, 6, 2))
            flags = (np.zeros(2, np.bool_) for _ in range(4))
            reward = (np.zeros(2, np.float32) for _ in range(2))
            out = StepRow(allocate_obs(env.spaces.observation, (2,)), *reward, *flags)
            env.recv(out)
            rows.append(out.obs["obs"])
        return np.array(rows), env.spaces
    finally:
        env.close()


@pytest.mark.parametrize("gray", [True, False])
def test_stacks_of_a_real_pool_are_kept_once(gray: bool) -> None:
    rows, env_spaces = pong(60, {"max_episode_steps": 25, "gray_scale": gray})
    replay = check_pixels(rows, env_spaces, 1 if gray else 3, 20)
    assert used(replay) == 0  # its first rows repeat a frame


def rollout_of(rows: np.ndarray, begin: int, steps: int) -> Rollout:
    count = rows.shape[1]

    def zeros(dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(steps, count, dtype=dtype)

    row = torch.arange(begin, begin + steps)[:, None].expand(-1, count).contiguous()
    return Rollout(
        obs={"obs": torch.from_numpy(rows[begin : begin + steps + 1])},
        action=zeros(torch.int64),
        reward=zeros(torch.float32),
        terminated=zeros(torch.bool),
        truncated=zeros(torch.bool),
        valid=~zeros(torch.bool),
        is_first=torch.zeros(steps + 1, count, dtype=torch.bool),
        record={"row": row},
        version=zeros(torch.int64),
        policy_id=zeros(torch.int64),
        stream_id=torch.arange(count),
        group_id=torch.arange(count),
        episode_id=torch.zeros(count, dtype=torch.int64),
        last_action=torch.zeros(count, dtype=torch.int64),
        last_reward=torch.zeros(count),
        state={},
    )


def check_pixels(
    rows: np.ndarray, env_spaces: Spaces, slices: int, steps: int, capacity: int = 10_000
) -> Replay:
    count = rows.shape[1]
    specs = RowSpecs(
        env_spaces, TensorSpec((), torch.int64), {"row": TensorSpec((), torch.int64)}, {}
    )
    replay = Replay(
        DataPlan(steps, count, replay=ReplayPlan("windows", capacity, 2, 64, "owed", 0.1)),
        specs,
        count,
        0,
        new_folder(),
    )
    for begin in range(0, len(rows) - steps, steps):
        replay.store(rollout_of(rows, begin, steps))
    assert stacks_of(replay) == {"obs/obs": slices}
    for batch in replay.draws(200, 0):
        for column in range(64):
            stream, row = int(batch.stream_id[column]), int(batch.record["row"][0, column])
            wanted = rows[row : row + 2, stream]
            assert np.array_equal(batch.obs["obs"][:2, column].numpy(), wanted)
    return replay


def test_stacks_of_the_wrapper_on_gray_and_colour_images() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (63, 2, 1, 6, 6, 3), np.uint8)
    rows = stacked(frames, 4, 1)
    space = spaces.Box(0, 255, (4, 6, 6, 3), np.uint8)
    check_pixels(rows, Spaces(space, SPACES.action), 1, 10)


def test_the_oldest_row_has_its_older_frames_when_their_rows_are_gone() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (132, 1, 1, 4, 4), np.uint8)
    space = spaces.Box(0, 255, (12, 4, 4), np.uint8)
    check_pixels(stacked(frames, 12, 1), Spaces(space, SPACES.action), 1, 10, capacity=20)


def test_a_plain_leaf_beside_a_stack_has_its_own_dtype() -> None:
    replay = make(plan("windows", columns=4), 1)
    run = Run(replay, 1, 4, 0, QUIET)
    run.collect([0])
    (batch,) = replay.draws(1, 0)
    dtypes = {name: leaf.dtype for name, leaf in batch.obs.items()}
    assert dtypes == {
        "image": torch.uint8,
        "color": torch.uint8,
        "vector": torch.float32,
        "place": torch.int64,
    }
    assert batch.record["half"].dtype == torch.bfloat16
