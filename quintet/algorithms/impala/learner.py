"""IMPALA: actors with slightly old weights, one learner, V-trace between the two.

Espeholt et al., arXiv 1802.01561.  Read `ImpalaLearner._loss` first, then `ImpalaLearner._terms`.
A batch is `batch_unrolls` columns of any streams and of any age; what the runtime does with queues
and versions of weights shows here only in ``rho``, the new policy's ratio to the one that acted.
Where several learners share the batch, each is one of `Ranks`: it takes the gradient of its share
of the whole batch's loss, and all make one step with the sum.

Departures from the paper, each with the switch that turns it off:

 1. Truncated episodes bootstrap from the value of their true final observation
    (``truncation_as_termination``).
 2. Traces may decay, as in the paper's remark 2 (``lambda_=1``, the default, is the paper's).
 3. Losses are divided by the number of unrolls in the batch (``reduction=sum``).
 4. RMSProp is PyTorch's, with epsilon outside of the root (``rmsprop_epsilon_inside_sqrt``).
 5. Observations may be normalised by running statistics (``normalize_observations=false`` and
    ``normalize_pictures=false``, the defaults, are the paper's).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.impala.config import ImpalaConfig
from quintet.algorithms.parts import diagnostics
from quintet.algorithms.parts.acting import SamplingActor, make_family, masked
from quintet.algorithms.parts.setup import PLAIN, Compute, Setup
from quintet.algorithms.parts.vtrace_diagnostics import (
    Terms,
    combined_stats,
    vtrace_metrics,
    vtrace_stats,
)
from quintet.errors import ConfigError
from quintet.models.build import ActorCritic
from quintet.models.compiled import one_graph
from quintet.models.config import ModelConfig, picture_leaves
from quintet.models.flat import flatten_in_place, strip_prefix, views_of
from quintet.models.normalize import ObservationNormalizer, observation_normalizer
from quintet.ops import adam, policy_losses, reduce, rmsprop, schedules, value_losses
from quintet.ops.vtrace import vtrace
from quintet.protocols import DataPlan
from quintet.types import LearnerState, Obs, Publication, Rollout, Spaces, State

REDUCTIONS = {
    "sum_time_mean_batch": reduce.sum_time_mean_batch,
    "sum": reduce.sum_valid,
    "mean": reduce.mean_valid,
}


def _normalizer(config: ImpalaConfig, model: ModelConfig, spaces: Spaces) -> ObservationNormalizer:
    return observation_normalizer(
        spaces.observation,
        on=config.normalize_observations,
        pictures=picture_leaves(model, spaces) if config.normalize_pictures else {},
        clip=config.observation_clip,
        epsilon=config.normalizer_variance_epsilon,
    )


def make_actor(
    config: ImpalaConfig, model: ModelConfig, spaces: Spaces, compute: Compute = PLAIN
) -> SamplingActor:
    """What collects IMPALA's batches: of each action only its log-probability is recorded, as the
    learner evaluates values anew.
    """
    return SamplingActor(model, spaces, _normalizer(config, model, spaces), ("logp_mu",), compute)


@dataclass(frozen=True)
class Unrolls:
    """What the loss reads of a batch: tensors only, of the same shapes and strides every time.

    obs, is_first: rows 0 to T, flat in time-major order ``[(T + 1) * B, ...]``; normalised.
    state: of a recurrent network before row 0, leaves ``[B, ...]``.
    The others are ``[T, B, ...]``.
    """

    obs: Obs
    is_first: Tensor
    state: State
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    not_cut_t: Tensor
    valid: Tensor
    logp_mu: Tensor


@final
class ImpalaLearner:
    """Makes one optimizer step from every batch of unrolls."""

    def __init__(self, config: ImpalaConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup, self.ranks = config, setup, setup.ranks
        self.family = make_family(model, spaces)
        generator = torch.Generator().manual_seed(setup.seeds[0])
        network = ActorCritic(spaces, self.family, model, generator, setup.compute.precision)
        self.network = network.to(setup.device)
        self.aux_weights = _aux_weights(config, model, network.loss_names)
        self.normalizer = _normalizer(config, model, spaces).to(setup.device)
        self.normalizer.refresh()
        self.parameters: dict[str, Tensor] = dict(sorted(self.network.named_parameters()))
        self.theta = flatten_in_place([p for _, p in sorted(self.network.named_parameters())])
        self.shapes = {name: p.shape for name, p in self.parameters.items()}
        self.moments = _moments(config, self.theta)
        if setup.compute.compile and config.check_numerics:
            raise ConfigError("check_numerics requires --runtime.compile off, it is on")
        self.optimizer_step = self._optimizer_step()
        self.updates = self.version = 0

    def _optimizer_step(self) -> Callable[[Unrolls, Tensor], Tensor]:
        """What makes a step and returns what `_metrics` reads.

        Compiled it is one graph, or two where learners exchange their gradients in between.
        """
        gradient, descend = self._gradient, self._descend
        compiles = self.setup.compute.compile
        if self.ranks.size == 1:
            return one_graph(self._compiled_step) if compiles else self._step
        if compiles:
            gradient = one_graph(self._compiled_gradient)
            descend = one_graph(self._compiled_descend)

        def step(unrolls: Unrolls, knobs: Tensor) -> Tensor:
            grad, stats = gradient(unrolls, knobs)
            norm = descend(self.ranks.sum(grad), knobs)
            return torch.cat((norm.unsqueeze(0), self.ranks.gather(stats).flatten()))

        return step

    @property
    def plan(self) -> DataPlan:
        steps = self.config.unroll_steps
        return DataPlan(steps, self.config.batch_unrolls, state_every=steps)

    def publication(self) -> Publication:
        tensors = {f"network/{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"normalizer/{k}": v for k, v in self.normalizer.state_dict().items()}
        return Publication(self.version, tensors)

    def update(self, batch: Rollout, env_steps: int) -> dict[str, float]:
        """One optimizer step on the batch, then the normaliser takes it in."""
        config = self.config
        left = schedules.linear(env_steps, self.setup.total_env_steps)
        rate = config.learning_rate * (left if config.lr_schedule == "linear" else 1.0)
        entropy_coef = config.entropy_coef * (left if config.entropy_schedule == "linear" else 1.0)
        self.updates += 1
        shard = self.ranks.shard(batch)
        unrolls = self._unrolls(shard)
        knobs = self._knobs(rate, entropy_coef, self._shares(shard, batch))
        metrics = self._metrics(self.optimizer_step(unrolls, knobs))
        metrics["optim/learning_rate"] = rate
        metrics |= self._observe(batch, shard, unrolls)
        self.version += 1
        return metrics | diagnostics.policy_metrics(self.network.policy_head)

    def _metrics(self, stats: Tensor) -> dict[str, float]:
        """Of the whole batch, from what an optimizer step returns."""
        names, size = tuple(self.aux_weights), self.ranks.size
        if size > 1:
            stats = stats.cpu()
            stats = torch.cat((stats[:1], combined_stats(stats[1:].view(size, -1), len(names))))
        return vtrace_metrics(stats, names, self.config.max_grad_norm, self.updates)

    def _observe(self, batch: Rollout, shard: Rollout, unrolls: Unrolls) -> dict[str, float]:
        """The normaliser takes in the whole batch, on the first rank alone, for all of them; what
        was clipped is counted by each rank in its share.
        """
        normalizer, device = self.normalizer, self.setup.device
        if not normalizer.names:
            return {}
        counts = diagnostics.observation_clip_counts(normalizer, unrolls.obs, shard.valid)
        metrics = diagnostics.observation_clip_metrics(self.ranks.sum(counts))
        if self.config.update_normalizers:
            if self.ranks.index == 0:
                raw = {name: batch.obs[name][:-1].to(device) for name in normalizer.names}
                normalizer.merge(raw, batch.valid.to(device))
            self.ranks.broadcast(normalizer.buffers())
            normalizer.refresh()
        return metrics | diagnostics.observation_metrics(normalizer)

    def _unrolls(self, batch: Rollout) -> Unrolls:
        """The batch as the loss reads it.  Columns may be parts of larger tensors, and a graph is
        compiled for one layout: what is not contiguous is copied.
        """
        obs = self.normalizer({name: x.flatten(0, 1) for name, x in batch.obs.items()})
        return Unrolls(
            obs={name: x.contiguous() for name, x in obs.items()},
            is_first=batch.is_first.flatten().contiguous(),
            state={name: x[0].contiguous() for name, x in batch.state.items()},
            action=batch.action.contiguous(),
            reward=batch.reward.contiguous(),
            terminated=batch.terminated.contiguous(),
            truncated=batch.truncated.contiguous(),
            not_cut_t=batch.not_cut_t.contiguous(),
            valid=batch.valid.contiguous(),
            logp_mu=batch.record["logp_mu"].contiguous(),
        )

    def _shares(self, shard: Rollout, batch: Rollout) -> tuple[float, ...]:
        """By what this rank's terms of the loss are multiplied to be its share of the whole
        batch's: those reduced over rows, and auxiliary scalars; none where it has the batch alone.
        """
        size = self.ranks.size
        if size == 1:
            return ()
        of_rows = {"sum": 1.0, "sum_time_mean_batch": 1 / size}.get(self.config.reduction)
        if of_rows is None:
            of_rows = int(shard.valid.sum()) / max(int(batch.valid.sum()), 1)
        return of_rows, 1 / size

    def _knobs(self, rate: float, entropy_coef: float, shares: tuple[float, ...]) -> Tensor:
        """Numbers of an optimizer step that change from step to step, as one tensor."""
        correction = root_correction = 1.0
        if self.config.optimizer == "adam":
            correction, root_correction = adam.corrections(self.updates)
        knobs = [rate / correction, root_correction, entropy_coef, *shares]
        return torch.tensor(knobs, device=self.theta.device)

    def _step(self, unrolls: Unrolls, knobs: Tensor) -> Tensor:
        """One optimizer step; returns what `vtrace_metrics` reads."""
        grad, stats = self._gradient(unrolls, knobs)
        return torch.cat((self._descend(grad, knobs).unsqueeze(0), stats))

    def _compiled_step(self, unrolls: Unrolls, knobs: Tensor) -> Tensor:
        """`_step` in the form that compiles to one graph, whose only weights are theta."""
        grad, stats = self._compiled_gradient(unrolls, knobs)
        return torch.cat((self._descend(grad, knobs).unsqueeze(0), stats))

    def _gradient(self, unrolls: Unrolls, knobs: Tensor) -> tuple[Tensor, Tensor]:
        """The loss's gradient ``[P]`` and `vtrace_stats`."""
        loss, stats = self._loss(self.parameters, unrolls, knobs)
        # A coefficient of 0 takes its term, and so whole layers, out of the graph.
        gradients = torch.autograd.grad(loss, [*self.parameters.values()], materialize_grads=True)
        return _flat(gradients), stats

    def _compiled_gradient(self, unrolls: Unrolls, knobs: Tensor) -> tuple[Tensor, Tensor]:
        """`_gradient` in the form that compiles."""
        parameters = views_of(self.theta, self.shapes)
        gradients, stats = torch.func.grad(self._loss, has_aux=True)(parameters, unrolls, knobs)
        return _flat(gradients.values()), stats

    def _compiled_descend(self, grad: Tensor, knobs: Tensor) -> Tensor:
        """`_descend` in the form that compiles by itself, without a wrapper."""
        return self._descend(grad, knobs)

    @torch.no_grad()
    def _descend(self, grad: Tensor, knobs: Tensor) -> Tensor:
        """Takes a step against the whole batch's gradient ``[P]``; returns its norm."""
        config, moments = self.config, self.moments
        grad, norm = adam.clip_norm(grad, config.max_grad_norm)
        if config.optimizer == "adam":
            adam.adam_(
                self.theta,
                grad,
                moments["exp_avg"],
                moments["exp_avg_sq"],
                step_size=knobs[0],
                root_correction=knobs[1],
                epsilon=config.adam_epsilon,
            )
        else:
            rmsprop.rmsprop_(
                self.theta,
                grad,
                moments["mean_sq"],
                moments.get("velocity"),
                rate=knobs[0],
                decay=config.rmsprop_decay,
                momentum=config.rmsprop_momentum,
                epsilon=config.rmsprop_epsilon,
                epsilon_inside_sqrt=config.rmsprop_epsilon_inside_sqrt,
            )
        return norm

    def _loss(
        self, parameters: dict[str, Tensor], unrolls: Unrolls, knobs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and what `vtrace_metrics` reads but for the norm.

        ``total = policy + value_coef * value - entropy_coef * H + sum of weight * aux``, each
        reduced over the valid rows; an auxiliary loss that is a scalar stands as it is.  Of several
        ranks, each gives its share of that: their sum is the whole batch's loss.
        """
        config, entropy_coef = self.config, knobs[2]
        terms = self._terms(parameters, unrolls)

        def reduced(x: Tensor) -> Tensor:
            whole = REDUCTIONS[config.reduction](x, unrolls.valid) if x.ndim else x
            return whole if self.ranks.size == 1 else whole * knobs[3 if x.ndim else 4]

        policy_loss = reduced(terms.policy)
        zero = torch.zeros_like(policy_loss)
        value_loss = config.value_coef * reduced(terms.error) if config.value_coef > 0 else zero
        entropy_loss = -entropy_coef * reduced(terms.entropy) if config.entropy_coef > 0 else zero
        aux_losses = [
            weight * reduced(terms.aux[name]) if weight > 0 else zero
            for name, weight in self.aux_weights.items()
        ]
        losses = torch.stack((policy_loss, value_loss, entropy_loss, *aux_losses))
        if config.check_numerics:
            found = {"logp_pi": terms.logp_pi, "value": terms.v_tm1, "target": terms.target_tm1}
            diagnostics.require_finite(found | {"losses": losses}, self.updates)
        stats = vtrace_stats(losses, terms, unrolls.valid, config.rho_bar, config.c_bar)
        return losses.sum(), stats

    def _terms(self, parameters: dict[str, Tensor], unrolls: Unrolls) -> Terms:
        """One forward over rows 0 to T, V-trace, and the terms of the loss.

        Rows that are not valid are given an action, a reward and a ratio that any arithmetic bears,
        since a NaN behind a mask still makes a NaN of its gradient.
        """
        config, family, valid = self.config, self.family, unrolls.valid
        steps, streams = valid.shape
        rows = steps * streams
        aux: dict[str, Tensor] = {}
        params, value, _ = functional_call(
            self.network, parameters, (unrolls.obs, unrolls.state, unrolls.is_first, aux)
        )
        params = masked(family, params, unrolls.obs)[:rows].view(steps, streams, -1)
        v = value.view(steps + 1, streams)
        done = valid.view(steps, streams, *[1] * (unrolls.action.ndim - 2))
        logp_pi = family.log_prob(params, torch.where(done, unrolls.action, 0))
        log_rho = torch.where(valid, logp_pi.detach() - unrolls.logp_mu, 0.0)
        rho = log_rho.exp()

        reward = torch.where(valid, unrolls.reward, 0.0)
        terminal = unrolls.terminated
        if config.truncation_as_termination:
            terminal = terminal | unrolls.truncated
        target, advantage = vtrace(
            v[:-1].detach(),
            v[1:].detach(),
            reward,
            config.gamma * (~terminal).to(reward.dtype),
            unrolls.not_cut_t,
            rho,
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            pg_rho_bar=config.pg_rho_bar,
            lambda_=config.lambda_,
        )
        return Terms(
            policy=policy_losses.log_prob(logp_pi, advantage),
            error=value_losses.squared(v[:-1], target),
            # What is only reported stays out of the gradient.
            entropy=family.entropy(params if config.entropy_coef > 0 else params.detach()),
            aux={k: x[:rows].view(steps, streams) if x.ndim else x for k, x in aux.items()},
            logp_pi=logp_pi,
            log_rho=log_rho,
            rho=rho,
            v_tm1=v[:-1],
            target_tm1=target,
            pg_advantage_tm1=advantage,
            reward=reward,
        )

    def histograms(self) -> dict[str, Tensor]:
        return {}

    def save(self) -> LearnerState:
        tensors = dict(self.publication().tensors)
        tensors |= {f"optimizer/{name}": x for name, x in self.moments.items()}
        return LearnerState(tensors, {"updates": self.updates, "version": self.version})

    def warm_start(self, publication: Publication) -> None:
        self._load_publication(publication.tensors)

    def _load_publication(self, tensors: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(strip_prefix(tensors, "network"))
        self.normalizer.load_state_dict(strip_prefix(tensors, "normalizer"))
        self.normalizer.refresh()

    def load(self, state: LearnerState) -> None:
        self._load_publication(state.tensors)
        for name, moment in self.moments.items():
            moment.copy_(state.tensors[f"optimizer/{name}"])
        scalars: Any = state.scalars
        self.updates, self.version = scalars["updates"], scalars["version"]


def _aux_weights(
    config: ImpalaConfig, model: ModelConfig, names: tuple[str, ...]
) -> dict[str, float]:
    """The weight of every auxiliary loss that the encoder gives.

    Raises:
        ConfigError: one is weighted that it does not give.
    """
    unknown = sorted(set(config.aux_loss_weights) - set(names))
    if unknown:
        raise ConfigError(
            f"aux_loss_weights requires names of losses that model.encoder={model.encoder} gives "
            f"({', '.join(names) or 'it gives none'}), got {', '.join(unknown)}; correct the name"
        )
    return {name: config.aux_loss_weights.get(name, 1.0) for name in names}


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in tensors])


def _moments(config: ImpalaConfig, theta: Tensor) -> dict[str, Tensor]:
    """The optimizer's memory at the start, by name."""
    if config.optimizer == "adam":
        return {"exp_avg": torch.zeros_like(theta), "exp_avg_sq": torch.zeros_like(theta)}
    inside = config.rmsprop_epsilon_inside_sqrt
    moments = {"mean_sq": rmsprop.initial_mean_sq(theta, epsilon_inside_sqrt=inside)}
    if config.rmsprop_momentum > 0:
        moments["velocity"] = torch.zeros_like(theta)
    return moments
