"""The actor of DDPG: a deterministic policy with noise on its actions, its weights, or both."""

from typing import final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.ddpg.config import DDPGConfig
from quintet.algorithms.ddpg.exploration import ou_step, perturbation
from quintet.algorithms.ddpg.network import Policy, perturbable
from quintet.algorithms.parts.acting import WARMING_UP, make_normalizer
from quintet.algorithms.parts.setup import PLAIN, Compute
from quintet.models.compiled import Graph
from quintet.models.config import ModelConfig
from quintet.models.cuda_graphs import GraphedMethod
from quintet.models.encoders import Mlp
from quintet.models.flat import ModuleTensors, flatten_in_place, views_of
from quintet.models.own_weights import linear, sequential
from quintet.models.precision import autocast
from quintet.system.transfer import to_device, to_host
from quintet.types import ActOutput, Obs, Publication, Spaces, State, TensorSpec

PARAM_SCALE = "param_noise_std"
"""Name in a publication: the standard deviation of parameter noise."""

_SEEDS = 2**53  # float64 holds these exactly


@final
class DDPGActor:
    """Explores independently in every stream.

    Its state is private: the Ornstein-Uhlenbeck process ``[B, A]``, and the perturbed weights
    ``[B, P]`` that a stream acts with from one start of an episode to the next.
    """

    def __init__(self, config: DDPGConfig, model: ModelConfig, spaces: Spaces, compute: Compute):
        self.config, self.sizes = config, config.noise
        self.network = Policy(spaces, model, None, compute.precision).to(compute.act_on)
        self.box = self.network.box
        self.normalizer = make_normalizer(config, model, spaces).to(compute.act_on)
        named = dict(sorted(self.network.named_parameters()))
        self.shapes = {name: p.shape for name, p in named.items()}
        moved = perturbable(self.network)
        self.moved = torch.cat(
            [torch.full((p.numel(),), float(moved[n]), device=p.device) for n, p in named.items()]
        )
        self.theta = flatten_in_place([*named.values()])
        self.tensors = ModuleTensors({"network": self.network, "normalizer": self.normalizer})
        self.scale = torch.zeros((), device=self.theta.device)
        self.warming_up = False
        # A compiled graph's inputs are converted one by one, so its weights are one vector.
        self._shared = Graph(self._act_by_theta) if compute.compile else self._act_alike
        self._act_perturbed = Graph(self._act_each) if compute.compile else self._act_each
        self._chosen = GraphedMethod(self._choose) if compute.graph else self._choose

    @property
    def record_specs(self) -> dict[str, TensorSpec]:
        return {}

    @property
    def action_spec(self) -> TensorSpec:
        return TensorSpec((self.box.size,), torch.float32)

    @property
    def state_specs(self) -> dict[str, TensorSpec]:
        return {}

    def load(self, publication: Publication) -> None:
        tensors = publication.tensors
        own = {
            name.replace("network/actor.", "network/", 1): x
            for name, x in tensors.items()
            if name.startswith(("network/actor.", "normalizer/"))
        }
        self.tensors.load(own)
        self.scale.copy_(tensors[PARAM_SCALE])
        self.warming_up = bool(tensors[WARMING_UP])

    def initial_state(self, num_streams: int) -> State:
        device, state = self.theta.device, {}
        if self.sizes.ou:
            state["ou"] = torch.zeros(num_streams, self.box.size, device=device)
        if self.sizes.param:  # whoever acts before its first start of an episode is not perturbed
            state["weights"] = self.theta.detach().expand(num_streams, -1).clone()
        return state

    def draw_noise(self, steps: int, num_streams: int, generator: torch.Generator) -> Tensor:
        """``[steps, B, 1 + 3 A]``, float64: a seed, two standard normals and one uniform number per
        dimension.
        """
        shape, where = (steps, num_streams, self.box.size), generator.device
        seeds = torch.randint(_SEEDS, (*shape[:2], 1), generator=generator, device=where)
        normal = torch.randn(*shape[:2], 2 * shape[2], generator=generator, device=where)
        uniform = torch.rand(shape, generator=generator, device=where)
        return torch.cat((seeds.double(), normal.double(), uniform.double()), -1)

    @torch.inference_mode()
    def act(self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None) -> ActOutput:
        private = dict(state)
        if noise is not None and self.sizes.param:
            private["weights"] = self._perturbed(private["weights"], is_first, noise[:, 0])
        action, env_action, ou = self._chosen(obs, private, is_first, noise, self.warming_up)
        private |= ou
        return ActOutput(action, env_action, {}, private)

    def _choose(
        self, obs: Obs, state: State, is_first: Tensor, noise: Tensor | None, warming_up: bool
    ) -> tuple[Tensor, Tensor, State]:
        """Actions in the learner's and in the environment's form, and the next private state."""
        if noise is None:
            action = self._shared(obs)
            return action, self.box.to_env(action), {}
        normal, ou, uniform = torch.split(noise[:, 1:].float(), self.box.size, -1)
        action = (
            self._act_perturbed(obs, state["weights"]) if self.sizes.param else self._shared(obs)
        )
        after: State = {}
        if self.sizes.ou:
            x = torch.where(is_first.unsqueeze(-1), 0.0, state["ou"])
            x = ou_step(x, ou, self.sizes.ou, self.config.ou_theta, self.config.ou_dt)
            after["ou"] = x
            action = action + x
        if self.sizes.normal:
            action = action + self.sizes.normal * normal
        if warming_up:
            action = 2.0 * uniform - 1.0
        # Replay gets the action that was executed, see `DiagGaussian.to_env`.
        action = torch.nan_to_num(action, nan=0.0).clamp(-1.0, 1.0)
        return action, self.box.to_env(action), after

    def _perturbed(self, weights: Tensor, is_first: Tensor, seeds: Tensor) -> Tensor:
        """The weights of each stream; streams that begin an episode get new ones."""
        if is_first.is_cuda:  # one wait
            is_first, seeds = to_host({0: is_first, 1: seeds}).values()
        rows = is_first.nonzero().flatten().tolist()
        if not rows:
            return weights
        weights, at_start = weights.clone(), seeds.long().tolist()
        spread = self.scale * self.moved
        for row in rows:
            z = to_device(perturbation(self.theta.numel(), at_start[row]), weights.device)
            torch.addcmul(self.theta, spread, z, out=weights[row])
        return weights

    def _act_alike(self, obs: Obs) -> Tensor:
        """Actions ``[B, A]`` by the published weights, the same for all streams."""
        action: Tensor = self.network(self.normalizer(obs))
        return action

    def _act_by_theta(self, obs: Obs) -> Tensor:
        """Actions by the published weights, as a function of the weights."""
        weights = views_of(self.theta, self.shapes)
        action: Tensor = functional_call(self.network, weights, (self.normalizer(obs),))
        return action

    def _act_each(self, obs: Obs, weights: Tensor) -> Tensor:
        """Actions ``[B, A]``, each by its own row of weights ``[B, P]``."""
        seen, encoder = self.normalizer(obs), self.network.encoder
        if isinstance(encoder, Mlp):
            return self._act_at_once(encoder, seen, self._own_views(weights))
        rows = []
        for row, theta in enumerate(weights):
            inputs = {name: x[row : row + 1] for name, x in seen.items()}
            rows.append(functional_call(self.network, views_of(theta, self.shapes), (inputs,)))
        return torch.cat(rows)

    def _own_views(self, weights: Tensor) -> dict[str, Tensor]:
        """Views ``[B, ...]`` of every parameter in the weights ``[B, P]``."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), torch.split(weights, sizes, -1), strict=True)
        return {name: x.view(-1, *shape) for (name, shape), x in parts}

    def _act_at_once(self, encoder: Mlp, seen: Obs, own: dict[str, Tensor]) -> Tensor:
        """The network's outputs, each row by its own weights, in one batched product per layer."""
        start = "encoder.layers."
        layers = {name.removeprefix(start): x for name, x in own.items() if name.startswith(start)}
        with autocast(self.network.trunk.precision, self.theta.device):
            features = sequential(encoder.layers, layers, encoder.flat(seen))
        return linear(features.float(), own["head.weight"], own["head.bias"]).tanh()


def make_actor(
    config: DDPGConfig, model: ModelConfig, spaces: Spaces, compute: Compute = PLAIN
) -> DDPGActor:
    """The actor that collects DDPG's transitions."""
    return DDPGActor(config, model, spaces, compute)
