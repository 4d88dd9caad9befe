"""Uniformly random actions: every allowed one as likely, in any space, by seed."""

import numpy as np
import torch
from gymnasium import spaces

from quintet.envs.random_play import UniformActor
from quintet.spaces import action_spec, unpack_action
from quintet.types import ACTION_MASK

SPACE = spaces.Tuple(
    [
        spaces.Box(np.array([-2.0, 3.0], np.float32), np.array([-1.0, 5.0], np.float32)),
        spaces.Box(-2.0, -1.0, (1,)),
        spaces.Discrete(3),
        spaces.MultiBinary(2),
        spaces.MultiDiscrete([2, 4]),
    ]
)


def acts(actor, count, mask=None):
    obs = {} if mask is None else {ACTION_MASK: torch.tensor(mask)}
    return actor.act(obs, actor.initial_state(count), torch.ones(count, dtype=torch.bool), None)


def test_actions_are_of_the_space_and_fill_it():
    out = acts(UniformActor(SPACE, 1), 4000).env_action
    spec = action_spec(SPACE)
    assert (out.shape, out.dtype) == ((4000, *spec.shape), spec.dtype)
    drawn = unpack_action(SPACE, out.numpy())
    for i in range(100):
        assert SPACE.contains(tuple(part[i] for part in drawn))
    box, other, choice, bits, pair = drawn
    # Five standard errors of a uniform distribution's mean.
    assert np.abs(box.mean(0) - [-1.5, 4.0]).max() < 5 * 2 / 12**0.5 / 4000**0.5
    assert not np.array_equal(box[:, :1], other)  # leaves are independent
    for values, n in (
        (choice, 3),
        (bits[:, 0], 2),
        (bits[:, 1], 2),
        (pair[:, 0], 2),
        (pair[:, 1], 4),
    ):
        shares = np.bincount(values.ravel(), minlength=n) / 4000
        assert len(shares) == n
        assert np.abs(shares - 1 / n).max() < 5 * 0.5 / 4000**0.5


def test_what_a_mask_forbids_is_not_chosen():
    space = spaces.MultiDiscrete([3, 2])
    mask = np.tile([[1, 0, 1, 0, 1]], (600, 1)).astype(np.int8)
    out = acts(UniformActor(space, 1), 600, mask).env_action.numpy()
    assert set(out[:, 1]) == {1}
    assert set(out[:, 0]) == {0, 2}
    assert 230 < (out[:, 0] == 0).sum() < 370  # 300 +- 5.7 standard deviations


def test_the_seed_decides_and_the_space_is_left_as_it_was():
    space = spaces.Box(-1.0, 1.0, (2,))
    space.seed(4)
    first, same, other = (acts(UniformActor(space, seed), 5).action for seed in (1, 1, 2))
    assert first.equal(same)
    assert not first.equal(other)
    fresh = spaces.Box(-1.0, 1.0, (2,))
    fresh.seed(4)
    np.testing.assert_array_equal(space.sample(), fresh.sample())


def test_a_plain_discrete_action_has_no_dimension_of_its_own():
    out = acts(UniformActor(spaces.Discrete(4), 1), 7).env_action
    assert (out.shape, out.dtype) == ((7,), torch.int64)


def test_actions_are_not_the_numbers_of_environments_with_that_seed():
    space = spaces.Box(0.0, 1.0, (1,), np.float64)
    theirs = np.random.default_rng(5).random(6)
    for player in (0, 1):
        own = acts(UniformActor(space, 5, player), 6).env_action[:, 0].numpy()
        assert np.abs(own - theirs).max() > 0.05
    whole = spaces.Discrete(1000)
    first, second = (acts(UniformActor(whole, 5, player), 6).env_action for player in (0, 1))
    assert not first.equal(second)
