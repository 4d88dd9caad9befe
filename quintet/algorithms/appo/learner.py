"""APPO: asynchronous proximal policy optimisation.

Petrenko et al., arXiv 2006.11751 (Sample Factory).  Read `APPOLearner.update` first, then
`APPOLearner._loss`.  Workers sample with slightly old weights; the learner takes the clipped
objective of PPO over advantages that V-trace corrects, and rows whose weights are too old never
reach it.  `Trained` makes the optimizer step; `quintet.ops` has the arithmetic of estimators and
terms.

Departures from Sample Factory's first version, each with the switch that turns it off, if there is
one:

 1. The last row of a chunk bootstraps from the value of its true next observation, and truncated
    episodes from that of their true final one (``truncation_as_termination``).
 2. All statistics, advantages' too, are of rows that were really executed by this learner's policy.
 3. GAE bootstraps from the current value of the row behind the unroll, and the value's target is
    advantage plus value (``use_vtrace=true``, the default, has no GAE).
 4. Traces of V-trace may decay (``lambda_=1``, the default, is the original's).
 5. Rows that are too old are masked one by one; a column without others is dropped.
 6. Observations and rewards may be normalised by running statistics (the defaults are off).  The
    first batch goes into them before it is learned from.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.appo import metrics
from quintet.algorithms.appo.chunks import Chunks, Minibatch, minibatch_indices, share
from quintet.algorithms.appo.config import MAX_POLICY_LAG_UPDATES, TUNABLE, APPOConfig, Knobs
from quintet.algorithms.parts import acting, diagnostics, looks
from quintet.algorithms.parts.normalizers import ONLY_LEARNING, Normalizers
from quintet.algorithms.parts.off_policy_statistics import Terms, off_policy_statistics
from quintet.algorithms.parts.options import refuse_aux_losses, require_tunable
from quintet.algorithms.parts.schedule import find_decay
from quintet.algorithms.parts.setup import PLAIN, Compute, Setup
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import Descent, Parameters, Trained, knobs_of
from quintet.models.build import ActorCritic
from quintet.models.compiled import Graph
from quintet.models.config import ModelConfig
from quintet.ops import adam, policy_losses, reduce, returns, schedules, value_losses
from quintet.ops.distributions import DiagGaussian, leaf_families
from quintet.ops.vtrace import advantage as vtrace_advantage
from quintet.ops.vtrace import vtrace
from quintet.protocols import Actor, DataPlan
from quintet.types import LearnerState, Obs, Publication, Rollout, Spaces, State

LEAST_STD = 1e-3
"""Least standard deviation by which advantages are divided, in reward units."""

MOST_UNIFORM_KL = 30.0
"""Of a row's symmetric KL to the uniform policy, in nats; no gradient flows above it."""


def make_actor(
    config: APPOConfig, model: ModelConfig, spaces: Spaces, compute: Compute = PLAIN
) -> Actor:
    """The actor that collects APPO's batches; it records no more than the loss reads."""
    records: tuple[acting.Recorded, ...] = ("logp_mu",)
    if config.records_distribution:
        records = (*records, "params_mu")
    if config.records_value:
        records = (*records, "value")
    return acting.make_sampler(config, model, spaces, records, compute)


class Outputs(NamedTuple):
    """Of the network on a minibatch: the (masked) distribution ``[C, K, P]``, values of the chunks'
    rows and, for V-trace, of those behind, ``[C, K]``; the action's log-probability and its
    log-ratio to the one that acted ``[C, K]``.

    obs: what it was given, normalised ``[C * K, ...]``, with V-trace also the rows behind.
    """

    params: Tensor
    v_tm1: Tensor
    v_t: Tensor
    logp_pi: Tensor
    log_rho: Tensor
    obs: Obs


class Rows(NamedTuple):
    """Of a whole batch ``[T, B]`` what GAE is made of; every tensor is contiguous, as a graph is
    compiled for one layout.

    reward: normalised.
    v_mu: recorded values.
    behind, state, is_first: of the rows behind the unrolls ``[B, ...]``.
    """

    reward: Tensor
    terminal: Tensor
    not_cut_t: Tensor
    v_mu: Tensor
    behind: Obs
    state: State
    is_first: Tensor


class LossTerms(NamedTuple):
    """By row ``[C, K]``, unweighted; None where a coefficient is 0.

    target, advantage: in reward units; normalized: the advantage as the policy's term has it.
    error: half the squared error of the value.
    """

    target: Tensor
    advantage: Tensor
    normalized: Tensor
    policy: Tensor
    error: Tensor | None
    entropy: Tensor
    uniform_kl: Tensor | None
    kl: Tensor | None


@final
class APPOLearner:
    """Learns from batches of unrolls of any streams and of any age within the bound."""

    def __init__(self, config: APPOConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup, self.ranks = config, setup, setup.ranks
        self.family = acting.make_family(model, spaces)
        generator = torch.Generator().manual_seed(setup.seeds[0])
        network = ActorCritic(spaces, self.family, model, generator, setup.compute.precision)
        refuse_aux_losses("appo", model, network.loss_names)
        self.network = network.to(setup.device)
        self.normalizers = Normalizers(config, model, spaces, setup.device)
        self.trained: Trained[Minibatch, Knobs] = Trained(
            self.network,
            self._loss,
            Knobs,
            setup,
            modules=self.normalizers.modules,
            only_learning=ONLY_LEARNING,
            check_numerics=config.check_numerics,
        )
        self.weights, self.warm_start = self.trained.weights, self.normalizers.loads(self.trained)
        self._gae = Graph(self._gae_of) if setup.compute.compile else self._gae_of
        self.shuffle = torch.Generator().manual_seed(setup.seeds[1])
        leaves = leaf_families(self.family)
        self.discrete = not any(isinstance(leaf, DiagGaussian) for leaf in leaves)
        self.learning_rate, self.decay = config.learning_rate, find_decay(config.lr_schedule)
        recorded = {looks.KL} if config.records_distribution else set()
        recorded |= {*looks.VALUE_CHANGES} if config.records_value else set()
        asked = looks.Asked(
            self.family,
            self.network,
            self.normalizers.observations,
            has_value=True,
            told=frozenset(recorded),
            make_past=partial(acting.past_actor, config, model, spaces, setup),
        )
        self.looks = looks.Looks(asked, self.trained.interval)
        self.skipped = 0  # minibatches of the last iteration without a valid row

    @property
    def plan(self) -> DataPlan:
        config = self.config
        rows = config.minibatch_steps * config.minibatches_per_iteration
        steps = config.minibatches_per_iteration * config.num_epochs
        columns = rows // config.unroll_steps
        # All streams end their unrolls at once, and the last of them wait for the other batches.
        of_streams = steps * -(-self.setup.num_streams // columns)
        return DataPlan(
            unroll_steps=config.unroll_steps,
            columns_per_batch=columns,
            return_discount=self.normalizers.return_discount,
            state_every=config.chunk_steps,
            max_policy_lag=max(MAX_POLICY_LAG_UPDATES, steps + of_streams),
            versions_per_batch=steps,
        )

    @property
    def updates(self) -> int:
        return self.trained.steps

    @property
    def version(self) -> int:
        """The optimizer steps, in which the lag is counted."""
        return self.trained.steps

    def configure(self, options: APPOConfig) -> None:
        require_tunable(self.config, options, TUNABLE)
        if options.lr_schedule == "kl_adaptive":  # a rate that was adapted changes by as much
            factor = options.learning_rate / self.config.learning_rate
            self.learning_rate = schedules.within_bounds(self.learning_rate * factor)
        self.config = options

    def update(self, batch: Rollout, env_steps: int) -> None:
        """One iteration: epochs of minibatches, then updates of the normalisers."""
        config, trained = self.config, self.trained
        if config.lr_schedule != "kl_adaptive":
            left = schedules.linear(env_steps, self.setup.total_env_steps)
            self.learning_rate = config.learning_rate * self.decay(left)
        batch = self.ranks.whole(batch)
        self.normalizers.merge_first(batch)
        chunks = self._chunks(batch)
        knobs, before, self.skipped = knobs_of(Knobs, config, first=1.0), 1e9, 0
        for epoch in range(config.num_epochs):
            begin = trained.untold
            for minibatch in self._minibatches(chunks, knobs):
                trained.step(minibatch, knobs, self._descent())
                knobs = knobs._replace(first=0.0)
            if config.early_stop_tolerance > 0 and epoch + 1 < config.num_epochs:
                told = trained.recent(begin)
                loss = sum(told[name].item() for name in metrics.ACTOR_LOSSES if name in told)
                if abs(loss - before) < config.early_stop_tolerance:
                    break
                before = loss
        if config.lr_schedule == "kl_adaptive":
            self.learning_rate = schedules.kl_adaptive_rate(
                self.learning_rate, self._mean_kl(chunks), config.kl_target
            )
        passes = {"optim/epochs": epoch + 1.0, "optim/skipped_minibatches": float(self.skipped)}
        trained.interval.add_numbers(passes)
        trained.fold()
        self.normalizers.merge(batch)
        self.looks.after(batch, self.publication)

    def _descent(self) -> Descent:
        config = self.config
        rates = adam.rates(
            self.trained.memory_steps + 1,
            self.learning_rate,
            config.adam_epsilon,
            config.adam_beta1,
            config.adam_beta2,
        )
        return Descent(rates, config.max_grad_norm)

    # From a batch to minibatches

    @torch.no_grad()
    def _chunks(self, batch: Rollout) -> Chunks:
        """All chunks of the batch; with GAE also their advantages and targets."""
        config = self.config
        reward = self.normalizers.rewards(batch.reward)
        terminal = batch.terminated
        if config.truncation_as_termination:
            terminal = terminal | batch.truncated
        estimates = {}
        if not config.use_vtrace:
            rows = Rows(
                reward=reward.contiguous(),
                terminal=terminal.contiguous(),
                not_cut_t=batch.not_cut_t.contiguous(),
                v_mu=batch.record["value"].contiguous(),
                behind={name: x[-1].contiguous() for name, x in batch.obs.items()},
                state={name: x[-1].contiguous() for name, x in batch.state.items()},
                is_first=batch.is_first[-1].contiguous(),
            )
            discounts = torch.tensor([config.gamma, config.gae_lambda], device=reward.device)
            estimates = self._gae(rows, discounts)
        # Statistics of the whole batch, the same on all ranks.
        self.trained.interval.add(Statistics(self.normalizers.of_rewards(batch, reward)))
        return Chunks.of(batch, reward, terminal, estimates, config.chunk_steps)

    def _gae_of(self, rows: Rows, discounts: Tensor) -> dict[str, Tensor]:
        """Advantages and targets of a whole batch.

        discounts: gamma and lambda.
        """
        with torch.no_grad():
            inputs = (self.normalizers.observations(rows.behind), rows.state, rows.is_first)
            _, v_end, _ = functional_call(self.network, self.trained.views(), inputs)
            v = torch.cat((rows.v_mu, v_end.unsqueeze(0)))
            gamma, lambda_ = discounts.unbind()
            discount_t = gamma * (~rows.terminal).to(v.dtype)
            gae = returns.gae(
                rows.reward, discount_t, rows.not_cut_t, v[:-1], v[1:], lambda_=lambda_
            )
            return {"advantage": gae.advantage_tm1, "target": gae.target_tm1}

    def _minibatches(self, chunks: Chunks, knobs: Knobs) -> Iterator[Minibatch]:
        """One pass, in a new random order if there are several minibatches; of several ranks each
        takes its part of every minibatch.
        """
        config, ranks = self.config, self.ranks
        size = config.minibatch_steps // config.chunk_steps
        alone = chunks.valid.shape[1] == size
        if alone and ranks.size == 1:
            # A batch has a valid row, see `runtime/loop.py`; to look would wait for a GPU.
            yield Minibatch(chunks, chunks.valid.sum(), chunks.valid.numel())
            return
        parts, skipped = minibatch_indices(chunks.valid, size, None if alone else self.shuffle)
        self.skipped += skipped
        for index in parts:
            valid = chunks.valid[:, index]
            count, rows = valid.sum().clamp_min(1).to(self.setup.device), valid.numel()
            own = chunks.take(share(index, ranks.index, ranks.size))
            yield Minibatch(own, count, rows, None if ranks.size == 1 else self._sums(own, knobs))

    @torch.no_grad()
    def _sums(self, chunks: Chunks, knobs: Knobs) -> Tensor:
        """Moments of the advantages of all ranks, of this one's chunks: V-trace's come of the
        weights of the moment, so each rank makes its own by a forward more.
        """
        if self.config.use_vtrace:
            values = self.trained.on_device(knobs)
            outputs = self._outputs(self.trained.parameters, chunks)
            _, advantage = self._estimates(outputs, chunks, values)
        else:
            advantage = chunks.estimates["advantage"]
        return self.ranks.sum(reduce.moment_sums(advantage, chunks.valid))

    @torch.no_grad()
    def _mean_kl(self, chunks: Chunks) -> float:
        """Mean KL(mu, pi) of the weights of now over all valid rows, nats."""
        params = self._outputs(self.trained.parameters, chunks).params
        kl = self.family.kl(chunks.record["params_mu"], params)
        count = chunks.valid.sum().clamp_min(1)
        return (reduce.sum_valid(kl, chunks.valid) / count).item()

    # The loss

    def _loss(
        self, parameters: Parameters, minibatch: Minibatch, knobs: Knobs
    ) -> tuple[Tensor, Statistics]:
        """The loss of a minibatch, and its statistics.

        ``total = policy + value_coef * value + entropy_coef * exploration + kl_coef * kl``, each
        the mean over the minibatch's valid rows.  A coefficient of 0 leaves its term out.
        """
        outputs = self._outputs(parameters, minibatch.chunks)
        terms = self._terms(outputs, minibatch, knobs)
        valid = minibatch.chunks.valid

        def mean(x: Tensor) -> Tensor:
            return reduce.sum_valid(x, valid) / minibatch.count

        losses = {"loss/policy": mean(terms.policy)}
        if terms.error is not None:
            losses["loss/value"] = knobs.value_coef * mean(terms.error)
        if terms.uniform_kl is not None:
            capped = terms.uniform_kl.clamp_max(MOST_UNIFORM_KL)
            losses["loss/uniform_kl"] = knobs.entropy_coef * mean(capped)
        elif self.config.entropy_coef > 0:
            losses["loss/entropy"] = -knobs.entropy_coef * mean(terms.entropy)
        if terms.kl is not None:
            losses["loss/kl"] = knobs.kl_coef * mean(terms.kl)
        if self.config.check_numerics:
            found = {"logp_pi": outputs.logp_pi, "value": outputs.v_tm1, "target": terms.target}
            diagnostics.require_finite(found | losses, self.updates)
        told = self._statistics(losses, terms, outputs, minibatch, knobs)
        return torch.stack([*losses.values()]).sum(), told

    def _outputs(self, parameters: Parameters, chunks: Chunks) -> Outputs:
        """One forward over the rows, with V-trace also over those behind the chunks.

        Invalid rows get a harmless action and ratio, since a NaN behind a mask would still make
        its gradient NaN.
        """
        family, valid = self.family, chunks.valid
        steps, columns = valid.shape
        obs = {name: x.flatten(0, 1) for name, x in chunks.obs.items()}
        obs = self.normalizers.observations(obs)
        params, value, _ = functional_call(
            self.network, parameters, (obs, chunks.state, chunks.is_first.flatten())
        )
        params = acting.masked(family, params, obs)
        params = params[: steps * columns].view(steps, columns, -1)
        done = valid.view(steps, columns, *[1] * (chunks.action.ndim - 2))
        logp_pi = family.log_prob(params, torch.where(done, chunks.action, 0))
        log_rho = torch.where(valid, logp_pi - chunks.record["logp_mu"], 0.0)
        if self.config.ratio_clamp is not None:
            low, high = self.config.ratio_clamp
            log_rho = log_rho.clamp(math.log(low), math.log(high))
        v = value.view(-1, columns)
        return Outputs(params, v[:steps], v[1:], logp_pi, log_rho, obs)

    def _terms(self, outputs: Outputs, minibatch: Minibatch, knobs: Knobs) -> LossTerms:
        """The terms of the loss by row."""
        config, family, chunks = self.config, self.family, minibatch.chunks
        target, advantage = self._estimates(outputs, chunks, knobs)
        sums = minibatch.sums
        sums = reduce.moment_sums(advantage, chunks.valid) if sums is None else sums
        normalized = reduce.normalize_by(advantage, sums, LEAST_STD)
        error, uniform_kl, kl = None, None, None
        if config.value_coef > 0 and config.value_clip is None:
            error = value_losses.squared(outputs.v_tm1, target)
        elif config.value_coef > 0:
            v_mu = chunks.record["value"]
            error = value_losses.clipped(outputs.v_tm1, v_mu, target, knobs.value_clip)
        explores, params = config.entropy_coef > 0, outputs.params
        if explores and config.exploration_loss == "symmetric_kl":
            obs = {name: x[: len(params)] for name, x in chunks.obs.items()}
            uniform = acting.masked(family, torch.zeros_like(params), obs)
            uniform_kl = 0.5 * (family.kl(params, uniform) + family.kl(uniform, params))
        if config.kl_coef > 0:
            kl = family.kl(params, chunks.record["params_mu"])
        return LossTerms(
            target=target,
            advantage=advantage,
            normalized=normalized,
            policy=policy_losses.ratio_clip_symmetric(
                outputs.log_rho.exp(), normalized, knobs.clip_ratio
            ),
            error=error,
            # What is only reported stays out of the gradient.
            entropy=family.entropy(params if explores and uniform_kl is None else params.detach()),
            uniform_kl=uniform_kl,
            kl=kl,
        )

    @torch.no_grad()
    def _estimates(self, outputs: Outputs, chunks: Chunks, knobs: Knobs) -> tuple[Tensor, Tensor]:
        """Value targets and advantages ``[C, K]``."""
        if not self.config.use_vtrace:
            return chunks.estimates["target"], chunks.estimates["advantage"]
        v_tm1, v_t = outputs.v_tm1.detach(), outputs.v_t.detach()
        rho = outputs.log_rho.detach().exp()
        discount_t = knobs.gamma * (~chunks.terminal).to(rho.dtype)
        found = vtrace(
            v_tm1,
            v_t,
            chunks.reward,
            discount_t,
            chunks.not_cut_t,
            rho,
            rho_bar=knobs.rho_bar,
            c_bar=knobs.c_bar,
            pg_rho_bar=knobs.rho_bar,
            lambda_=knobs.lambda_,
        )
        if self.config.advantage_includes_rho:
            return found.target_tm1, found.pg_advantage_tm1
        rows = v_tm1, v_t, chunks.reward, discount_t, chunks.not_cut_t, found.target_tm1
        return found.target_tm1, vtrace_advantage(*rows)

    # Reports and state

    @torch.no_grad()
    def _statistics(
        self,
        losses: dict[str, Tensor],
        terms: LossTerms,
        outputs: Outputs,
        minibatch: Minibatch,
        knobs: Knobs,
    ) -> Statistics:
        family, valid, record = self.family, minibatch.chunks.valid, minibatch.chunks.record
        params, log_rho = outputs.params.detach(), outputs.log_rho.detach()
        told = off_policy_statistics(
            losses,
            Terms(
                entropy=terms.entropy,
                log_rho=log_rho,
                rho=log_rho.exp(),
                v_tm1=outputs.v_tm1.detach(),
                target_tm1=terms.target,
                pg_advantage_tm1=terms.advantage,
                reward=minibatch.chunks.reward,
            ),
            valid,
            (minibatch.count, minibatch.rows),
            (knobs.rho_bar, knobs.c_bar),
        )
        bound = torch.log1p(torch.as_tensor(knobs.clip_ratio))
        capped = None if terms.uniform_kl is None else terms.uniform_kl > MOST_UNIFORM_KL
        rows = metrics.Rows(
            first=torch.as_tensor(knobs.first) > 0,
            rho=log_rho.exp(),
            normalized=terms.normalized,
            clipped=log_rho.abs() > bound,
            logit=metrics.largest_logit(params) if self.discrete else None,
            value_change=(outputs.v_tm1.detach() - record["value"]).abs()
            if "value" in record
            else None,
            kl=family.kl(record["params_mu"], params) if "params_mu" in record else None,
            capped=capped,
        )
        share = self.normalizers.clip_share(outputs.obs, valid, minibatch.count)
        told = told._replace(means={**told.means, "normalizer/observation_clip_frac": share})
        of_vtrace = self.config.use_vtrace
        return metrics.statistics(told, rows, valid, minibatch.count, vtrace=of_vtrace)

    def metrics(self) -> dict[str, float]:
        self.looks.begin()
        found = metrics.finished(self.trained)
        found["optim/learning_rate"] = self.learning_rate
        found |= self.normalizers.metrics()
        return found

    def histograms(self) -> dict[str, Tensor]:
        return {}

    def publication(self) -> Publication:
        return Publication(self.version, self.trained.published())

    def save(self) -> LearnerState:
        self.looks.forget()
        tensors = self.trained.save() | {"shuffle": self.shuffle.get_state()}
        return LearnerState(tensors, {"updates": self.updates, "learning_rate": self.learning_rate})

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        scalars: Any = state.scalars
        self.looks.forget()
        self.trained.load(state.tensors, scalars["updates"] if counters else self.updates)
        if counters:
            self.shuffle.set_state(state.tensors["shuffle"])
        self.learning_rate = scalars["learning_rate"]
