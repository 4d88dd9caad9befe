"""DDPG: a deterministic policy that climbs a critic, both learned from replay.

Lillicrap et al., arXiv 1509.02971, in the form of OpenAI baselines; parameter noise from Plappert
et al., arXiv 1706.01905, PopArt from van Hasselt et al., arXiv 1602.07714.  Read
`DDPGLearner._loss` first.  A batch from replay holds windows of `n_step` rows; fresh batches only
move the statistics.  How a loss becomes an optimizer step is `Trained`'s matter, how actors explore
is in `actor.py`.

Departures from the paper, each with the switch that turns it off:

 1. Truncated episodes bootstrap from the value of their true final observation
    (``truncation_as_termination``).
 2. Actors explore by noise on their weights (``exploration=ou_0.2`` is the paper's).
 3. The targets follow ten times as fast (``tau=0.001`` is the paper's).
 4. Layers are 64 and 64 with LayerNorm (``model.policy_hidden=(400, 300)``,
    ``model.layer_norm=false`` are the paper's).
 5. Observations are normalised by running statistics (``normalize_observations=false``); the paper
    has batch normalisation.
 6. Targets may be n-step returns (``n_step=1``, the default, is the paper's), in units of their
    spread (``normalize_returns=false``, the default), and errors may count linearly
    (``critic_huber_delta=none``, the default).
 7. Learning rates may fall to 0 (``lr_schedule=constant``, the default, is the paper's).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.func import functional_call

from quintet.algorithms.ddpg.actor import PARAM_SCALE, WARMING_UP
from quintet.algorithms.ddpg.config import TUNABLE, DDPGConfig, Knobs
from quintet.algorithms.ddpg.exploration import adapted, perturbation
from quintet.algorithms.ddpg.network import Networks, action_box, perturbable
from quintet.algorithms.ddpg.popart import TargetStatistics, rescale_
from quintet.algorithms.parts import diagnostics
from quintet.algorithms.parts.acting import make_normalizer
from quintet.algorithms.parts.off_policy_statistics import fit, with_fit
from quintet.algorithms.parts.options import refuse_aux_losses, require_tunable
from quintet.algorithms.parts.schedule import find_decay
from quintet.algorithms.parts.setup import Setup
from quintet.algorithms.parts.statistics import Statistics
from quintet.algorithms.parts.trained import Descent, Parameters, Trained, knobs_of
from quintet.models.compiled import Graph
from quintet.models.config import ModelConfig
from quintet.models.flat import views_of
from quintet.ops import adam, returns, schedules, value_losses
from quintet.protocols import DataPlan, ReplayPlan
from quintet.spaces import leaf_spec, observation_leaves
from quintet.types import LearnerState, Obs, Publication, Rollout, Spaces

_ACTOR, _CRITIC = "actor.", "critic."

SATURATED = 0.99
"""Share of half the action range beyond which the tanh of the policy's output has hardly a
gradient; the tanh itself never reaches 1.
"""


@dataclass(frozen=True)
class Transitions:
    """What the loss reads: B windows of T rows, this learner's share of a batch.

    obs: normalised, flat in time-major order ``[(T + 1) * B, ...]``.
    action: of row 0, ``[B, A]``; target: of its value ``[B]`` if it is known already.
    spread: mean and standard deviation that values are in units of, ``[2]``.
    rows: of the whole batch.
    """

    obs: Obs
    action: Tensor
    reward: Tensor
    goes_on_t: Tensor
    not_cut_t: Tensor
    target: Tensor | None
    spread: Tensor
    rows: int


@final
class DDPGLearner:
    """Makes one optimizer step of both networks from every batch that is drawn from replay."""

    def __init__(self, config: DDPGConfig, model: ModelConfig, spaces: Spaces, setup: Setup):
        self.config, self.setup, self.ranks = config, setup, setup.ranks
        generator = torch.Generator().manual_seed(setup.seeds[0])
        self.generator = torch.Generator().manual_seed(setup.seeds[1])
        network = Networks(
            spaces, model, config.action_layer, config.output_init, generator,
            setup.compute.precision,
        )  # fmt: skip
        refuse_aux_losses("ddpg", model, network.actor.encoder.loss_names)
        self.network = network.to(setup.device)
        self.normalizer = make_normalizer(config, model, spaces).to(setup.device)
        self.targets = TargetStatistics(config.popart_step_size).to(setup.device)
        self.trained: Trained[Transitions, Knobs] = Trained(
            self.network,
            self._loss,
            Knobs,
            setup,
            modules={"normalizer": self.normalizer, "targets": self.targets},
            only_learning=("network/critic.", "targets/"),
            segments=("actor", "critic"),
            averages=True,
            check_numerics=config.check_numerics,
        )
        self.penalised = self.network.penalised()
        self.param_scale = torch.tensor(config.noise.param, device=setup.device)
        self.collected_env_steps = 0  # of this policy, which in a population is one of several
        moved = perturbable(self.network.actor)
        self.moved = {name: moved[name.removeprefix(_ACTOR)] for name in self._names(_ACTOR)}
        self._target = Graph(self._targets_of) if setup.compute.compile else self._targets_of
        # Of the first update; of the same form before, as several learners exchange their state.
        rows, device = config.batch_size, setup.device
        leaves = observation_leaves(spaces.observation).items()
        specs = {name: leaf_spec(leaf) for name, leaf in leaves}
        self.reference: tuple[Obs, Tensor] = (
            {
                n: torch.zeros(rows, *x.shape, dtype=x.dtype, device=device)
                for n, x in specs.items()
            },
            torch.zeros(rows, action_box(spaces).size, device=device),
        )
        self.has_reference = False
        self.collected = torch.zeros(5, dtype=torch.float64, device=device)
        self.rates, self.decay = (config.actor_lr, config.critic_lr), find_decay(config.lr_schedule)
        self.version = 0

    @property
    def plan(self) -> DataPlan:
        config = self.config
        fixed = config.updates_per_cycle
        replay = ReplayPlan(
            "windows",
            capacity_steps=config.replay_capacity_steps,
            steps=config.n_step,
            columns=config.batch_size,
            draws="owed" if fixed is None else "fixed",
            rate=config.updates_per_env_step if fixed is None else fixed,
            start_steps=config.start_steps,
        )
        return DataPlan(config.unroll_steps, self.setup.num_streams, replay=replay)

    @property
    def updates(self) -> int:
        return self.trained.steps

    def configure(self, options: DDPGConfig) -> None:
        require_tunable(self.config, options, TUNABLE)
        self.config = options

    def update(self, batch: Rollout, env_steps: int) -> None:
        """Learns from what was drawn; takes the statistics of what is fresh."""
        if batch.replayed:
            self._learn(batch, env_steps)
        else:
            self._watch(self.ranks.whole(batch))
        self.version += 1

    # What is fresh

    @property
    def warming_up(self) -> bool:
        """Whether actions are uniform."""
        config = self.config
        few = self.collected_env_steps < config.replay_start_steps
        return few and config.warmup_policy == "uniform"

    def _watch(self, batch: Rollout) -> None:
        """Statistics of the actions that were executed, and of the observations."""
        self.collected_env_steps += int(batch.valid.sum())
        action = batch.action[batch.valid]
        if len(action):
            obs = {name: x[:-1][batch.valid] for name, x in batch.obs.items()}
            with torch.no_grad():
                q = self.network.critic(self.normalizer(obs), action)
                value = q * self.targets.numbers()[1] + self.targets.numbers()[0]
            a = action.double()
            count = a.new_tensor(float(len(a)))
            bound = (a.abs() > SATURATED).double()
            sums = (value.double(), a, a.square(), bound)
            self.collected += torch.stack((count, *(x.sum() for x in sums)))
        if self.normalizer.names and self.config.update_normalizers:
            self.normalizer.merge({k: x[:-1] for k, x in batch.obs.items()}, batch.valid)

    # What was drawn

    def _learn(self, batch: Rollout, env_steps: int) -> None:
        config = self.config
        if not self.has_reference:
            whole, (obs, action) = self.ranks.whole(batch), self.reference
            for name, x in obs.items():
                x.copy_(whole.obs[name][0])
            action.copy_(whole.action[0])
            self.has_reference = True
        own = self._transitions(batch)
        if config.noise.param and self.updates % config.adapt_interval_updates == 0:
            self._adapt({name: x[: len(own.action)] for name, x in own.obs.items()})
        if config.normalize_returns:
            target = self._known_targets(own)
            own = replace(own, target=target, spread=self.targets.numbers())
        step, epsilon = self.trained.memory_steps + 1, config.adam_epsilon
        factor = self.decay(schedules.linear(env_steps, self.setup.total_env_steps))
        self.rates = config.actor_lr * factor, config.critic_lr * factor
        actor, critic = (
            Descent(adam.rates(step, rate, epsilon), config.max_grad_norm) for rate in self.rates
        )
        self.trained.step(own, knobs_of(Knobs, config), actor, critic, follow=config.tau)
        self.trained.fold_when_due()

    def _transitions(self, batch: Rollout) -> Transitions:
        """This learner's columns as the loss reads them."""
        rows = batch.valid.shape[1]
        own = self.ranks.shard(batch)
        obs = self.normalizer({name: x.flatten(0, 1) for name, x in own.obs.items()})
        terminal = own.terminated
        if self.config.truncation_as_termination:
            terminal = terminal | own.truncated
        return Transitions(
            obs={name: x.contiguous() for name, x in obs.items()},
            action=own.action[0].contiguous(),
            reward=torch.where(own.valid, own.reward, 0.0),
            goes_on_t=(~terminal).float().contiguous(),
            not_cut_t=own.not_cut_t.contiguous(),
            target=None,
            spread=self.targets.numbers(),
            rows=rows,
        )

    def _known_targets(self, own: Transitions) -> Tensor:
        """Targets ``[B]`` by the old statistics, which then take in those of all ranks."""
        config = self.config
        numbers = torch.tensor([config.gamma, config.reward_scale], device=self.setup.device)
        target = self._target(own, numbers)
        if config.update_normalizers:
            self.targets.merge(self.ranks.gather(target).flatten())
        if config.popart:
            self._keep_values(own.spread)
        return target

    def _keep_values(self, before: Tensor) -> None:
        """Both critics' values become what they were when the targets had the spread `before`."""
        after = self.targets.numbers()
        for parameters in (self.trained.parameters, self.trained.averaged()):
            head = {name: parameters[f"{_CRITIC}head.{name}"] for name in ("weight", "bias")}
            rescale_({name: x.detach() for name, x in head.items()}, before, after)

    @torch.no_grad()
    def _adapt(self, obs: Obs) -> None:
        """Moves the size of parameter noise to where it moves actions as far as desired."""
        distance = self._distance(obs, int(torch.randint(2**53, (), generator=self.generator)))
        config = self.config
        self.param_scale.copy_(
            adapted(self.param_scale, distance, config.noise.param, config.param_noise_factor)
        )
        told = {"exploration/param_noise_distance": distance}
        self.trained.interval.add(Statistics(told))

    def _distance(self, obs: Obs, seed: int) -> Tensor:
        """How far a perturbation moves actions: root mean square, over all ranks."""
        actor = self._part(self.trained.parameters, _ACTOR)
        z = self._perturbation(actor, seed)
        moved = {name: x + self.param_scale * z[name] for name, x in actor.items()}
        ours, theirs = (functional_call(self.network.actor, x, (obs,)) for x in (actor, moved))
        squares = (ours - theirs).square().mean() / self.ranks.size
        return self.ranks.sum(squares).sqrt()

    def _perturbation(self, actor: Parameters, seed: int) -> Parameters:
        """Standard normal numbers for every weight, 0 for those that are never perturbed."""
        count = sum(x.numel() for x in actor.values())
        z = views_of(
            perturbation(count, seed).to(self.setup.device), {n: x.shape for n, x in actor.items()}
        )
        return {name: x * self.moved[_ACTOR + name] for name, x in z.items()}

    # The loss

    def _loss(
        self, parameters: Parameters, own: Transitions, knobs: Knobs
    ) -> tuple[Tensor, Statistics]:
        """``critic_loss_coef * mean(0.5 * (q - target)^2) + 0.5 * critic_l2_coef * sum(w^2)
        - mean(q of the policy's actions)``; the last is differentiated by the policy alone.
        """
        config, rows = self.config, len(own.action)
        actor, critic = self._part(parameters, _ACTOR), self._part(parameters, _CRITIC)
        obs = {name: x[:rows] for name, x in own.obs.items()}
        mean, std = own.spread.unbind()
        target = own.target
        if target is None:
            target = self._targets_of(
                own,
                torch.stack((torch.as_tensor(knobs.gamma), torch.as_tensor(knobs.reward_scale))),
            )
        q = functional_call(self.network.critic, critic, (obs, own.action))
        goal = (target - mean) / std
        if config.critic_huber_delta is None:
            error = value_losses.squared(q, goal)
        else:
            error = value_losses.huber(q, goal, knobs.critic_huber_delta)
        # Of several learners each divides as the whole batch is divided.
        critic_loss = knobs.critic_loss_coef * error.sum() / own.rows
        action = functional_call(self.network.actor, actor, (obs,))
        fixed = {name: x.detach() for name, x in critic.items()}
        chosen = functional_call(self.network.critic, fixed, (obs, action))
        actor_loss = -(chosen * std + mean).sum() / own.rows
        losses = {"loss/critic": critic_loss, "loss/actor": actor_loss}
        if config.critic_l2_coef > 0:
            squares = torch.stack([parameters[name].square().sum() for name in self.penalised])
            losses["loss/l2"] = 0.5 * knobs.critic_l2_coef * squares.sum() / self.ranks.size
        if config.check_numerics:
            found = {"q": q, "target": target, "action": action}
            diagnostics.require_finite(found | losses, self.updates)
        value = q * std + mean
        told = {
            "q/prediction_mean": value.sum() / own.rows,
            "q/target_mean": target.sum() / own.rows,
            "q/error_abs_mean": (value - target).abs().sum() / own.rows,
        }
        told |= fit(value, target, own.rows)
        return torch.stack([*losses.values()]).sum(), Statistics({**losses, **told})

    @torch.no_grad()
    def _targets_of(self, own: Transitions, numbers: Tensor) -> Tensor:
        """Targets ``[B]`` of row 0, in reward units after their scale: the n-step return, closed by
        the target networks' value of the target policy's action.

        numbers: gamma and the scale of rewards ``[2]``.
        """
        rows = len(own.action)
        gamma, scale = numbers.unbind()
        mean, std = own.spread.unbind()
        obs = {name: x[rows:] for name, x in own.obs.items()}
        averages = self.trained.averaged()
        actor, critic = self._part(averages, _ACTOR), self._part(averages, _CRITIC)
        action = functional_call(self.network.actor, actor, (obs,))
        v = functional_call(self.network.critic, critic, (obs, action)) * std + mean
        target = returns.n_step(
            scale * own.reward,
            gamma * own.goes_on_t,
            own.not_cut_t,
            v.view(-1, rows),
            n=None,
        )[0]
        low, high = self.config.return_range
        return target.clamp(low, high) if (low, high) != (-math.inf, math.inf) else target

    def _names(self, part: str) -> list[str]:
        return [name for name in self.trained.parameters if name.startswith(part)]

    def _part(self, parameters: Parameters, part: str) -> Parameters:
        """The parameters of one of the networks, by its own names."""
        return {name.removeprefix(part): parameters[name] for name in self._names(part)}

    # Reports

    def metrics(self) -> dict[str, float]:
        if self.trained.untold:
            self.trained.fold()
        config = self.config
        found = self.trained.interval.read()
        if "q/target_mean" in found:
            found = with_fit(found)
            del found["value/target_mean"]  # the same as q/target_mean
        found |= self._of_collected()
        found["optim/actor_learning_rate"], found["optim/critic_learning_rate"] = self.rates
        if config.noise.param:
            found["exploration/param_noise_std"] = self.param_scale.item()
        if config.normalize_returns:
            mean, std = self.targets.numbers().tolist()
            found |= {"normalizer/target_mean": mean, "normalizer/target_std": std}
        return found | diagnostics.observation_metrics(self.normalizer) | self._of_reference()

    def _of_collected(self) -> dict[str, float]:
        """Of all actions that were executed since the last report."""
        rows, value, *sums = self.collected.tolist()
        self.collected.zero_()
        if not rows or not math.isfinite(value):
            return {}
        mean, square, bound = (x / (rows * self.reference[1].shape[1]) for x in sums)
        return {
            "q/collected_mean": value / rows,
            "exploration/action_mean": mean,
            "exploration/action_std": math.sqrt(max(square - mean**2, 0.0)),
            "exploration/action_saturation_frac": bound,
        }

    @torch.no_grad()
    def _of_reference(self) -> dict[str, float]:
        """How the networks see a batch that stays the same."""
        if not self.has_reference:
            return {}
        obs, action = self.normalizer(self.reference[0]), self.reference[1]
        mean, std = self.targets.numbers().unbind()
        actor = self._part(self.trained.parameters, _ACTOR)
        ours = functional_call(self.network.actor, actor, (obs,))
        found = {
            "q": self.network.critic(obs, action) * std + mean,
            "actor_q": self.network.critic(obs, ours) * std + mean,
            "action": ours,
        }
        if self.config.noise.param:
            z = self._perturbation(actor, 0)
            moved = {name: x + self.param_scale * z[name] for name, x in actor.items()}
            found["perturbed_action"] = functional_call(self.network.actor, moved, (obs,))
        told = {}
        for name, x in found.items():
            told[f"reference/{name}_mean"] = x.mean().item()
            told[f"reference/{name}_std"] = x.std(correction=0).item()
        return told

    def histograms(self) -> dict[str, Tensor]:
        return {}

    # Weights and state

    def _told_to_actors(self) -> dict[str, Tensor]:
        return {PARAM_SCALE: self.param_scale, WARMING_UP: torch.tensor(self.warming_up)}

    def publication(self) -> Publication:
        return Publication(self.version, self.trained.published() | self._told_to_actors())

    def weights(self) -> dict[str, Tensor]:
        return self.trained.weights() | self._told_to_actors()

    def warm_start(self, weights: Mapping[str, Tensor]) -> None:
        self.trained.load_weights(weights)
        if not self.config.normalize_returns:  # the donor's critic may be in units of a spread
            before = self.targets.numbers()
            self.targets.reset()
            self._keep_values(before)
        # A donor without parameter noise has a scale of 0, which no factor would change.
        if self.config.noise.param and weights[PARAM_SCALE] > 0:
            self.param_scale.copy_(weights[PARAM_SCALE])

    def save(self) -> LearnerState:
        if self.trained.untold:
            self.trained.fold()
        tensors = self.trained.save() | {PARAM_SCALE: self.param_scale}
        tensors["generator"] = self.generator.get_state()
        obs, action = self.reference
        tensors |= {f"reference/obs/{name}": x for name, x in obs.items()}
        tensors["reference/action"] = action
        scalars = {
            "has_reference": self.has_reference,
            "updates": self.updates,
            "version": self.version,
            "actor_learning_rate": self.rates[0],
            "critic_learning_rate": self.rates[1],
            "collected_env_steps": self.collected_env_steps,
        }
        return LearnerState(tensors, scalars)

    def load(self, state: LearnerState, *, counters: bool = True) -> None:
        scalars: Any = state.scalars
        tensors = state.tensors
        self.trained.load(tensors, scalars["updates"] if counters else self.updates)
        self.param_scale.copy_(tensors[PARAM_SCALE])
        self.version = scalars["version"] if counters else self.version + 1
        self.rates = scalars["actor_learning_rate"], scalars["critic_learning_rate"]
        if counters:
            self.collected_env_steps = scalars["collected_env_steps"]
            self.generator.set_state(tensors["generator"])
            self.has_reference = scalars["has_reference"]
            obs, action = self.reference
            for name, x in obs.items():
                x.copy_(tensors[f"reference/obs/{name}"])
            action.copy_(tensors["reference/action"])
