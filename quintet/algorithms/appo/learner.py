"""APPO: asynchronous proximal policy optimisation.

Petrenko et al., arXiv 2006.11751 (Sample Factory).  Read `APPOLearner.loss` first, then
`APPOLearner.update`.  Workers sample with slightly old weights; the learner takes the clipped
objective of PPO over advantages that V-trace corrects, and rows whose weights are too old never
reach it.  `Trained` makes the optimizer step; `quintet.ops` has the arithmetic of estimators and
terms.

Departures from Sample Factory's first version, each with the switch that turns it off, if there is
one:

 1. The last row of a chunk bootstraps from the value of its true next observation, and truncated
    episodes from the value of their true final observation (``truncation_as_termination``).
 2. All statistics, also of advantages, are over rows that this learner's policy executed.
 3. GAE bootstraps from the current value of the row after the unroll, and the value's target is
    advantage plus value (``use_vtrace=true``, the default, has no GAE).
 4. Traces of V-trace may decay (``vtrace_lambda=1``, the default, is the original's).
 5. Rows that are too old are masked one by one; a column of such rows only is dropped.
 6. Observations and rewards may be normalised by running statistics (the defaults are off).  The
    first batch is added to these statistics before it is learned from.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.appo import metrics
from quintet.algorithms.appo.chunks import Chunks, Minibatch, minibatch_indices, share, split_rows
from quintet.algorithms.appo.config import MAX_POLICY_LAG_UPDATES, APPOConfig, Knobs
from quintet.algorithms.appo.metrics import (
    ACTOR_LOSSES,
    LOSSES,
    MOST_UNIFORM_KL,
    Forward,
    Outputs,
)
from quintet.algorithms.parts import acting, policy_probe
from quintet.algorithms.parts.normalizers import ONLY_LEARNING, Normalizers
from quintet.algorithms.parts.options import refuse_aux_losses
from quintet.algorithms.parts.schedule import find_decay
from quintet.algorithms.parts.setup import PLAIN, Compute, Setup
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import Parameters, Trained, knobs_of
from quintet.models.build import ActorCritic
from quintet.models.config import ModelConfig
from quintet.ops import policy_losses, reduce, returns, schedules, value_losses
from quintet.ops.vtrace import advantage as vtrace_advantage
from quintet.ops.vtrace import vtrace
from quintet.protocols import Actor, DataPlan
from quintet.system.transfer import all_to_device, to_device
from quintet.types import LearnerState, Obs, Publication, Rollout, Spaces, State

LEAST_STD = 1e-3
"""Least standard deviation by which advantages are divided, in reward units."""


class GAEInputs(NamedTuple):
    """A whole batch ``[T, B]`` as GAE reads it; every tensor is contiguous, as a graph is compiled
    for one layout.

    reward: normalised.
    v_mu: recorded values.
    behind, state, is_first: observations, state and ``is_first`` of the rows after the unrolls
        ``[B, ...]``.
    """

    reward: Tensor
    terminal: Tensor
    not_cut_t: Tensor
    v_mu: Tensor
    behind: Obs
    state: State
    is_first: Tensor


@final
class APPOLearner:
    """Learns from batches of unrolls of any streams and of any age within the bound."""

    def __init__(self, config: APPOConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup, self.ranks = config, setup, setup.ranks
        self.family = acting.make_family(model, spaces)
        generator = torch.Generator().manual_seed(setup.seeds[0])
        network = ActorCritic(spaces, self.family, model, generator, setup.compute.precision)
        refuse_aux_losses("appo", model, network.encoder.loss_names)
        self.network = network.to(setup.device)
        self.normalizers = Normalizers(config, model, spaces, setup.device)
        self.trained: Trained[Minibatch, Knobs] = Trained(
            self.network,
            self.loss,
            partial(
                metrics.statistics, config=config, normalizers=self.normalizers, family=self.family
            ),
            Knobs,
            setup,
            modules=self.normalizers.modules,
            only_learning=ONLY_LEARNING,
            check_numerics=config.check_numerics,
        )
        self.weights, self.warm_start = self.trained.weights, self.normalizers.loads(self.trained)
        self.advantage: Tensor | None = None  # not normalised; None without GAE
        self._gae = setup.compute.prepared(self._gae_of)
        self.shuffle = torch.Generator().manual_seed(setup.seeds[1])
        self.learning_rate, self.decay = config.learning_rate, find_decay(config.lr_schedule)
        self.used_rate = self.learning_rate  # rate of the last update
        recorded = {policy_probe.KL} if config.records_distribution else set()
        recorded |= {*policy_probe.VALUE_CHANGES} if config.records_value else set()
        past = partial(acting.past_actor, config, model, spaces, setup)
        normalize, interval = self.normalizers.observations, self.trained.interval
        self.probe = policy_probe.PolicyProbe(
            self.family, self.network, normalize, interval, recorded, past
        )
        self.skipped = 0  # minibatches of the last iteration without a valid row

    # The loss

    def loss(
        self, parameters: Parameters, minibatch: Minibatch, knobs: Knobs
    ) -> tuple[Tensor, Outputs]:
        """The loss of a minibatch: the clipped objective of PPO (arXiv 1707.06347, equation 7) over
        the advantages of V-trace (arXiv 1802.01561, equation 1 and section 4.2), which
        arXiv 2006.11751 puts together in section 3.4.

        ``total = policy + value_coef * value - entropy_coef * H + kl_coef * KL(pi, mu)``, each the
        mean over the minibatch's valid rows; ``entropy_coef * KL(pi, uniform)``, symmetric, may
        stand in place of the entropy.  A coefficient of 0 leaves its term out.
        """
        config, family, chunks = self.config, self.family, minibatch.chunks
        forward = self._forward(parameters, chunks)
        params, rho = forward.params, forward.log_rho.exp()
        target, advantage = self._estimates(forward, chunks, knobs)
        sums = minibatch.sums
        sums = reduce.moment_sums(advantage, chunks.valid) if sums is None else sums
        normalized = reduce.normalize_by(advantage, sums, LEAST_STD)
        policy = policy_losses.ratio_clip_symmetric(rho, normalized, knobs.clip_epsilon)
        symmetric = config.exploration_loss == "symmetric_kl"
        uniform_kl = self._uniform_kl(params, chunks) if symmetric else None
        # An entropy that is only reported stays out of the gradient.
        reported = symmetric or config.entropy_coef == 0
        entropy = family.entropy(params.detach() if reported else params)

        def mean(x: Tensor) -> Tensor:
            return reduce.sum_valid(x, chunks.valid) / minibatch.count

        policy_loss = mean(policy)
        value_loss = entropy_loss = uniform_loss = kl_loss = zero = torch.zeros_like(policy_loss)
        if config.value_coef > 0:
            value_loss = knobs.value_coef * mean(self._value_error(forward, target, chunks, knobs))
        if uniform_kl is not None:
            uniform_loss = knobs.entropy_coef * mean(uniform_kl.clamp_max(MOST_UNIFORM_KL))
        elif config.entropy_coef > 0:
            entropy_loss = -knobs.entropy_coef * mean(entropy)
        if config.kl_coef > 0:
            kl_loss = knobs.kl_coef * mean(family.kl(params, chunks.record["params_mu"]))
        total = policy_loss + value_loss + entropy_loss + uniform_loss + kl_loss

        terms = policy_loss, value_loss, entropy_loss, uniform_loss, kl_loss
        losses = {name: x for name, x in zip(LOSSES, terms, strict=True) if x is not zero}
        losses["loss/total"] = total
        return total, Outputs(losses, forward, target, advantage, normalized, entropy, uniform_kl)

    def _forward(self, parameters: Parameters, chunks: Chunks) -> Forward:
        """One forward over the rows, with V-trace also over the rows after the chunks.

        Invalid rows get a harmless action and ratio, since a masked NaN still has a NaN gradient.
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
        return Forward(params, v[:steps], v[1:], logp_pi, log_rho, obs)

    @torch.no_grad()
    def _estimates(self, forward: Forward, chunks: Chunks, knobs: Knobs) -> tuple[Tensor, Tensor]:
        """Value targets and advantages ``[C, K]``."""
        if not self.config.use_vtrace:
            return chunks.estimates["target"], chunks.estimates["advantage"]
        v_tm1, v_t = forward.v_tm1.detach(), forward.v_t.detach()
        rho = forward.log_rho.detach().exp()
        discount_t = knobs.gamma * (~chunks.terminal).to(rho.dtype)
        target, pg_advantage = vtrace(
            v_tm1, v_t, chunks.reward, discount_t, chunks.not_cut_t, rho,
            rho_bar=knobs.rho_bar, c_bar=knobs.c_bar, pg_rho_bar=knobs.rho_bar,
            lambda_=knobs.vtrace_lambda,
        )  # fmt: skip
        if self.config.advantage_includes_rho:
            return target, pg_advantage
        rows = v_tm1, v_t, chunks.reward, discount_t, chunks.not_cut_t, target
        return target, vtrace_advantage(*rows)

    def _value_error(
        self, forward: Forward, target: Tensor, chunks: Chunks, knobs: Knobs
    ) -> Tensor:
        """Half the squared error by row; with a value clip, of the clipped value."""
        if self.config.value_clip is None:
            return value_losses.squared(forward.v_tm1, target)
        v_mu = chunks.record["value"]
        return value_losses.clipped(forward.v_tm1, v_mu, target, knobs.value_clip)

    def _uniform_kl(self, params: Tensor, chunks: Chunks) -> Tensor:
        """The mean of the KLs from and to the uniform policy over the allowed actions, by row."""
        obs = {name: x[: len(params)] for name, x in chunks.obs.items()}
        uniform = acting.masked(self.family, torch.zeros_like(params), obs)
        return 0.5 * (self.family.kl(params, uniform) + self.family.kl(uniform, params))

    # Updates

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
            gives_advantage=not config.use_vtrace,
        )

    @property
    def updates(self) -> int:
        return self.trained.steps

    @property
    def version(self) -> int:
        """Number of optimizer steps so far, the unit of the lag."""
        return self.trained.steps

    def configure(self, options: APPOConfig) -> None:
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
        self.used_rate = self.learning_rate
        batch = self.ranks.whole(batch)
        self.normalizers.merge_first(batch, self.version)
        if "value" in batch.record and self.normalizers.acted_without_statistics(batch):
            batch = replace(batch, record={**batch.record, "value": self._values(batch)})
        chunks = self._chunks(batch)
        valid = split_rows(batch.on_cpu("valid"), config.chunk_steps)
        knobs, before, self.skipped = knobs_of(Knobs, config, first=1.0), 1e9, 0
        for epoch in range(config.num_epochs):
            begin = trained.pending
            for minibatch in self._minibatches(chunks, valid, knobs):
                betas = config.adam_beta1, config.adam_beta2
                options = trained.step_options(self.learning_rate, config, betas=betas)
                trained.step(minibatch, knobs, options)
                knobs = knobs._replace(first=0.0)
            if config.early_stop_tolerance > 0 and epoch + 1 < config.num_epochs:
                means = trained.recent(begin)
                loss = float(sum(means[name] for name in ACTOR_LOSSES if name in means))
                if abs(loss - before) < config.early_stop_tolerance:
                    break
                before = loss
        if config.lr_schedule == "kl_adaptive":
            kl = self._mean_kl(chunks)
            if config.kl_coef == 0:  # else the KL of the loss is told
                trained.interval.add_numbers({policy_probe.KL: kl})
            self.learning_rate = schedules.kl_adaptive_rate(
                self.learning_rate, kl, config.kl_target
            )
        passes = {"optim/epochs": epoch + 1.0, "optim/skipped_minibatches": float(self.skipped)}
        trained.interval.add_numbers(passes)
        trained.end_update()
        self.normalizers.merge(batch)
        self.probe.after(batch, self.version, trained.current)

    # Minibatches of a batch

    @torch.no_grad()
    def _values(self, batch: Rollout) -> Tensor:
        """Values ``[T, B]`` of the batch's observations by the present network and statistics."""
        obs = {name: x[:-1].flatten(0, 1) for name, x in batch.obs.items()}
        state = {name: x[0] for name, x in batch.state.items()}
        inputs = (self.normalizers.observations(obs), state, batch.is_first[:-1].flatten())
        v: Tensor = functional_call(self.network, self.trained.views(), inputs)[1]
        return v.view(batch.reward.shape)

    @torch.no_grad()
    def _chunks(self, batch: Rollout) -> Chunks:
        """All chunks of the batch; with GAE also their advantages and targets."""
        config = self.config
        reward = self.normalizers.rewards(batch.reward)
        terminal = batch.terminal(config.truncation_as_termination)
        estimates = {}
        if not config.use_vtrace:
            rows = GAEInputs(
                reward=reward.contiguous(),
                terminal=terminal.contiguous(),
                not_cut_t=batch.not_cut_t.contiguous(),
                v_mu=batch.record["value"].contiguous(),
                behind={name: x[-1].contiguous() for name, x in batch.obs.items()},
                state={name: x[-1].contiguous() for name, x in batch.state.items()},
                is_first=batch.is_first[-1].contiguous(),
            )
            discounts = to_device(torch.tensor([config.gamma, config.gae_lambda]), reward.device)
            estimates = self._gae(rows, discounts)
            self.advantage = estimates["advantage"]
        # Statistics of the whole batch, the same on all ranks.
        self.trained.interval.add(Statistics(self.normalizers.of_rewards(batch, reward)))
        return Chunks.of(batch, reward, terminal, estimates, config.chunk_steps)

    def _gae_of(self, rows: GAEInputs, discounts: Tensor) -> dict[str, Tensor]:
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

    def _minibatches(self, chunks: Chunks, valid: Tensor, knobs: Knobs) -> Iterator[Minibatch]:
        """One pass, in a new random order if there are several minibatches; each of several ranks
        takes its part of every minibatch.

        valid: of the chunks ``[C, K]``, on the CPU.
        """
        config, ranks = self.config, self.ranks
        size = config.minibatch_steps // config.chunk_steps
        alone = chunks.valid.shape[1] == size
        if alone and ranks.size == 1:
            # A batch has a valid row, see `runtime/loop.py`; to look would wait for a GPU.
            yield Minibatch(chunks, chunks.valid.sum(), chunks.valid.numel())
            return
        parts, skipped = minibatch_indices(valid, size, None if alone else self.shuffle)
        self.skipped += skipped
        for index in all_to_device(parts, chunks.valid.device) if parts else ():
            of_part = chunks.valid[:, index]
            count, rows = of_part.sum().clamp_min(1).to(self.setup.device), of_part.numel()
            own = chunks.take(share(index, ranks.index, ranks.size))
            yield Minibatch(own, count, rows, None if ranks.size == 1 else self._sums(own, knobs))

    @torch.no_grad()
    def _sums(self, chunks: Chunks, knobs: Knobs) -> Tensor:
        """Moments of the advantages of all ranks.  V-trace's advantages depend on the current
        weights, so each rank computes those of its chunks by another forward.
        """
        if self.config.use_vtrace:
            values = self.trained.on_device(knobs)
            forward = self._forward(self.trained.parameters, chunks)
            _, advantage = self._estimates(forward, chunks, values)
        else:
            advantage = chunks.estimates["advantage"]
        return self.ranks.sum(reduce.moment_sums(advantage, chunks.valid))

    @torch.no_grad()
    def _mean_kl(self, chunks: Chunks) -> float:
        """Mean KL(mu, pi) of the current weights over all valid rows, nats."""
        params = self._forward(self.trained.parameters, chunks).params
        kl = self.family.kl(chunks.record["params_mu"], params)
        count = chunks.valid.sum().clamp_min(1)
        return (reduce.sum_valid(kl, chunks.valid) / count).item()

    # Reports and state

    def metrics(self) -> dict[str, float]:
        self.probe.begin()
        self.trained.fold()
        values = metrics.finished(self.trained)
        values["optim/learning_rate"] = self.used_rate
        return values | self.normalizers.metrics()

    def histograms(self) -> dict[str, Tensor]:
        return {}

    def publication(self) -> Publication:
        return Publication(self.version, self.trained.published())

    def save(self) -> LearnerState:
        self.probe.forget()
        tensors = self.trained.save() | {"shuffle": self.shuffle.get_state()}
        return LearnerState(tensors, {"updates": self.updates, "learning_rate": self.learning_rate})

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        scalars: Any = state.scalars
        self.probe.forget()
        self.trained.load(state.tensors, scalars["updates"] if counters else self.updates)
        if counters:
            self.shuffle.set_state(state.tensors["shuffle"])
        self.learning_rate = self.used_rate = scalars["learning_rate"]


def make_actor(
    config: APPOConfig, model: ModelConfig, spaces: Spaces, compute: Compute = PLAIN
) -> Actor:
    """The actor that collects APPO's batches; it records only what the loss reads."""
    records: tuple[acting.Recorded, ...] = ("logp_mu",)
    if config.records_distribution:
        records = (*records, "params_mu")
    if config.records_value:
        records = (*records, "value")
    return acting.make_sampler(config, model, spaces, records, compute)
