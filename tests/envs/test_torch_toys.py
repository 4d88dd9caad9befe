"""Environments in PyTorch, against Gymnasium's, and by their rules."""

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
import torch

from quintet.envs.public import make_vector_env
from quintet.envs.torch_toys import CartPole, Grid, Pendulum
from quintet.errors import ConfigError


def stepped(env, seed: int, steps: int, draw: Callable[[], torch.Tensor]):
    """Observations, actions and results of some steps."""
    obs = [{name: x.clone() for name, x in env.restart(seed).items()}]
    actions, results = [], []
    for _ in range(steps):
        actions.append(draw())
        out = env.step(actions[-1])
        obs.append({name: x.clone() for name, x in out.obs.items()})
        results.append((out.reward.clone(), out.terminated.clone(), out.truncated.clone()))
    return obs, actions, results


def test_cartpole_is_gymnasiums() -> None:
    count, draws = 5, torch.Generator().manual_seed(1)
    env = CartPole(count, max_episode_steps=30)
    obs, actions, results = stepped(
        env, 3, 120, lambda: torch.randint(0, 2, (count,), generator=draws)
    )
    single = gymnasium.make("CartPole-v1", disable_env_checker=True, max_episode_steps=30)
    ended = 0
    for stream in range(count):
        is_reset = is_first = True  # of the step before
        for row, (reward, terminated, truncated) in enumerate(results):
            before, after = obs[row]["obs"][stream].numpy(), obs[row + 1]["obs"][stream].numpy()
            if is_first:
                assert np.abs(before).max() <= 0.05
                single.reset()
                single.unwrapped.state = before.astype(np.float64)
                is_first = False
            if not is_reset:  # the step after an ending resets, whatever the action
                assert (reward[stream], terminated[stream], truncated[stream]) == (0, False, False)
                is_reset = is_first = True
                continue
            seen, gain, out, cut, _ = single.step(int(actions[row][stream]))
            np.testing.assert_allclose(after, seen, rtol=1e-4, atol=1e-5)
            assert (gain, out) == (reward[stream], terminated[stream])
            assert truncated[stream] == (cut and not out)
            is_reset = not (out or cut)
            ended += not is_reset
    assert ended > count


def test_pendulum_is_gymnasiums() -> None:
    draws = torch.Generator().manual_seed(1)
    env = Pendulum(4)
    obs, actions, results = stepped(
        env, 3, 200, lambda: torch.rand((4, 1), generator=draws) * 6 - 3
    )
    single = gymnasium.make("Pendulum-v1", disable_env_checker=True)
    for stream in range(4):
        single.reset()
        cosine, sine, speed = obs[0]["obs"][stream].double()
        single.unwrapped.state = np.array([torch.atan2(sine, cosine), speed])
        for row in range(20):  # from where rounding grows
            seen, gain, *_ = single.step(actions[row][stream].numpy())
            np.testing.assert_allclose(obs[row + 1]["obs"][stream], seen, rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(results[row][0][stream], gain, rtol=1e-3, atol=1e-3)
    _, terminated, truncated = results[-1]
    assert truncated.all()
    assert not terminated.any()


def test_the_grid_pays_at_the_goal_only() -> None:
    env = Grid(64, size=5, masked=True)
    obs = env.restart(0)
    picture = obs["picture"]
    assert (picture.flatten(2) == 255).sum(2).eq(1).all()
    assert not (picture[:, 0] & picture[:, 1]).any()
    # Straight to the goal, first along the rows.
    begun = picture.flatten(2).int().argmax(2)
    away = (begun // 5).diff(dim=1).abs() + (begun % 5).diff(dim=1).abs()
    paid, steps = torch.zeros(64), torch.zeros(64, dtype=torch.int64)
    done = torch.zeros(64, dtype=torch.bool)
    for _ in range(8):
        place = obs["picture"].flatten(2).int().argmax(2)
        down = (place // 5).diff(dim=1)[:, 0]
        right = (place % 5).diff(dim=1)[:, 0]
        action = torch.where(down != 0, (down > 0).long(), 2 + (right > 0).long())
        assert obs["action_mask"].gather(1, action[:, None])[~done].all()
        out = env.step(action)
        paid += torch.where(done, 0.0, out.reward)
        steps += ~done
        done |= out.terminated
        obs = out.obs
    assert done.all()
    assert paid.eq(1).all()
    assert steps.eq(away[:, 0]).all()


def test_walls_hold_and_are_masked() -> None:
    env = Grid(256, size=5, max_episode_steps=4, masked=True)
    obs = env.restart(1)
    for _ in range(3):
        walker = obs["picture"][:, 0].flatten(1).int().argmax(1)
        at_top = walker < 5
        assert (obs["action_mask"][:, 0] == 0).eq(at_top).all()
        out = env.step(torch.zeros(256, dtype=torch.int64))
        after = out.obs["picture"][:, 0].flatten(1).int().argmax(1)
        goes = ~at_top & (out.reward == 0) & ~out.truncated
        assert (after[goes & (walker >= 5)] - walker[goes & (walker >= 5)]).le(0).any()
        obs = out.obs


@pytest.mark.parametrize("make", [CartPole, Pendulum, Grid])
def test_the_seed_decides(make) -> None:
    env = make(6)
    first, again, other = (env.restart(seed)["obs"].clone() for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_ids_take_their_arguments() -> None:
    env = make_vector_env("torch/CartPole-v1", 3, kwargs={"velocities": False})
    assert env.description.backend == "pytorch"
    assert env.spaces.observation.shape == (2,)
    assert env.description.max_steps == 500
    with pytest.raises(ConfigError, match=r"size must be in 5 \.\. 64, got 3"):
        make_vector_env("torch/Grid-v0", 3, kwargs={"size": 3})
    with pytest.raises(ConfigError, match="max_episode_steps must be at least 1"):
        make_vector_env("torch/Pendulum-v1", 3, kwargs={"max_episode_steps": 0})
    with pytest.raises(ConfigError, match="torch/Grid-v0"):
        make_vector_env("torch/Grid-v1", 3)
