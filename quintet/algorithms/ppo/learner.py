"""Proximal policy optimisation with a clipped ratio and/or an adaptive KL penalty.

Schulman et al., arXiv 1707.06347; advantages of Schulman et al., arXiv 1506.02438; the form is that
of TF-Agents' PPO agent.  Read `PPOLearner.update` first, then `PPOLearner._loss`.

Departures from the papers, each with the switch that turns it off:

 1. Truncated episodes bootstrap from the value of their true final observation
    (``truncation_as_termination``).
 2. Observations are normalised by running statistics (``normalize_observations``, and of pictures
    ``normalize_pictures``).
 3. Rewards are divided by the running return's standard deviation (``reward_normalizer=none``).
 4. Advantages are normalised over the batch (``normalize_advantage=none``).
 5. The gradient's global norm is clipped (``max_grad_norm=none``).
 6. The learning rate falls linearly to 0 (``lr_schedule=constant``).
 7. The dead band of the adaptive KL penalty is 0.3 wide, the paper's 0.5 (``kl_tolerance``).
 8. Minibatches are even: the valid rows (recurrent: the chunks that have any) are split in parts
    that differ by at most one, so none is tiny (``drop_last``: whole ones, and the rest is left).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.parts import diagnostics, minibatches
from quintet.algorithms.parts.acting import Recorded, SamplingActor, make_family, masked
from quintet.algorithms.parts.diagnostics import LOSS_METRICS, Estimates, Terms
from quintet.algorithms.parts.minibatches import Chunks, Rows
from quintet.algorithms.parts.setup import PLAIN, Compute, Setup
from quintet.algorithms.ppo.config import PPOConfig
from quintet.errors import ConfigError
from quintet.models.build import ActorCritic
from quintet.models.compiled import one_graph
from quintet.models.config import ModelConfig, picture_leaves
from quintet.models.flat import flatten_in_place, strip_prefix, views_of
from quintet.models.normalize import (
    ObservationNormalizer,
    RewardNormalizer,
    observation_normalizer,
)
from quintet.ops import adam, policy_losses, reduce, returns, schedules, value_losses
from quintet.protocols import DataPlan
from quintet.types import LearnerState, Obs, Publication, Rollout, Spaces


def _normalizer(config: PPOConfig, model: ModelConfig, spaces: Spaces) -> ObservationNormalizer:
    return observation_normalizer(
        spaces.observation,
        on=config.normalize_observations,
        pictures=picture_leaves(model, spaces) if config.normalize_pictures else {},
        clip=config.observation_clip,
        epsilon=config.normalizer_variance_epsilon,
    )


def make_actor(
    config: PPOConfig, model: ModelConfig, spaces: Spaces, compute: Compute = PLAIN
) -> SamplingActor:
    """What collects PPO's batches: of each action its log-probability, distribution and value."""
    records: tuple[Recorded, ...] = ("logp_mu", "params_mu", "value")
    return SamplingActor(model, spaces, _normalizer(config, model, spaces), records, compute)


@final
class PPOLearner:
    """Learns from batches of whole unrolls, one column per stream."""

    def __init__(self, config: PPOConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup = config, setup
        self.family = make_family(model, spaces)
        generator = torch.Generator().manual_seed(setup.seeds[0])
        network = ActorCritic(spaces, self.family, model, generator, setup.compute.precision)
        self.network = network.to(setup.device)
        if network.loss_names:
            raise ConfigError(
                "ppo requires an encoder without auxiliary losses, model.encoder="
                f"{model.encoder} gives {', '.join(network.loss_names)}; return the features "
                "alone, or train with impala"
            )
        self.normalizer = _normalizer(config, model, spaces).to(setup.device)
        self.normalizer.refresh()
        self.reward_normalizer = RewardNormalizer(
            config.reward_normalizer, config.reward_norm_clip, config.normalizer_variance_epsilon
        ).to(setup.device)
        self.parameters: dict[str, Tensor] = dict(sorted(self.network.named_parameters()))
        self.kernels = self.network.kernel_groups()
        self.theta = flatten_in_place([p for _, p in sorted(self.network.named_parameters())])
        self.shapes = {name: p.shape for name, p in self.parameters.items()}
        self.exp_avg = torch.zeros_like(self.theta)
        self.exp_avg_sq = torch.zeros_like(self.theta)
        self.gradient = torch.zeros_like(self.theta) if config.log_gradients else None
        self.optimizer_step = self._step
        if setup.compute.compile:
            if config.check_numerics:
                raise ConfigError("check_numerics requires --runtime.compile off, it is on")
            self.optimizer_step = one_graph(self._compiled_step)
        self.shuffle = torch.Generator().manual_seed(setup.seeds[1])
        self.chunk_steps = 1 if model.core == "none" else config.bptt_steps
        self.updates = self.version = 0
        self.beta = config.kl_beta_init
        self.learning_rate = config.learning_rate
        self.clip_epsilon = config.clip_epsilon
        self.distributions: dict[str, Tensor] = {}

    @property
    def plan(self) -> DataPlan:
        by_return = self.config.reward_normalizer == "return_std" and self.config.update_normalizers
        return DataPlan(
            unroll_steps=self.config.unroll_steps,
            columns_per_batch=self.setup.num_streams,
            return_discount=self.config.gamma if by_return else None,
            state_every=self.chunk_steps,
        )

    def publication(self) -> Publication:
        tensors = {f"network/{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"normalizer/{k}": v for k, v in self.normalizer.state_dict().items()}
        # No actor needs them, but whoever goes on training from a saved policy does.
        moments = self.reward_normalizer.moments.state_dict()
        tensors |= {f"reward_moments/{k}": v for k, v in moments.items()}
        return Publication(self.version, tensors)

    def update(self, batch: Rollout, env_steps: int) -> dict[str, float]:
        """One iteration: targets, epochs of minibatches, penalty weight, normalisers, counters."""
        config = self.config
        self._schedule(env_steps)
        use = minibatches.ended_rows(batch) if config.unfinished_episode == "drop" else batch.valid
        self.distributions = {}
        if not use.any():  # unfinished_episode=drop, and no episode ended
            self._merge(batch)
            self.version += 1
            return {"optim/epochs": 0.0} | self._state_metrics()
        rows, estimates = self._rows(batch, use)
        chunks = Chunks(use.shape, self.chunk_steps, use.device)
        self._distribute("first", rows, chunks, use)
        share = 1.0 if config.reduction == "mean" else int(use.sum()) / use.numel()
        stats: list[Tensor] = []
        for epoch in range(config.num_epochs):
            if epoch and config.refresh_advantages == "per_epoch":
                rows, estimates = self._rows(batch, use)
            begin = len(stats)
            for index, chunk_index, weight in self._minibatches(chunks, use.flatten()):
                self.updates += 1
                knobs = self._knobs(share)
                stats.append(self.optimizer_step(rows, index, chunk_index, weight, knobs))
            if config.target_kl is not None:
                approx_kl = torch.stack(stats[begin:])[:, LOSS_METRICS.index("policy/approx_kl")]
                if approx_kl.mean() > 1.5 * config.target_kl:
                    break
        metrics = diagnostics.batch_metrics(batch, use, estimates)
        counts = diagnostics.observation_clip_counts(self.normalizer, rows.obs, use)
        metrics |= diagnostics.observation_clip_metrics(counts)
        metrics |= diagnostics.reward_clip_metrics(self.reward_normalizer, estimates.reward, use)
        metrics["optim/epochs"] = epoch + 1.0
        metrics |= diagnostics.step_means(torch.stack(stats).cpu(), begin, self.updates)
        metrics |= {"optim/learning_rate": self.learning_rate, "policy/kl_beta": self.beta}
        if config.uses_kl:
            metrics |= self._adapt_to_kl(rows, chunks, use)
        self._distribute("last", rows, chunks, use)
        if config.log_histograms:
            data = diagnostics.batch_values(batch, use, estimates, self.family)
            self.distributions |= {f"histogram/{name}": x for name, x in data.items()}
        metrics |= diagnostics.layer_metrics(self.parameters, self.gradient)
        self._merge(batch)
        self.version += 1
        return metrics | self._state_metrics()

    def _schedule(self, env_steps: int) -> None:
        left = schedules.linear(env_steps, self.setup.total_env_steps)
        if self.config.lr_schedule == "linear":
            self.learning_rate = self.config.learning_rate * left
        if self.config.clip_schedule == "linear":
            assert self.config.clip_epsilon is not None
            self.clip_epsilon = self.config.clip_epsilon * left

    @torch.no_grad()
    def _rows(self, batch: Rollout, use: Tensor) -> tuple[Rows, Estimates]:
        """Normalises, estimates advantages and targets, and flattens ``[T, B]`` to rows."""
        config = self.config
        obs = self.normalizer({name: x.flatten(0, 1) for name, x in batch.obs.items()})
        v = self._values(batch, obs)
        v_tm1, v_t = v[:-1], v[1:]
        r_t = self.reward_normalizer(batch.reward)
        ended = batch.terminated | batch.truncated
        terminal = ended if config.truncation_as_termination else batch.terminated
        discount_t = config.gamma * (~terminal).float()
        not_cut_t = batch.not_cut_t

        gae = returns.gae(r_t, discount_t, not_cut_t, v_tm1, v_t, lambda_=config.gae_lambda)
        advantage, target = gae.advantage_tm1, gae.target_tm1
        if "monte_carlo" in (config.advantage_estimator, config.value_target):
            monte_carlo = returns.n_step(r_t, discount_t, not_cut_t, v_t, n=None)
            if config.advantage_estimator == "monte_carlo":
                advantage = monte_carlo - v_tm1
            if config.value_target == "monte_carlo":
                target = monte_carlo
        estimates = Estimates(r_t, advantage, target, v_tm1)
        if config.normalize_advantage == "batch":
            advantage = reduce.normalize_valid(advantage, use)

        rows = Rows(
            obs={name: x[: use.numel()] for name, x in obs.items()},
            is_first=batch.is_first[:-1].flatten(),
            action=batch.action.flatten(0, 1),
            logp_mu=batch.record["logp_mu"].flatten(),
            params_mu=batch.record["params_mu"].flatten(0, 1),
            value_mu=batch.record["value"].flatten(),
            advantage=advantage.flatten(),
            target=target.flatten(),
            state={name: x[:-1].flatten(0, 1) for name, x in batch.state.items()},
        )
        return rows, estimates

    def _values(self, batch: Rollout, obs: Obs) -> Tensor:
        """Values ``[T+1, B]`` of normalised observations ``[(T+1) * B, ...]``: recorded ones but
        for row T, or of the current network from the recorded states.
        """
        recorded = (
            self.config.refresh_advantages == "once" and self.config.value_source == "recorded"
        )
        shape = batch.reward.shape
        if not batch.state and not recorded:
            return self.network.value(obs).view(shape[0] + 1, -1)
        last = {name: x[shape.numel() :] for name, x in obs.items()}
        end = {name: x[-1] for name, x in batch.state.items()}
        v_end = self.network.value(last, end, batch.is_first[-1]).unsqueeze(0)
        if recorded:
            return torch.cat((batch.record["value"], v_end))
        order = Chunks(shape, self.chunk_steps, v_end.device).order
        start = {name: x[:-1].flatten(0, 1) for name, x in batch.state.items()}
        rows = {name: x[order] for name, x in obs.items()}
        v = v_end.new_empty(shape.numel())
        v[order] = self.network.value(rows, start, batch.is_first[:-1].flatten()[order])
        return torch.cat((v.view(shape), v_end))

    def _minibatches(self, chunks: Chunks, use: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One pass in fresh random order over the rows to `use`: each minibatch's rows, chunks and
        weights.
        """
        size = self.config.minibatch_steps or use.numel()
        index, chunk_index, weights = chunks.minibatches(
            use, size, self.config.drop_last, self.shuffle
        )
        parts = (index.view(len(weights), -1), chunk_index.view(len(weights), -1), weights)
        return zip(*parts, strict=True)

    def _knobs(self, share: float) -> Tensor:
        """Numbers of an optimizer step that change from step to step, as one tensor."""
        correction, root_correction = adam.corrections(self.updates)
        rate = self.learning_rate / correction
        knobs = [rate, root_correction, self.beta, self.clip_epsilon or 0.0, share]
        return torch.tensor(knobs, device=self.theta.device)

    def _step(
        self, rows: Rows, index: Tensor, chunk_index: Tensor, weight: Tensor, knobs: Tensor
    ) -> Tensor:
        """One optimizer step on some rows of a batch; returns STEP_METRICS."""
        minibatch = rows.take(index, chunk_index)
        loss, stats = self._loss(self.parameters, minibatch, weight, knobs)
        # A coefficient of 0 takes its term, and so whole layers, out of the graph.
        gradients = torch.autograd.grad(loss, [*self.parameters.values()], materialize_grads=True)
        return self._descend(gradients, stats, knobs)

    def _compiled_step(
        self, rows: Rows, index: Tensor, chunk_index: Tensor, weight: Tensor, knobs: Tensor
    ) -> Tensor:
        """`_step` in the form that compiles to one graph, whose only weights are theta."""
        parameters = views_of(self.theta, self.shapes)
        gradients, stats = torch.func.grad(self._loss, has_aux=True)(
            parameters, rows.take(index, chunk_index), weight, knobs
        )
        return self._descend(gradients.values(), stats, knobs)

    @torch.no_grad()
    def _descend(self, gradients: Iterable[Tensor], stats: Tensor, knobs: Tensor) -> Tensor:
        grad = torch.cat([g.flatten() for g in gradients])
        if self.gradient is not None:
            self.gradient.copy_(grad)
        grad, norm = adam.clip_norm(grad, self.config.max_grad_norm)
        adam.adam_(
            self.theta,
            grad,
            self.exp_avg,
            self.exp_avg_sq,
            step_size=knobs[0],
            root_correction=knobs[1],
            epsilon=self.config.adam_epsilon,
        )
        return torch.cat((stats, norm.unsqueeze(0)))

    def _loss(
        self, parameters: dict[str, Tensor], rows: Rows, weight: Tensor, knobs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss of a minibatch and its LOSS_METRICS.

        ``total = policy + value_coef * value - entropy_coef * H + l2 + beta * kl + cutoff`` with
        means by `weight` over the minibatch's rows; `share` is 1 but for
        ``reduction=mean_over_all``.
        """
        config = self.config
        _, _, beta, clip_epsilon, share = knobs.unbind()
        terms = self._terms(parameters, rows, weight, clip_epsilon)

        def mean(x: Tensor) -> Tensor:
            return share * torch.dot(weight, x)

        entropy, kl = mean(terms.entropy), mean(terms.kl)
        zero = torch.zeros_like(entropy)
        policy_loss = mean(terms.policy)
        value_loss = config.value_coef * mean(terms.error) if config.value_coef > 0 else zero
        entropy_loss = -config.entropy_coef * entropy if config.entropy_coef > 0 else zero
        l2_loss = self._l2(parameters) if config.l2_coefs else zero
        kl_loss = beta * kl if config.kl_beta_init > 0 else zero
        cutoff_loss = zero
        if config.kl_cutoff_coef > 0:
            cutoff_loss = policy_losses.kl_cutoff(
                kl,
                target=config.kl_target,
                factor=config.kl_cutoff_factor,
                coef=config.kl_cutoff_coef,
            )
        total = policy_loss + value_loss + entropy_loss + l2_loss + kl_loss + cutoff_loss

        losses = torch.stack((policy_loss, value_loss, entropy_loss, l2_loss, kl_loss, cutoff_loss))
        if config.check_numerics:
            found = {"logp_pi": terms.logp_pi, "rho": terms.rho, "value": terms.value}
            diagnostics.require_finite(found | {"losses": losses}, self.updates)
        return total, diagnostics.loss_stats(
            losses,
            terms,
            weight,
            kl > config.kl_cutoff_factor * config.kl_target,
            math.inf if config.clip_epsilon is None else clip_epsilon,
        )

    def _terms(
        self, parameters: dict[str, Tensor], rows: Rows, weight: Tensor, clip_epsilon: Tensor
    ) -> Terms:
        """What the loss of these rows is the mean of."""
        config, family = self.config, self.family
        params, value, _ = functional_call(
            self.network, parameters, (rows.obs, rows.state, rows.is_first)
        )
        params = masked(family, params, rows.obs)
        logp_pi, logp_mu = family.log_prob(params, rows.action), rows.logp_mu
        if config.log_prob_clip is not None:
            bound = config.log_prob_clip
            logp_pi, logp_mu = logp_pi.clamp(-bound, bound), logp_mu.clamp(-bound, bound)
        log_rho = logp_pi - logp_mu
        if self.chunk_steps > 1:  # chunks may hold invalid rows, whose ratio may be anything
            log_rho = torch.where(weight > 0, log_rho, 0.0)
        rho = log_rho.exp()
        advantage = rows.advantage
        if config.normalize_advantage == "minibatch":
            advantage = reduce.normalize_valid(advantage, weight)

        if config.clip_epsilon is None:
            policy = policy_losses.ratio(rho, advantage)
        else:
            policy = policy_losses.ratio_clip(rho, advantage, clip_epsilon)
        if config.value_clip is None:
            error = value_losses.squared(value, rows.target)
        else:
            error = value_losses.clipped(value, rows.value_mu, rows.target, config.value_clip)
        # What is only reported stays out of the gradient.
        entropy = family.entropy(params if config.entropy_coef > 0 else params.detach())
        kl = family.kl(rows.params_mu, params if config.uses_kl else params.detach())
        return Terms(
            params, value, logp_pi, logp_mu, log_rho, rho, advantage, policy, error, entropy, kl
        )

    def _l2(self, parameters: dict[str, Tensor]) -> Tensor:
        """Sums of squared kernels by group, times their coefficients."""
        return torch.stack(
            [
                coef * parameters[name].square().sum()
                for group, coef in self.config.l2_coefs.items()
                for name in self.kernels[group]
            ]
        ).sum()

    def _whole(self, rows: Rows, chunks: Chunks, use: Tensor) -> tuple[Rows, Tensor]:
        """All rows in the order that the network reads, and which of them to use ``[N]``."""
        if self.chunk_steps == 1:
            return rows, use.flatten()
        every = torch.arange(chunks.rows.shape[1], device=use.device)
        return rows.take(chunks.order, every), use.flatten()[chunks.order]

    @torch.no_grad()
    def _adapt_to_kl(self, rows: Rows, chunks: Chunks, use: Tensor) -> dict[str, float]:
        """Moves the penalty weight and an adaptive learning rate by the updated policy's KL."""
        config, before = self.config, self.beta
        rows, use = self._whole(rows, chunks, use)
        params, _, _ = self.network(rows.obs, rows.state, rows.is_first)
        params = masked(self.family, params, rows.obs)
        mean_kl = self.family.kl(rows.params_mu, params)[use].mean().item()
        metrics = {"policy/kl": mean_kl}
        if config.kl_beta_init > 0:
            self.beta = policy_losses.adaptive_kl_beta(
                self.beta, mean_kl, target=config.kl_target, tolerance=config.kl_tolerance
            )
            metrics["policy/kl_beta_factor"] = self.beta / before
        if config.lr_schedule == "kl_adaptive":
            self.learning_rate = schedules.kl_adaptive_rate(
                self.learning_rate, mean_kl, config.kl_target
            )
        return metrics

    @torch.no_grad()
    def _distribute(self, when: str, rows: Rows, chunks: Chunks, use: Tensor) -> None:
        """Keeps the values behind the loss, for `histograms`."""
        if not self.config.log_histograms:
            return
        rows, use = self._whole(rows, chunks, use)
        clip_epsilon = torch.tensor(self.clip_epsilon or 0.0, device=self.theta.device)
        terms = self._terms(self.parameters, rows, use.float(), clip_epsilon)
        values = diagnostics.loss_values(terms, rows.target, use, self.family, self.clip_epsilon)
        self.distributions |= {f"histogram/{when}/{name}": x for name, x in values.items()}

    def histograms(self) -> dict[str, Tensor]:
        values = dict(self.distributions)
        for name, parameter, gradient in diagnostics.layers(self.parameters, self.gradient):
            values[f"histogram/parameter/{name}"] = parameter
            values[f"histogram/gradient/{name}"] = gradient
        return {name: x.detach().flatten().cpu() for name, x in values.items()}

    def _merge(self, batch: Rollout) -> None:
        """Folds the batch into the normalisers; they act from the next iteration on."""
        if not self.config.update_normalizers:
            return
        self.normalizer.merge({name: x[:-1] for name, x in batch.obs.items()}, batch.valid)
        self.normalizer.refresh()
        self.reward_normalizer.merge(batch)

    def _state_metrics(self) -> dict[str, float]:
        """How wide the policy and the normalisers are."""
        metrics = diagnostics.observation_metrics(self.normalizer)
        metrics |= diagnostics.policy_metrics(self.network.policy_head)
        if self.config.reward_normalizer != "none":
            variance = self.reward_normalizer.moments.variance
            metrics["normalizer/reward_std"] = variance.sqrt().item()
        return metrics

    def save(self) -> LearnerState:
        tensors = dict(self.publication().tensors)
        tensors |= {"optimizer/exp_avg": self.exp_avg, "optimizer/exp_avg_sq": self.exp_avg_sq}
        tensors["shuffle"] = self.shuffle.get_state()
        scalars: dict[str, int | float | str | bool | None] = {
            "updates": self.updates,
            "version": self.version,
            "beta": self.beta,
            "learning_rate": self.learning_rate,
        }
        return LearnerState(tensors, scalars)

    def warm_start(self, publication: Publication) -> None:
        self._load_publication(publication.tensors)

    def _load_publication(self, tensors: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(strip_prefix(tensors, "network"))
        self.normalizer.load_state_dict(strip_prefix(tensors, "normalizer"))
        self.normalizer.refresh()
        self.reward_normalizer.moments.load_state_dict(strip_prefix(tensors, "reward_moments"))

    def load(self, state: LearnerState) -> None:
        self._load_publication(state.tensors)
        self.exp_avg.copy_(state.tensors["optimizer/exp_avg"])
        self.exp_avg_sq.copy_(state.tensors["optimizer/exp_avg_sq"])
        self.shuffle.set_state(state.tensors["shuffle"])
        scalars: Any = state.scalars
        self.updates, self.version = scalars["updates"], scalars["version"]
        self.beta, self.learning_rate = scalars["beta"], scalars["learning_rate"]
