"""The interface of vector environments whose tensors stay on their device.

A `TensorVectorEnv` steps all its streams together and gives PyTorch tensors.  Training then
collects whole unrolls on that device, see `quintet.runtime.device_rows`; everything else
(evaluation, videos, the doctor) uses the environment as any other, see
`quintet.envs.tensors_as_arrays`.
"""

from __future__ import annotations  # annotations need no PyTorch at run time

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from gymnasium.vector import AutoresetMode
    from jaxtyping import Bool, Float, Shaped
    from torch import Tensor

    from quintet.envs.vector import EnvDescription
    from quintet.types import Obs, Spaces


class TensorStep(NamedTuple):
    """The results of a step, all on the environment's device.

    obs: leaves ``[B, ...]`` by path; a plain space has the single leaf ``"obs"``.
    reward: in raw reward units.
    terminated, truncated: where both are set, termination counts.
    final_obs: with SAME_STEP, the last observations of the streams that ended, as leaves
        ``[B, ...]`` in which rows of other streams are not read; None: there are none, and the
        observation before the last step takes their place.
    success: whether the episode that ended was won, read only where ``env.success`` asks for info.
    info: other numbers of the step ``[B]`` by key, of the last one of episodes that ended; read
        only where ``env.metrics`` asks.
    """

    obs: Obs
    reward: Float[Tensor, " B"]
    terminated: Bool[Tensor, " B"]
    truncated: Bool[Tensor, " B"]
    final_obs: Obs | None = None
    success: Shaped[Tensor, " B"] | None = None
    info: Mapping[str, Any] | None = None


@runtime_checkable
class TensorVectorEnv(Protocol):
    """B environments that step together, with PyTorch tensors on one device.

    Its next step may overwrite tensors that it gave, and it must not write into tensors that it is
    given.  No method should wait for the device.
    """

    @property
    def num_streams(self) -> int: ...

    @property
    def spaces(self) -> Spaces:
        """Spaces of one stream in the learner's form, as from `quintet.spaces.stored_spaces`."""
        ...

    @property
    def description(self) -> EnvDescription: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def autoreset(self) -> AutoresetMode:
        """NEXT_STEP: the step after an ending ignores the action of the stream, and resets it;
        SAME_STEP: the stream is reset within the step that ends its episode.
        """
        ...

    @property
    def restarts(self) -> bool:
        """Whether `restart` begins new episodes, which depend on the seed and on actions alone;
        else streams continue, and a run can't be repeated.
        """
        ...

    @property
    def generators(self) -> tuple[torch.Generator, ...] | None:
        """Generators from which a step draws, if it does nothing but launch kernels that change
        its memory in place: such steps become a part of a CUDA graph.  None: a step does more.
        """
        ...

    def restart(self, seed: int) -> Obs:
        """Begins new episodes of all streams and returns their first observations."""
        ...

    def step(self, action: Tensor) -> TensorStep:
        """Steps all streams; `action` is packed, ``[B, ...]``, see `quintet.spaces.action_spec`."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class GymTensors(Protocol):
    """A vector environment with Gymnasium's methods whose arrays are on a device, as those of
    ManiSkill, Isaac Lab and mjlab."""

    num_envs: int
    device: Any
    single_action_space: Any

    def reset(self) -> Any: ...

    def step(self, action: Any) -> Any: ...


@runtime_checkable
class RslTensors(Protocol):
    """A ``VecEnv`` of rsl_rl, as those that Isaac Lab, mjlab and MuJoCo Playground wrap."""

    num_envs: int
    num_actions: int
    device: Any

    def get_observations(self) -> Any: ...

    def step(self, actions: Any) -> Any: ...


@runtime_checkable
class Privileged(Protocol):
    """A ``VecEnv`` of rsl_rl in legged_gym's form, with a reset and observations that only the
    critic sees, or None."""

    def reset(self) -> Any: ...

    def get_privileged_observations(self) -> Any: ...


def gives_tensors(env: object) -> bool:
    """Whether `env` is a vector environment of tensors, of an interface that is known."""
    if isinstance(env, type):  # a class has the methods, too
        return False
    if isinstance(env, TensorVectorEnv | RslTensors):
        return True
    return isinstance(bare(env), GymTensors)


def size_of(env: Any) -> int:
    """Number of streams of an environment that `gives_tensors`."""
    return int(env.num_streams if isinstance(env, TensorVectorEnv) else bare(env).num_envs)


def bare(env: Any) -> Any:
    """The environment below its wrappers."""
    try:
        return env.unwrapped
    except AttributeError:
        return env
