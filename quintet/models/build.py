"""Puts encoder and heads together into the network that a configuration describes."""

from typing import final

import torch
from torch import Tensor, nn

from quintet.errors import ConfigError
from quintet.models.config import ModelConfig, encoded_leaves
from quintet.models.cores import Core, draw_weights
from quintet.models.custom import CustomEncoder
from quintet.models.encoders import SMALLEST, Cnn, Mlp
from quintet.models.film_grid import FilmGrid
from quintet.models.flat import strip_prefix
from quintet.models.heads import PolicyHead
from quintet.models.precision import Precision, autocast, cast_weights
from quintet.ops.distributions import Family
from quintet.spaces import observation_leaves
from quintet.types import ACTION_MASK, Obs, Spaces, State, TensorSpec


def check_observation(spaces: Spaces, family: Family) -> None:
    """Refuses what no encoder can read and masks that do not fit the actions.

    Raises:
        ConfigError: nothing to observe, an empty leaf, or a mask of another size.
    """
    leaves = observation_leaves(spaces.observation)
    mask = leaves.pop(ACTION_MASK, None)
    empty = [name for name, leaf in leaves.items() if 0 in (leaf.shape or ())]
    if not leaves or empty:
        raise ConfigError(
            "an observation with at least one number in every leaf is required, the space is "
            f"{spaces.observation}; leave out what is empty, or give a constant"
        )
    if mask is not None and family.mask_size == 0:
        raise ConfigError(
            f"an observation {ACTION_MASK!r} requires discrete actions, the action space is "
            f"{spaces.action}; leave the mask out"
        )
    if mask is not None and mask.shape != (family.mask_size,):
        raise ConfigError(
            f"{ACTION_MASK!r} of shape ({family.mask_size},) is required, one number per action; "
            f"its shape is {mask.shape}; mend the environment's observation space"
        )


def _encoder(
    spaces: Spaces,
    config: ModelConfig,
    hidden: tuple[int, ...] | None,
    generator: torch.Generator | None,
) -> Mlp | Cnn | FilmGrid | CustomEncoder:
    leaves = encoded_leaves(spaces)
    if config.custom:
        return CustomEncoder(config.encoder, config.encoder_kwargs, leaves, generator)
    assert hidden is not None
    assert config.activation is not None
    if config.encoder in SMALLEST:
        return Cnn(config.encoder, leaves, hidden, config.layer_norm)
    if config.encoder == "film_grid":
        return FilmGrid(leaves, hidden, config)
    return Mlp(leaves, hidden, config.activation, config.layer_norm)


def _core(config: ModelConfig, size_in: int) -> Core | None:
    if config.core == "none":
        return None
    return Core(config.core, size_in, config.core_size, config.core_layers)


@final
class ActorCritic(nn.Module):
    """Policy parameters and value from normalised observations; encoders compute in `precision`.

    Observations go through an encoder, then a recurrent core if there is one, then a head.  With
    `shared_torso` the value head reads the policy's features, else the value function has an
    encoder and a core of its own.

    A recurrent network reads sequences: rows ``[T * B, ...]`` in time-major order, the state before
    the first step ``[B, ...]``, and `is_first` ``[T * B]``, where the state is reset; T follows
    from the sizes, and is 1 in acting.  A feed-forward network reads any N rows, its state is {}.
    """

    def __init__(
        self,
        spaces: Spaces,
        family: Family,
        config: ModelConfig,
        generator: torch.Generator | None,
        precision: Precision = "fp32",
    ):
        """`generator` draws the weights; None leaves them undefined, for whoever loads others."""
        super().__init__()
        check_observation(spaces, family)
        self.precision = precision
        # torch's layers draw weights as they are made, from the process's own generator, which is
        # the user's.
        with torch.random.fork_rng(devices=[]):
            self.encoder = _encoder(spaces, config, config.policy_hidden, generator)
            self.core = _core(config, self.encoder.feature_size)
            self.core_skip = config.core_skip
            size = self._head_size(self.encoder, self.core)
            self.policy_head = PolicyHead(family, size, config.action_std, config.action_std_init)
            self.value_encoder = self.value_core = None
            if not config.shared_torso:
                self.value_encoder = _encoder(spaces, config, config.value_hidden, generator)
                self.value_core = _core(config, self.value_encoder.feature_size)
                size = self._head_size(self.value_encoder, self.value_core)
            self.value_head = nn.Linear(size, 1)
        if generator is not None:
            initialize(self, config.init, generator)

    def _head_size(self, encoder: Mlp | Cnn | FilmGrid | CustomEncoder, core: Core | None) -> int:
        """Features that a head reads."""
        if core is None:
            return encoder.feature_size
        return core.size + (encoder.feature_size if self.core_skip else 0)

    def forward(
        self,
        obs: Obs,
        state: State | None = None,
        is_first: Tensor | None = None,
        losses: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, State]:
        """Distribution parameters ``[N, P]``, values ``[N]``, both float32, and the state after the
        last step, from leaves ``[N, ...]``.

        Only a feed-forward network can do without `state` and `is_first`.

        losses: takes the auxiliary losses of an encoder of the user's own, those of `loss_names`,
            scalars or ``[N]``; where policy and value have an encoder each, their sums.
        """
        name = "core" if self.value_encoder is None else "policy"
        encoded = self._encode(self.encoder, obs, losses)
        features, after = self._recur(self.core, name, encoded, state, is_first)
        value_features = features
        if self.value_encoder is not None:
            encoded = self._encode(self.value_encoder, obs, losses)
            value_features, value_after = self._recur(
                self.value_core, "value", encoded, state, is_first
            )
            after |= value_after
        return self.policy_head(features), self.value_head(value_features).squeeze(-1), after

    def policy(
        self, obs: Obs, state: State | None = None, is_first: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Distribution parameters ``[N, P]`` and the state after the last step, without the value's
        work, unless a recurrent value function must go on too.
        """
        if self.value_core is not None:
            params, _, after = self(obs, state, is_first)
            return params, after
        name = "core" if self.value_encoder is None else "policy"
        encoded = self._encode(self.encoder, obs)
        features, after = self._recur(self.core, name, encoded, state, is_first)
        return self.policy_head(features), after

    def value(self, obs: Obs, state: State | None = None, is_first: Tensor | None = None) -> Tensor:
        """Values ``[N]`` alone, without the policy's work."""
        if self.value_encoder is None:
            encoded = self._encode(self.encoder, obs)
            features, _ = self._recur(self.core, "core", encoded, state, is_first)
        else:
            encoded = self._encode(self.value_encoder, obs)
            features, _ = self._recur(self.value_core, "value", encoded, state, is_first)
        value: Tensor = self.value_head(features).squeeze(-1)
        return value

    def _encode(
        self, encoder: nn.Module, obs: Obs, losses: dict[str, Tensor] | None = None
    ) -> Tensor:
        """Features in float32, computed in the network's precision; `losses` takes the auxiliary
        ones on top of those that it has.
        """
        found: dict[str, Tensor] = {}
        with autocast(self.precision, self.value_head.weight.device):
            if isinstance(encoder, CustomEncoder):
                features, found = encoder.with_losses(obs)
            else:
                features = encoder(obs)
        if losses is not None:
            for name, loss in found.items():
                losses[name] = loss.float() + losses[name] if name in losses else loss.float()
        return features.float()

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Names of the auxiliary losses, sorted; none but of an encoder of the user's own."""
        return self.encoder.loss_names if isinstance(self.encoder, CustomEncoder) else ()

    def _recur(
        self,
        core: Core | None,
        name: str,
        features: Tensor,
        state: State | None,
        is_first: Tensor | None,
    ) -> tuple[Tensor, State]:
        """Features ``[T * B, F]`` through the core, if any, and its state after the last step."""
        if core is None:
            return features, {}
        if state is None or is_first is None:
            raise AssertionError("a recurrent network requires state and is_first")
        before = strip_prefix(state, name)
        streams = before["h0"].shape[0]
        steps = features.view(-1, streams, features.shape[-1])
        y, after = core(steps, before, is_first.view(-1, streams))
        y = y.flatten(0, 1)
        if self.core_skip:
            y = torch.cat((features, y), -1)
        return y, {f"{name}/{leaf}": x for leaf, x in after.items()}

    def freeze_precision(self) -> None:
        """Readies a network that only acts: encoders of ours hold weights as they use them."""
        for encoder in (self.encoder, self.value_encoder):
            if isinstance(encoder, Mlp | Cnn | FilmGrid):
                cast_weights(encoder, self.precision)

    @property
    def state_specs(self) -> dict[str, TensorSpec]:
        """The leaves of the recurrent state, without ``[B]``: ``core/...`` with a shared torso,
        else ``policy/...`` and ``value/...``; none for a feed-forward network.
        """
        cores = {"core" if self.value_encoder is None else "policy": self.core}
        cores["value"] = self.value_core
        return {
            f"{name}/{leaf}": TensorSpec((core.size,), torch.float32)
            for name, core in cores.items()
            if core is not None
            for leaf in core.state_names
        }

    def initial_state(self, num_streams: int) -> State:
        """Zeros ``[B, ...]`` for every leaf of the state, on the network's device."""
        device = self.value_head.weight.device
        return {
            name: torch.zeros((num_streams, *spec.shape), dtype=spec.dtype, device=device)
            for name, spec in self.state_specs.items()
        }

    def kernel_groups(self) -> dict[str, list[str]]:
        """Names of weights without biases by who uses them: policy, value, shared; each in one
        group.
        """
        groups: dict[str, list[str]] = {"policy": [], "value": [], "shared": []}
        for name, parameter in sorted(self.named_parameters()):
            if parameter.ndim < 2:
                continue
            if name.startswith("value_"):
                groups["value"].append(name)
            elif name.startswith(("encoder", "core")) and self.value_encoder is None:
                groups["shared"].append(name)
            else:
                groups["policy"].append(name)
        return groups


@torch.no_grad()
def initialize(network: ActorCritic, kind: str, generator: torch.Generator) -> None:
    """Draws all weights from `generator`, in order of their names; biases are 0.

    orthogonal: gain sqrt 2, 0.01 for the policy head, 1 for the value head (Andrychowicz et al.,
    arXiv 2006.05990).  truncated_normal: variance 2 over fan-in, cut at two standard deviations,
    0.1 over fan-in for the policy head (TF-Agents).  Some weights of `FilmGrid` are set otherwise,
    see there.  Cores are drawn last, see `cores.draw_weights`; an encoder of the user's own has
    drawn its weights already.
    """
    for name, parameter in sorted(network.named_parameters()):
        module = name.split(".")[0]
        if isinstance(getattr(network, module), Core | CustomEncoder):
            continue
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim >= 2 and kind == "orthogonal":
            gain = {"policy_head": 0.01, "value_head": 1.0}.get(module, 2.0**0.5)
            nn.init.orthogonal_(parameter, gain, generator=generator)
        elif parameter.ndim >= 2:
            fan_in = parameter[0].numel()
            scale = {"policy_head": 0.1, "value_head": 1.0}.get(module, 2.0)
            # 0.8796 is the standard deviation of a unit normal cut at +-2.
            std = (scale / fan_in) ** 0.5 / 0.87962566103423978
            nn.init.trunc_normal_(parameter, 0.0, std, -2 * std, 2 * std, generator=generator)
    for encoder in (network.encoder, network.value_encoder):
        if isinstance(encoder, FilmGrid):
            encoder.draw_weights(generator)
    for core in (network.core, network.value_core):
        if core is not None:
            draw_weights(core, generator)
