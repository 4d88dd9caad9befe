"""Vector environments of tensors as a `VectorEnv`, in next-step layout.

Rows may be arrays or tensors of the environments' device.  Training gives it tensors where it can,
so that no step waits; everything else (evaluations, videos, the doctor, learners that keep a
replay) steps NumPy arrays, with a wait in every step.

SAME_STEP environments have begun the next episode within the step that ended the last one.  The row
after an ending then shows the final observation, its step is discarded while the other streams take
theirs, and the episode begins with its second observation.  Without a final observation, the one
before the last step is shown.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, final

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from quintet.envs.other_apis import Unfit, fault_of
from quintet.envs.owners import claim, release
from quintet.envs.success import key_of
from quintet.envs.tensor import TensorStep, TensorVectorEnv
from quintet.envs.vector import (
    Array,
    CannotRender,
    EnvDescription,
    ObsArrays,
    Rendered,
    StepRow,
    VectorEnv,
    check_seeds,
)
from quintet.envs.wrappers import innermost
from quintet.errors import ConfigError
from quintet.spaces import action_spec, in_float64, leaf_spec, observation_leaves
from quintet.system import forks
from quintet.system.signals import STOPS
from quintet.system.user_code import raised
from quintet.types import Obs

if TYPE_CHECKING:
    from quintet.envs.info_metrics import InfoMetrics, Term

T = TypeVar("T")


@final
class HostedEnv:
    """B streams of a `TensorVectorEnv`, whose rows are arrays or tensors of its device.

    Its own memory is written in place, so a step with tensors of an environment that allows it can
    be captured as a CUDA graph.

    env: the environments themselves, for code that steps tensors.
    infos: joins the episodes' own numbers.
    """

    def __init__(
        self,
        env: TensorVectorEnv,
        description: EnvDescription | None = None,
        *,
        closes: bool = True,
        made: Any = None,
        terms: Sequence["Term"] = (),
    ) -> None:
        """description: its description in reports; None: its own.
        closes: whether `close` closes `env`; False: it belongs to the caller.
        made: what a maker gave, which others may not step; raises ConfigError if they do.
        terms: of ``env.metrics``.
        """
        self.env, self._closes, self._made = env, closes, made
        self.num_streams, self.spaces = env.num_streams, env.spaces
        self.description = env.description if description is None else description
        self._key = key_of(env.description.success)
        self.infos: "InfoMetrics | None" = None
        if terms:
            from quintet.envs.info_metrics import InfoMetrics

            about = (env.num_streams, self._who, None, torch)
            self.infos = InfoMetrics(terms, *about, device=env.device)
        # Arrays of float32 round what float64 leaves give.
        leaves = observation_leaves(in_float64(env.spaces).observation)
        self._specs = {name: leaf_spec(leaf) for name, leaf in leaves.items()}
        count, device = env.num_streams, env.device
        self._obs: Obs = {
            name: torch.zeros((count, *spec.shape), dtype=spec.dtype, device=device)
            for name, spec in self._specs.items()
        }
        self._resets = torch.zeros(count, dtype=torch.bool, device=device)
        self._never = torch.zeros_like(self._resets)
        self._checked = False
        self._pending: Any = None
        self._row: dict[str, Tensor] | None = None
        self._dtype = action_spec(env.spaces.action).dtype
        if made is not None:
            claim(made, self, self.description.id)

    @torch.no_grad()
    def restart(self, seeds: Sequence[int], out: ObsArrays) -> None:
        """Restarts all streams by the first seed."""
        seed = check_seeds(seeds, self.num_streams)[0]
        obs = self._call("restart", lambda: self.env.restart(seed))
        self._check_obs(obs)
        self._resets.zero_()
        if self.infos is not None:
            self.infos.clear()
        self._checked = False
        for name, x in self._obs.items():
            x.copy_(obs[name])
            _write(out[name], x)
        self._pending = obs

    @torch.no_grad()
    def send(self, action: Array | Tensor) -> None:
        """Steps all streams; streams that ended in the last step are reset in this one."""
        # A copy, which the environment's own code may change.
        actions = action.clone() if isinstance(action, Tensor) else torch.from_numpy(action.copy())
        packed = actions.to(self._dtype).to(self.env.device)
        out = self._call("step", lambda: self.env.step(packed))
        if not self._checked:  # the first tells what the others are like
            self._check(out)
            self._checked = True
        valid = ~self._resets
        terminated = out.terminated.bool() & valid
        truncated = out.truncated.bool() & valid & ~terminated
        ended = terminated | truncated
        raw = torch.where(valid, out.reward.float(), 0.0)
        same_step = self.env.autoreset == AutoresetMode.SAME_STEP
        for name, x in self._obs.items():
            new = out.obs[name].to(x.dtype)
            if same_step:
                # Without a final observation, the one that is still there.
                last = x if out.final_obs is None else out.final_obs[name].to(x.dtype)
                new = torch.where(ended.view(-1, *[1] * (new.ndim - 1)), last, new)
            x.copy_(new)
        self._resets.copy_(ended)
        # Another library may reuse the memory of its arrays once they are gone, while the copies
        # still wait on the GPU; it waits for them with the next action.
        self._pending = out
        flags = {"terminated": terminated, "truncated": truncated, "valid": valid}
        success = self._success(out, ended)
        self._row = {"reward": raw, "raw_reward": raw, "success": success, **flags}
        if self.infos is not None:
            self._row["metrics"] = self.infos.tensors(out.info or {}, valid, ended)

    def recv(self, out: StepRow) -> None:
        row, self._row = self._row, None
        assert row is not None, "send before recv"
        for name, x in self._obs.items():
            _write(out.obs[name], x)
        for name, x in row.items():
            if (into := getattr(out, name)) is not None:
                _write(into, x)

    def render(self, stream: int) -> Rendered:  # noqa: ARG002
        raise CannotRender("environments of tensors draw nothing")

    def close(self) -> None:
        if self._closes:
            release(self._made, self)
            self.env.close()

    def _success(self, out: TensorStep, ended: Tensor) -> Tensor:
        """Whether episodes that end are won; raises ConfigError if the key is missing."""
        if self._key is None:
            return self._never
        if out.success is not None:
            self._check_tensor("success", out.success, ())
            return out.success.bool()
        # The host can't ask whether an episode has ended while a graph may hold the step.
        if self.env.generators is not None or bool(ended.any()):
            raise ConfigError(
                f"env.success 'info:{self._key}' must have info[{self._key!r}] at every ending, "
                f"which {self._who} lacks: name another key, give 'reward>NUMBER', or leave "
                "env.success out"
            )
        return self._never

    def _call(self, what: str, function: Callable[[], T]) -> T:
        try:
            with forks.kept_out(self.env.description.id):
                return function()
        except STOPS:
            raise
        except Unfit as error:
            raise fault_of(self._who, error) from error
        except BaseException as error:
            raise fault_of(self._who, error, raised(error, what)) from error

    @property
    def _who(self) -> str:
        about = self.env.description
        return f"{about.id} ({about.backend}, {self.env.num_streams} streams)"

    def _check(self, out: TensorStep) -> None:
        """Refuses a step whose parts have other shapes or another device."""
        self._check_obs(out.obs)
        for name in ("reward", "terminated", "truncated"):
            self._check_tensor(name, getattr(out, name), ())
        if out.final_obs is not None:
            self._check_obs(out.final_obs, "final observation")

    def _check_obs(self, obs: Any, what: str = "observation") -> None:
        if not isinstance(obs, dict) or self._specs.keys() - obs.keys():
            names = sorted(obs) if isinstance(obs, dict) else f"a {type(obs).__name__}"
            raise self._unfit(f"must give {what}s {sorted(self._specs)} by name, gave {names}")
        for name, spec in self._specs.items():
            self._check_tensor(f"{what} {name!r}", obs[name], spec.shape)
            dtype = obs[name].dtype
            if not (torch.can_cast(dtype, spec.dtype) or _is_flag(dtype, spec.dtype)):
                raise self._unfit(f"must give {what} {name!r} as {spec.dtype}, gave {dtype}")

    def _check_tensor(self, what: str, x: Any, shape: tuple[int, ...]) -> None:
        expected = (self.env.num_streams, *shape)
        if not isinstance(x, Tensor):
            raise self._unfit(f"must give {what} as a torch.Tensor, gave a {type(x).__name__}")
        if tuple(x.shape) != expected:
            raise self._unfit(f"must give {what} of shape {expected}, gave {tuple(x.shape)}")
        if not same_device(x.device, self.env.device):
            raise self._unfit(f"must give {what} on {self.env.device}, gave it on {x.device}")

    def _unfit(self, what: str) -> Exception:
        return fault_of(self._who, Unfit(what))


def _is_flag(dtype: torch.dtype, declared: torch.dtype) -> bool:
    """Whether integers stand for truth values."""
    return declared == torch.bool and not (dtype.is_floating_point or dtype.is_complex)


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two devices are one; ``cuda`` is the current GPU."""

    def index(device: torch.device) -> int:
        if device.index is None and device.type == "cuda":
            return torch.cuda.current_device()
        return device.index or 0

    return one.type == other.type and index(one) == index(other)


def _write(into: Any, x: Tensor) -> None:
    """Copies a tensor into an array, or into a tensor of its device."""
    if isinstance(into, Tensor):
        into.copy_(x)
    else:
        into[...] = x.numpy(force=True)


def tensors_of(env: VectorEnv) -> TensorVectorEnv | None:
    """The environments of tensors that `env` gives as arrays, below its wrappers, or None."""
    base = innermost(env)
    return base.env if isinstance(base, HostedEnv) else None
