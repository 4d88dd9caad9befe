"""Extra statistics of a policy's distribution, on one batch between two reports.

They cost one or two forwards, so updates do not compute them: the spread of the distribution, and
the distance of policy and value from those that acted. Where an actor does not record its
distribution or its value, the weights that act next are kept until their rows arrive.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from quintet.algorithms.parts.acting import SamplingActor, masked
from quintet.algorithms.parts.statistics import Interval, Statistics
from quintet.models.build import ActorCritic
from quintet.ops.discrete import Bernoulli, Categorical
from quintet.ops.distributions import Family, leaf_families
from quintet.ops.gaussian import DiagGaussian
from quintet.system.transfer import places_of, rows_at
from quintet.types import Obs, Publication, Rollout, State

DISTRIBUTION = (
    *(f"policy/{name}_{what}" for name in ("mean", "std") for what in ("mean", "min", "max")),
    *(f"policy/mode_probability_{what}" for what in ("mean", "min", "max")),
    "policy/entropy_min",
    "policy/entropy_max",
    "policy/mode_saturation_frac",
)
"""Metrics of the policy's distribution."""

KL = "policy/kl"

CHANGES = (KL, "policy/logp_abs_max")
"""Metrics of the distribution that acted, and of the policy's distance from it."""

_AT_BOUND = 0.99
"""Size from which on an action in [-1, 1] counts as one at a bound."""

VALUE_CHANGES = ("value/change_mean", "value/change_max")

MASKED = -1e8
"""Lower bound of the logits of allowed choices."""


Network = Callable[[Obs, State, Tensor], tuple[Tensor, Tensor, State]]
"""An `ActorCritic`, or a network of which only the policy is used: parameters of the distribution,
values or another output, and the state, from observations, state and ``is_first``.
"""


class PolicyAndValue(NamedTuple):
    """Parameters of the distribution, masked, and values of rows ``[N]``; None: not known."""

    params: Tensor
    value: Tensor | None


@final
class PolicyProbe:
    """Makes one look after every report, at the first fresh batch that serves.

    due: whether there was no look since the last report.
    """

    def __init__(
        self,
        family: Family,
        network: Network,
        normalize: Callable[[Obs], Obs],
        interval: Interval,
        reported: Iterable[str] = (),
        make_past: Callable[[], SamplingActor] | None = None,
    ):
        """network, normalize: of the learner; the value of an `ActorCritic` is looked at too.
        reported: names of metrics that the learner reports by itself.
        make_past: makes an actor that can hold the weights that acted; None: what a look needs of
            them is recorded.
        """
        self.family, self.network, self.normalize = family, network, normalize
        self.reported, self.make_past = frozenset(reported), make_past
        self.interval, self.due = interval, True
        self._past: SamplingActor | None = None
        self._waits_for: int | None = None  # the version that is kept

    @property
    def at_work(self) -> bool:
        """Whether `after` may have work to do."""
        return self.due or self._waits_for is not None

    def after(
        self, batch: Rollout, version: int, weights: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        """Looks at a fresh batch after it was learned from, if a look is due.

        version, weights: of the policy that acts from now on.
        """
        if not self.at_work:
            return
        valid = batch.on_cpu("valid")
        if self._waits_for is not None and valid.any():
            versions = batch.on_cpu("version")
            acted = valid & (versions == self._waits_for)
            if acted.any():
                use = places_of(acted, batch.valid.device)
                assert self._past is not None
                past = self._past
                then = self._forward(batch, use, past.network, past.normalizer)
                now = self._forward(batch, use, self.network, self.normalize)
                self._add_changes(rows_at(batch.action, use), then, now)
                self._waits_for = None
            elif versions[valid].min() > self._waits_for:  # none acted with that version
                self._waits_for = None
        if not self.due or not valid.any():
            return
        self.due = False
        use = places_of(valid, batch.valid.device)
        now = self._forward(batch, use, self.network, self.normalize)
        self.interval.add(distribution_statistics(self.family, now.params))
        if self.make_past is None:
            record = batch.record
            value = rows_at(record["value"], use) if "value" in record else None
            then = PolicyAndValue(rows_at(record["params_mu"], use), value)
            self._add_changes(rows_at(batch.action, use), then, now)
            return
        if self._waits_for is not None:
            return
        if self._past is None:
            self._past = self.make_past()
        self._past.load(Publication(version, weights()))
        self._waits_for = version

    def begin(self) -> None:
        """Requests the next look; called at a report."""
        self.due = True

    def forget(self) -> None:
        """Does what `begin` does and drops a look that waits for rows; called at a checkpoint and
        at a resume, so that both runs report the same afterwards.
        """
        self.due, self._waits_for = True, None

    def _add_changes(self, action: Tensor, then: PolicyAndValue, now: PolicyAndValue) -> None:
        changes = change_statistics(self.family, action, then, now)
        means, greatest = (
            {name: x for name, x in part.items() if name not in self.reported}
            for part in (changes.means, changes.greatest)
        )
        self.interval.add(Statistics(means, greatest=greatest))

    @torch.no_grad()
    def _forward(
        self, batch: Rollout, use: Tensor, network: Network, normalize: Callable[[Obs], Obs]
    ) -> PolicyAndValue:
        """Computes the network's outputs of the rows at the places to `use` ``[N]``."""
        obs = {name: x[:-1].flatten(0, 1) for name, x in batch.obs.items()}
        state = {name: x[0] for name, x in batch.state.items()}
        params, value, _ = network(normalize(obs), state, batch.is_first[:-1].flatten())
        kept = value.index_select(0, use) if isinstance(network, ActorCritic) else None
        return PolicyAndValue(masked(self.family, params, obs).index_select(0, use), kept)


@torch.no_grad()
def distribution_statistics(family: Family, params: Tensor) -> Statistics:
    """Statistics of distributions ``[N, P]``: entropies; for Gaussians means and standard
    deviations, in units of half the action range and before a tanh of the sample, and the share of
    likeliest actions at a bound; for choices the probability of the likeliest.
    """
    values: dict[str, Tensor] = {}
    shares: dict[str, Tensor] = {}
    split = _leaves(family, params)
    own = [(leaf, x) for leaf, x in split if isinstance(leaf, DiagGaussian)]
    gaussian = [leaf.mean_and_log_std(x) for leaf, x in own]
    modes = [x for leaf, p in own for x in _bounded_modes(leaf, p)]
    if modes:
        shares["policy/mode_saturation_frac"] = (
            (torch.cat(modes, -1).abs() >= _AT_BOUND).float().mean()
        )
    if gaussian:
        values["policy/mean"] = torch.cat([mean for mean, _ in gaussian], -1)
        values["policy/std"] = torch.cat([log_std.exp() for _, log_std in gaussian], -1)
    choices = [x for x in (_log_probabilities(*each) for each in split) if x is not None]
    if choices:
        values["policy/mode_probability"] = torch.cat([x.amax(-1).exp() for x in choices], -1)
    entropy = family.entropy(params)
    return Statistics(
        {f"{name}_mean": x.mean() for name, x in values.items()} | shares,
        {f"{name}_min": x.min() for name, x in values.items()}
        | {"policy/entropy_min": entropy.min()},
        {f"{name}_max": x.max() for name, x in values.items()}
        | {"policy/entropy_max": entropy.max()},
    )


@torch.no_grad()
def change_statistics(
    family: Family, action: Tensor, then: PolicyAndValue, now: PolicyAndValue
) -> Statistics:
    """Statistics of the distance of the policy `now` from the policy `then`, which took the actions
    ``[N, ...]``.
    """
    choices = [_log_probabilities(*each) for each in _leaves(family, then.params)]
    allowed = [torch.where(x > MASKED, x.abs(), 0.0).max() for x in choices if x is not None]
    if not allowed:
        allowed = [family.log_prob(then.params, action).abs().max()]
    means = {KL: family.kl(then.params, now.params).mean()}
    greatest = {"policy/logp_abs_max": torch.stack(allowed).max()}
    if then.value is not None and now.value is not None:
        change = (now.value - then.value).abs()
        means["value/change_mean"], greatest["value/change_max"] = change.mean(), change.max()
    return Statistics(means, greatest=greatest)


def _leaves(family: Family, params: Tensor) -> list[tuple[Family, Tensor]]:
    """The innermost families, each with its parameters."""
    leaves = leaf_families(family)
    parts = torch.split(params, [leaf.param_size for leaf in leaves], -1)
    return list(zip(leaves, parts, strict=True))


def _bounded_modes(leaf: DiagGaussian, params: Tensor) -> list[Tensor]:
    """The likeliest actions ``[N, n]`` of the n dimensions with bounds, which are -1 and 1."""
    mode = leaf.mode(params)
    places = [
        i for i, ends in enumerate(zip(leaf.low, leaf.high, strict=True))
        if all(map(math.isfinite, ends))
    ]  # fmt: skip
    mode = mode.tanh() if leaf.squash == "action" else mode
    return [mode if len(places) == leaf.size else mode[..., places]] if places else []


def _log_probabilities(leaf: Family, params: Tensor) -> Tensor | None:
    """Log-probabilities of every choice ``[N, choices, options]``; None: the leaf has none."""
    if isinstance(leaf, Categorical):
        return params.log_softmax(-1).unsqueeze(-2)
    if isinstance(leaf, Bernoulli):
        return logsigmoid(torch.stack((params, -params), -1))
    return None
