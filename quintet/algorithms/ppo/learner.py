"""Proximal policy optimisation with a clipped ratio and/or an adaptive KL penalty.

Schulman et al., arXiv 1707.06347; advantages of Schulman et al., arXiv 1506.02438; the form is that
of TF-Agents' PPO agent.  Read `PPOLearner.update` first, then `PPOLearner._loss`.
How a loss becomes an optimizer step is `Trained`'s matter, the arithmetic of estimators and terms
that of `quintet.ops`.

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
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.parts import diagnostics, minibatches
from quintet.algorithms.parts.acting import (
    Recorded,
    SamplingActor,
    make_family,
    make_normalizer,
    masked,
)
from quintet.algorithms.parts.minibatches import Chunks, Minibatch, Rows
from quintet.algorithms.parts.setup import PLAIN, Compute, Setup
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import Descent, Knob, Parameters, Trained
from quintet.algorithms.ppo import metrics
from quintet.algorithms.ppo.config import PPOConfig
from quintet.algorithms.ppo.metrics import Estimates, Terms
from quintet.errors import ConfigError
from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig
from quintet.models.flat import load_into, tensors_of
from quintet.models.normalize import RewardNormalizer
from quintet.ops import adam, policy_losses, reduce, returns, schedules, value_losses
from quintet.protocols import DataPlan
from quintet.types import LearnerState, Obs, Publication, Rollout, Spaces


class Knobs(NamedTuple):
    """Options of the loss, and what changes them.

    l2_policy, l2_value, l2_shared: of several ranks, this one's share.
    share: 1, or of valid rows with ``reduction=mean_over_all``.
    """

    clip_epsilon: Knob
    value_clip: Knob
    log_prob_clip: Knob
    value_coef: Knob
    entropy_coef: Knob
    policy_l2_coef: Knob
    value_l2_coef: Knob
    shared_l2_coef: Knob
    kl_beta: Knob
    kl_target: Knob
    kl_cutoff_factor: Knob
    kl_cutoff_coef: Knob
    share: Knob


def make_actor(
    config: PPOConfig, model: ModelConfig, spaces: Spaces, compute: Compute = PLAIN
) -> SamplingActor:
    """What collects PPO's batches: of each action its log-probability, distribution and value."""
    records: tuple[Recorded, ...] = ("logp_mu", "params_mu", "value")
    return SamplingActor(model, spaces, make_normalizer(config, model, spaces), records, compute)


@final
class PPOLearner:
    """Learns from batches of whole unrolls, one column per stream."""

    def __init__(self, config: PPOConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup, self.ranks = config, setup, setup.ranks
        self.family = make_family(model, spaces)
        generator = torch.Generator().manual_seed(setup.seeds[0])
        network = ActorCritic(spaces, self.family, model, generator, setup.compute.precision)
        self.network = network.to(setup.device)
        _require_learnable(config, model, network, setup)
        self.normalizer = make_normalizer(config, model, spaces).to(setup.device)
        self.normalizer.refresh()
        self.reward_normalizer = RewardNormalizer(
            config.reward_normalizer, config.reward_norm_clip, config.normalizer_variance_epsilon
        ).to(setup.device)
        self.kernels = self.network.kernel_groups()
        self.trained: Trained[Minibatch, Knobs] = Trained(
            self.network, self._loss, Knobs, setup, check_numerics=config.check_numerics
        )
        if config.log_gradients:
            self.trained.keep_gradient()
        self.shuffle = torch.Generator().manual_seed(setup.seeds[1])
        self.chunk_steps = 1 if model.core == "none" else config.bptt_steps
        self.version = 0
        self.beta = config.kl_beta_init
        self.learning_rate = config.learning_rate
        self.clip_epsilon = config.clip_epsilon
        self.in_force: dict[str, float] = {}  # of the last iteration, by metric's name
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

    @property
    def updates(self) -> int:
        return self.trained.steps

    def update(self, batch: Rollout, env_steps: int) -> None:
        """One iteration: targets, epochs of minibatches, penalty weight, normalisers."""
        config, trained = self.config, self.trained
        self._schedule(env_steps)
        batch = self.ranks.whole(batch)
        use = minibatches.ended_rows(batch) if config.unfinished_episode == "drop" else batch.valid
        self.distributions = {}
        self.version += 1
        if not use.any():  # unfinished_episode=drop, and no episode ended
            trained.interval.add_numbers({"optim/epochs": 0.0})
            self._merge(batch)
            return
        rows, estimates = self._rows(batch, use)
        chunks = Chunks(use.shape, self.chunk_steps, use.device)
        self._distribute("first", rows, chunks, use)
        knobs = self.knobs(1.0 if config.reduction == "mean" else int(use.sum()) / use.numel())
        for epoch in range(config.num_epochs):
            if epoch and config.refresh_advantages == "per_epoch":
                rows, estimates = self._rows(batch, use)
            begin = trained.untold
            for minibatch in self._minibatches(rows, chunks, use.flatten()):
                trained.step(minibatch, knobs, self._descent())
            most = config.target_kl
            if most is not None and trained.recent(begin)["policy/approx_kl"] > 1.5 * most:
                break
        trained.interval.add_numbers({"optim/epochs": epoch + 1.0})
        self._tell(batch, use, rows, estimates, begin)
        trained.fold()
        if config.uses_kl:
            self._adapt_to_kl(rows, chunks, use)
        self._distribute("last", rows, chunks, use)
        if config.log_histograms:
            data = metrics.batch_values(batch, use, estimates, self.family)
            self.distributions |= {f"histogram/{name}": x for name, x in data.items()}
        self._merge(batch)

    def _schedule(self, env_steps: int) -> None:
        left = schedules.linear(env_steps, self.setup.total_env_steps)
        if self.config.lr_schedule == "linear":
            self.learning_rate = self.config.learning_rate * left
        if self.config.clip_schedule == "linear":
            assert self.config.clip_epsilon is not None
            self.clip_epsilon = self.config.clip_epsilon * left
        self.in_force = {"optim/learning_rate": self.learning_rate, "policy/kl_beta": self.beta}
        if self.clip_epsilon is not None:
            self.in_force["policy/clip_epsilon"] = self.clip_epsilon

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

    def _minibatches(self, rows: Rows, chunks: Chunks, use: Tensor) -> Iterator[Minibatch]:
        """One pass in fresh random order over the rows to `use` ``[T * B]``; of several ranks each
        takes its part of every minibatch.
        """
        config = self.config
        size = config.minibatch_steps or use.numel()
        order = chunks.one_pass(use, size, config.drop_last, self.shuffle)
        advantage = rows.advantage[order.index]
        if config.normalize_advantage == "minibatch":
            advantage = reduce.normalize_rows(advantage, order.weight)
        return order.minibatches(rows, advantage, self.ranks.index, self.ranks.size)

    def knobs(self, share: float) -> Knobs:
        """The loss's numbers of an iteration."""
        config, ranks = self.config, self.ranks.size
        return Knobs(
            clip_epsilon=math.inf if self.clip_epsilon is None else self.clip_epsilon,
            value_clip=config.value_clip or math.inf,
            log_prob_clip=config.log_prob_clip or math.inf,
            value_coef=config.value_coef,
            entropy_coef=config.entropy_coef,
            policy_l2_coef=config.policy_l2_coef / ranks,
            value_l2_coef=config.value_l2_coef / ranks,
            shared_l2_coef=config.shared_l2_coef / ranks,
            kl_beta=self.beta,
            kl_target=config.kl_target,
            kl_cutoff_factor=config.kl_cutoff_factor,
            kl_cutoff_coef=config.kl_cutoff_coef,
            share=share,
        )

    def _descent(self) -> Descent:
        config = self.config
        rates = adam.rates(self.updates + 1, self.learning_rate, config.adam_epsilon)
        return Descent(rates, config.max_grad_norm)

    def _loss(
        self, parameters: Parameters, minibatch: Minibatch, knobs: Knobs
    ) -> tuple[Tensor, Statistics]:
        """The loss of a minibatch, and what is reported of it.

        ``total = policy + value_coef * value - entropy_coef * H + l2 + beta * kl + cutoff`` with
        means by `weight` over the minibatch's rows.  A coefficient of 0 leaves its term out.
        """
        config, weight = self.config, minibatch.weight
        terms = self._terms(parameters, minibatch.take(), weight, knobs)

        def mean(x: Tensor) -> Tensor:
            return knobs.share * torch.dot(weight, x)

        entropy, kl = mean(terms.entropy), mean(terms.kl)
        zero = torch.zeros_like(entropy)
        policy_loss = mean(terms.policy)
        value_loss = knobs.value_coef * mean(terms.error) if config.value_coef > 0 else zero
        entropy_loss = -knobs.entropy_coef * entropy if config.entropy_coef > 0 else zero
        l2_loss = self._l2(parameters, knobs) if config.l2_coefs else zero
        kl_loss = knobs.kl_beta * kl if config.kl_beta_init > 0 else zero
        cutoff_loss = zero
        if config.kl_cutoff_coef > 0:
            cutoff_loss = policy_losses.kl_cutoff(
                kl,
                target=knobs.kl_target,
                factor=knobs.kl_cutoff_factor,
                coef=knobs.kl_cutoff_coef,
            )
        total = policy_loss + value_loss + entropy_loss + l2_loss + kl_loss + cutoff_loss

        losses = torch.stack((policy_loss, value_loss, entropy_loss, l2_loss, kl_loss, cutoff_loss))
        if config.check_numerics:
            found = {"logp_pi": terms.logp_pi, "rho": terms.rho, "value": terms.value}
            diagnostics.require_finite(found | {"losses": losses}, self.updates)
        cut_off = kl > knobs.kl_cutoff_factor * knobs.kl_target
        return total, metrics.loss_statistics(losses, terms, weight, cut_off, knobs.clip_epsilon)

    def _terms(self, parameters: Parameters, rows: Rows, weight: Tensor, knobs: Knobs) -> Terms:
        """What the loss of these rows is the mean of."""
        config, family = self.config, self.family
        params, value, _ = functional_call(
            self.network, parameters, (rows.obs, rows.state, rows.is_first)
        )
        params = masked(family, params, rows.obs)
        logp_pi, logp_mu = family.log_prob(params, rows.action), rows.logp_mu
        if config.log_prob_clip is not None:
            bound = torch.as_tensor(knobs.log_prob_clip)
            logp_pi, logp_mu = logp_pi.clamp(-bound, bound), logp_mu.clamp(-bound, bound)
        log_rho = logp_pi - logp_mu
        if self.chunk_steps > 1:  # chunks may hold invalid rows, whose ratio may be anything
            log_rho = torch.where(weight > 0, log_rho, 0.0)
        rho = log_rho.exp()
        if config.clip_epsilon is None:
            policy = policy_losses.ratio(rho, rows.advantage)
        else:
            policy = policy_losses.ratio_clip(rho, rows.advantage, knobs.clip_epsilon)
        if config.value_clip is None:
            error = value_losses.squared(value, rows.target)
        else:
            error = value_losses.clipped(value, rows.value_mu, rows.target, knobs.value_clip)
        # What is only reported stays out of the gradient.
        entropy = family.entropy(params if config.entropy_coef > 0 else params.detach())
        kl = family.kl(rows.params_mu, params if config.uses_kl else params.detach())
        return Terms(
            params,
            value,
            logp_pi,
            logp_mu,
            log_rho,
            rho,
            rows.advantage,
            policy,
            error,
            entropy,
            kl,
        )

    def _l2(self, parameters: Parameters, knobs: Knobs) -> Tensor:
        """Sums of squared kernels by group, times their coefficients."""
        return torch.stack(
            [
                getattr(knobs, f"{group}_l2_coef") * parameters[name].square().sum()
                for group in self.config.l2_coefs
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
    def _adapt_to_kl(self, rows: Rows, chunks: Chunks, use: Tensor) -> None:
        """Moves the penalty weight and an adaptive learning rate by the updated policy's KL."""
        config, before = self.config, self.beta
        rows, use = self._whole(rows, chunks, use)
        params, _, _ = self.network(rows.obs, rows.state, rows.is_first)
        params = masked(self.family, params, rows.obs)
        mean_kl = self.family.kl(rows.params_mu, params)[use].mean().item()
        told = {"policy/kl": mean_kl}
        if config.kl_beta_init > 0:
            self.beta = policy_losses.adaptive_kl_beta(
                self.beta, mean_kl, target=config.kl_target, tolerance=config.kl_tolerance
            )
            told["policy/kl_beta_factor"] = self.beta / before
        if config.lr_schedule == "kl_adaptive":
            self.learning_rate = schedules.kl_adaptive_rate(
                self.learning_rate, mean_kl, config.kl_target
            )
        self.trained.interval.add_numbers(told)

    def _merge(self, batch: Rollout) -> None:
        """Folds the batch into the normalisers; they act from the next iteration on."""
        if not self.config.update_normalizers:
            return
        self.normalizer.merge({name: x[:-1] for name, x in batch.obs.items()}, batch.valid)
        self.normalizer.refresh()
        self.reward_normalizer.merge(batch)

    # What is reported

    def _tell(
        self, batch: Rollout, use: Tensor, rows: Rows, estimates: Estimates, last_epoch: int
    ) -> None:
        """Adds an iteration to the metrics, beside what its steps have told."""
        trained, interval = self.trained, self.trained.interval
        interval.add(metrics.batch_statistics(batch, use, estimates))
        interval.add(metrics.reward_statistics(self.reward_normalizer, estimates.reward, use))
        share = diagnostics.observation_clip_share(self.normalizer, rows.obs, use, use.sum())
        interval.add(Statistics({"normalizer/observation_clip_frac": share}))
        last = trained.recent(last_epoch)
        told = {f"{name}_last_epoch": last[name] for name in (*metrics.LOSSES, "loss/total")}
        first = trained.recent(0, 1)["policy/ratio_max_error"]
        interval.add(Statistics(told, greatest={"policy/ratio_first_max_error": first}))

    def metrics(self) -> dict[str, float]:
        found = self.trained.interval.read()
        if metrics.LOSSES[0] in found:
            found["loss/total_abs"] = sum(abs(found[name]) for name in metrics.LOSSES)
        found |= self.in_force
        if self.config.reward_normalizer != "none":
            variance = self.reward_normalizer.moments.variance
            found["normalizer/reward_std"] = variance.sqrt().item()
        found |= diagnostics.observation_metrics(self.normalizer)
        found |= diagnostics.policy_metrics(self.network.policy_head)
        return found | diagnostics.layer_metrics(self.trained.parameters, self.trained.gradient)

    @torch.no_grad()
    def _distribute(self, when: str, rows: Rows, chunks: Chunks, use: Tensor) -> None:
        """Keeps the values behind the loss, for `histograms`."""
        if not self.config.log_histograms:
            return
        rows, use = self._whole(rows, chunks, use)
        knobs = Knobs(*map(torch.tensor, self.knobs(1.0)))
        terms = self._terms(self.trained.parameters, rows, use.float(), knobs)
        values = metrics.loss_values(terms, rows.target, use, self.family, self.clip_epsilon)
        self.distributions |= {f"histogram/{when}/{name}": x for name, x in values.items()}

    def histograms(self) -> dict[str, Tensor]:
        values = dict(self.distributions)
        trained = self.trained
        for name, parameter, gradient in diagnostics.layers(trained.parameters, trained.gradient):
            values[f"histogram/parameter/{name}"] = parameter
            values[f"histogram/gradient/{name}"] = gradient
        return {name: x.detach().flatten().cpu() for name, x in values.items()}

    # What is published and saved

    def publication(self) -> Publication:
        return Publication(self.version, tensors_of(self._modules))

    @property
    def _modules(self) -> Mapping[str, torch.nn.Module]:
        # No actor needs the last, but whoever goes on training from a saved policy does.
        moments = self.reward_normalizer.moments
        return {"network": self.network, "normalizer": self.normalizer, "reward_moments": moments}

    def warm_start(self, publication: Publication) -> None:
        load_into(self._modules, publication.tensors)
        self.normalizer.refresh()

    def save(self) -> LearnerState:
        tensors = tensors_of(self._modules) | self.trained.save()
        scalars: dict[str, int | float | str | bool | None] = {
            "updates": self.updates,
            "version": self.version,
            "beta": self.beta,
            "learning_rate": self.learning_rate,
        }
        return LearnerState(tensors | {"shuffle": self.shuffle.get_state()}, scalars)

    def load(self, state: LearnerState) -> None:
        scalars: Any = state.scalars
        self.warm_start(Publication(scalars["version"], state.tensors))
        self.trained.load(state.tensors, scalars["updates"])
        self.shuffle.set_state(state.tensors["shuffle"])
        self.version, self.beta = scalars["version"], scalars["beta"]
        self.learning_rate = scalars["learning_rate"]


def _require_learnable(
    config: PPOConfig, model: ModelConfig, network: ActorCritic, setup: Setup
) -> None:
    """Raises ConfigError where the network or the number of learners does not fit."""
    if network.loss_names:
        raise ConfigError(
            "ppo requires an encoder without auxiliary losses, model.encoder="
            f"{model.encoder} gives {', '.join(network.loss_names)}; return the features "
            "alone, or train with impala"
        )
    if setup.ranks.size > 1 and config.kl_cutoff_coef > 0:
        raise ConfigError(
            f"kl_cutoff_coef={config.kl_cutoff_coef:g} requires runtime.num_learners=1, got "
            f"{setup.ranks.size}: no learner has the mean that it squares; leave one of them out"
        )
