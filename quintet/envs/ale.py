"""ALE's own vector environment: Atari games in C++ threads, natively in next-step layout.

The adapter handles these properties of ale-py 0.12:

- It clips rewards to -1 .. 1 by default, and then does not report the score.
- Frames before the first of an episode are black in its stacks; here a wrapper stacks frames.
- Its time limit counts frames from the first observation on.
- Its `episodic_life` begins a new game after a lost life. Here, as in EnvPool, the game continues:
  ale-py only reports lost lives, and the reset row is a step without action, or with FIRE.
- A reset with a seed loads the game again, about 150 ms per stream.
"""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from gymnasium import spaces

from quintet.envs import atari
from quintet.envs.backends import Backend, Group, Identity
from quintet.envs.config import EnvConfig
from quintet.envs.resolved import ResolvedEnv
from quintet.envs.vector import (
    Array,
    CannotRender,
    EnvDescription,
    ObsArrays,
    Rendered,
    StepRow,
    check_seeds,
)
from quintet.envs.wrappers import FrameStack
from quintet.spaces import action_space_of
from quintet.types import Spaces


@final
class AleVectorEnv:
    """One synchronous AtariVectorEnv, which steps from `send` to `recv`; observations are single
    frames ``[B, 84, 84]``.

    infos: reads success and the episodes' own numbers.
    """

    def __init__(self, env: ResolvedEnv, group: Group) -> None:
        """Makes the environments; all of `env.atari` but `stack_num` is done here."""
        from ale_py.vector_env import AtariVectorEnv

        config, num_streams = env.atari, group.num_streams
        assert config is not None
        self._env: Any = AtariVectorEnv(
            env.name,
            num_streams,
            num_threads=env.num_threads(num_streams),
            max_num_frames_per_episode=config.max_episode_steps * config.frame_skip,
            repeat_action_probability=config.repeat_action_probability,
            full_action_space=config.full_action_space,
            stack_num=1,
            frameskip=config.frame_skip,
            noop_max=config.noop_max,
            life_loss_info=config.episodic_life,
            reward_clipping=False,
            use_fire_reset=config.use_fire_reset,
        )
        names = [action.name for action in self._env.ale.get_action_set()]
        fire = config.use_fire_reset and "FIRE" in names
        # The action in the row after a lost life; after the end of a game it is ignored.
        self._after_life = names.index("FIRE") if fire else 0
        self.num_streams = num_streams
        env_id, self.infos = env.config.id, env.info_reader(num_streams)
        action_space = action_space_of(self._env.single_action_space, env_id)
        self.spaces = Spaces(spaces.Box(0, 255, (84, 84), np.uint8), action_space)
        rule, limit = env.config.success, config.max_episode_steps
        self.description = EnvDescription(env_id, "ale", config.frame_skip, rule, max_steps=limit)
        self._in_flight = False
        self._ended = np.zeros(num_streams, np.bool_)

    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        """Resets every game with its seed, which determines all that follows."""
        checked = check_seeds(seeds, self.num_streams)
        self._finish_flight()
        obs, _ = self._env.reset(seed=np.array(checked))
        self._ended[:] = False
        if self.infos is not None:
            self.infos.clear()
        out["obs"][:] = obs[:, 0]

    def send(self, action: Array) -> None:
        assert not self._in_flight, "recv before the next send"
        assert action.shape == (self.num_streams,), action.shape
        self._env.send(np.where(self._ended, self._after_life, action))
        self._in_flight = True

    def recv(self, out: StepRow) -> None:
        assert self._in_flight, "send before recv"
        self._in_flight = False
        obs, reward, terminated, truncated, infos = self._env.recv()
        out.obs["obs"][:] = obs[:, 0]
        np.logical_not(self._ended, out=out.valid)
        # The step after a lost life may pay, or end the game; then one more row resets.
        out.reward[:] = out.raw_reward[:] = np.where(out.valid, reward, 0)
        out.terminated[:] = terminated & out.valid
        out.truncated[:] = truncated & ~terminated & out.valid
        np.logical_or(terminated, truncated, out=self._ended)
        if self.infos is not None:
            self.infos.step(infos, out.valid, self._ended & out.valid, out)

    def render(self, stream: int) -> Rendered:  # noqa: ARG002
        raise CannotRender("ALE's vector environment can't draw")

    def close(self) -> None:
        """Closes the games after the current step."""
        self._finish_flight()
        self._env.close()

    def _finish_flight(self) -> None:
        if self._in_flight:
            self._env.recv()
            self._in_flight = False


def _identify(config: EnvConfig) -> Identity:
    game = atari.read_config(config.id, config.arguments)
    return Identity(atari.rom_of(config.id) or "", atari.FAMILY, game)


def _make(env: ResolvedEnv, group: Group) -> FrameStack:
    assert env.atari is not None
    atari.require_one_stack(env.config, env.atari.stack_num)
    return FrameStack(AleVectorEnv(env, group), env.atari.stack_num)


BACKEND = Backend(
    title="ALE",
    limits_steps=True,
    make=_make,
    ids=atari.list_roms,
    knows=lambda env_id: atari.rom_of(env_id) is not None,
    identify=_identify,
    hint=atari.hint,
    install=atari.INSTALL_LINE,
    is_installed=atari.is_installed,
    cost=lambda _: "pictures",
    packages={"ale_py": "ale-py", "cv2": "opencv-python"},
)
