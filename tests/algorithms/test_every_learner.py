"""What every learner of the registry keeps to: saving, warm starts, reports, evaluation, ranks,
resumed runs.
"""

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from conformance_helpers import (
    LEARNERS,
    MASKED,
    PLUGINS,
    STREAMS,
    Case,
    Run,
    everything,
    gated,
    go_on,
    learn,
    switches,
    weights,
)
from rank_threads_helpers import RankThreads

import quintet
from quintet.algorithms import registry
from quintet.algorithms.parts import policy_probe
from quintet.errors import ConfigError, NonFiniteError
from quintet.observe.metrics import describe
from quintet.types import LearnerState

CASES = {name: case for algo in LEARNERS for name, case in switches(algo).items()}
GATED = [
    pytest.param(case, marks=pytest.mark.slow if "=" in name or case.algo in PLUGINS else ())
    for name, case in CASES.items()
]
"""The same; switches one by one are slow, as most of them are in the combinations too."""
DEFAULTS = [Case(algo) for algo in LEARNERS]
WITH_STATISTICS = [
    *DEFAULTS,
    *(
        Case(algo, MASKED, {"normalize_observations": True}, core="gru")
        for algo, entry in LEARNERS.items()
        if "normalize_observations" in entry.config.model_fields and "model.core" not in entry.needs
    ),
]
TOGETHER = [case for name, case in CASES.items() if " together " in name]


def by_case(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", gated(cases, lambda case: case.algo), ids=of)


def of(case: Case) -> str:
    return f"{case.algo}-{case.core}"


def saved(learner: Any) -> LearnerState:
    """A copy, for the learner's own goes on changing; scalars as JSON gives them back."""
    state = learner.save()
    return LearnerState(copy.deepcopy(state.tensors), json.loads(json.dumps(state.scalars)))


@by_case(DEFAULTS)
def test_an_update_that_spoils_the_weights_is_told_at_once(case: Case) -> None:
    """So that they never act, and the batch that is kept is the one."""
    learner = case.learner()
    good, (fresh, *drawn) = case.batches(2)
    go_on(learner, [good])
    bad = drawn[0] if drawn else fresh
    with pytest.raises(NonFiniteError):
        learner.update(replace(bad, reward=torch.full_like(bad.reward, torch.nan)), 500)


@pytest.mark.parametrize("case", GATED, ids=CASES)
def test_options_may_change_during_a_run(case: Case) -> None:
    """As in a population, which works with every learner."""
    learner = case.learner()
    options = learner.config.model_copy()
    learner.configure(options)
    assert learner.config is options


# Saving


@pytest.mark.parametrize("case", GATED, ids=CASES)
def test_a_loaded_learner_goes_on_with_the_same_bytes(case: Case) -> None:
    first, second, third = case.batches(3)
    learner = case.learner()
    before = weights(learner).clone()
    go_on(learner, [first, second])
    state = saved(learner)
    go_on(learner, [third], 1_000)
    assert not torch.equal(weights(learner), before)
    other = case.learner(seeds=(7, 8))
    go_on(other, [third], 3_000)  # whatever it did before must leave no trace
    other.load(state)
    assert everything(other) != everything(learner)
    go_on(other, [third], 1_000)
    assert everything(other) == everything(learner)
    assert (other.updates, other.version) == (learner.updates, learner.version)


@by_case(WITH_STATISTICS)
def test_every_part_of_the_state_is_taken(case: Case) -> None:
    learner = case.learner()
    go_on(learner, case.batches(1))
    state, own = saved(learner), everything(learner)
    for name in (*state.tensors, *state.scalars):
        damaged = copy.deepcopy(state)
        if name in damaged.scalars:
            damaged.scalars[name] += 1  # type: ignore[operator]
        elif damaged.tensors[name].dtype == torch.uint8:  # of a generator
            damaged.tensors[name] = torch.Generator().manual_seed(5).get_state()
        else:
            damaged.tensors[name] += 1
        other = case.learner()
        other.load(damaged)
        changed = {key for key, x in everything(other).items() if x != own[key]}
        assert changed == {name}


@by_case(WITH_STATISTICS)
def test_a_warm_start_takes_the_weights_and_nothing_else(case: Case) -> None:
    batches = case.batches(3)
    donor, learner, fresh = case.learner(seeds=(7, 8)), case.learner(), case.learner()
    go_on(donor, batches)
    given = donor.weights()
    assert set(donor.publication().tensors) <= set(given)
    learner.warm_start(given)
    assert (learner.updates, learner.version) == (0, 0)
    own, theirs, found = everything(fresh), everything(donor), everything(learner)
    assert found == {name: (theirs if name in given else own)[name] for name in own}
    # What was derived of the weights and statistics is theirs too.
    same = case.learner()
    state = fresh.save()
    same.load(LearnerState({**state.tensors, **given}, state.scalars))
    for each in (learner, same):
        go_on(each, batches[:1])
    assert everything(learner) == everything(same)
    assert not torch.equal(weights(donor), weights(learner))


# Acting


def acted(case: Case, actor: Any, batch: Any, noise: torch.Tensor | None) -> Mapping[str, Any]:
    obs = {name: x[0] for name, x in batch.obs.items()}
    out = actor.act(obs, actor.initial_state(STREAMS), batch.is_first[0], noise)
    return {"action": out.action, "env_action": out.env_action, **out.record, **out.state}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(x, other[k]) for k, x in one.items())


@by_case(WITH_STATISTICS)
def test_an_actor_copies_what_is_published(case: Case) -> None:
    learner, batches = case.learner(), case.batches(3)
    actor, other = case.actor(), case.actor()
    batch = batches[0][0]
    noise = actor.draw_noise(1, STREAMS, torch.Generator().manual_seed(0))[0]
    go_on(learner, batches[:1])
    actor.load(learner.publication())
    before = acted(case, actor, batch, noise)
    assert {name: x.shape[1:] for name, x in before.items() if name in actor.record_specs} == {
        name: spec.shape for name, spec in actor.record_specs.items()
    }
    go_on(learner, batches[1:])
    assert same(acted(case, actor, batch, noise), before)
    other.load(learner.publication())
    assert not same(acted(case, other, batch, noise), before)


class Evaluated(Run):
    """A run whose own actors act greedily between updates, on all that was collected."""

    def iterate(self) -> Any:
        found, batches = super().iterate()
        for actor in self.actors:
            state = actor.initial_state(STREAMS)
            for t, is_first in enumerate(batches[0].is_first):
                obs = {name: x[t] for name, x in batches[0].obs.items()}
                state = actor.act(obs, state, is_first, None).state
        return found, batches


@by_case(WITH_STATISTICS)
def test_evaluation_changes_nothing(case: Case) -> None:
    runs = [kind(case, case.learner()) for kind in (Run, Evaluated)]
    for _ in range(2):
        (told, batches), (told_too, batches_too) = (run.iterate() for run in runs)
        assert told == told_too
        assert torch.equal(batches[0].action, batches_too[0].action)
    assert everything(runs[0].learner) == everything(runs[1].learner)


# Reports


@by_case([*WITH_STATISTICS, *TOGETHER])
def test_metrics_are_declared_and_finite_and_of_what_came_since(case: Case) -> None:
    first, second = case.batches(2)
    learner, other = case.learner(), case.learner()
    learn(learner, first)
    other.load(saved(learner))
    found = learn(learner, second)
    assert found.keys() >= {"loss/policy", "loss/value"} or any("loss/" in name for name in found)
    for name, x in found.items():
        assert describe(name) is not None, name
        assert torch.tensor(x).isfinite(), name
    for name in learner.histograms():
        assert name.startswith("histogram/")
    go_on(other, [second])
    assert dict(other.metrics()) == found
    assert not [name for name in learner.metrics() if name.startswith("loss/")]


LOOKS = {*policy_probe.DISTRIBUTION, *policy_probe.CHANGES}
"""Metrics of one batch between two reports."""


@by_case(DEFAULTS)
def test_losses_are_means_and_extremes_such_over_all_steps_since_they_were_asked_for(
    case: Case,
) -> None:
    """Of several updates, each of as many steps as it takes; the last is of few rows, which are no
    extremes.
    """
    *batches, last = case.batches(3)
    batches.append(
        [replace(x, valid=x.valid & (torch.arange(len(x.valid)) < 1)[:, None]) for x in last]
    )
    apart, together = case.learner(), case.learner()
    told, steps = [], []
    for each in batches:
        before = apart.updates
        told.append(learn(apart, each))
        steps.append(apart.updates - before)
    found = learn(together, [batch for each in batches for batch in each])
    expected, earlier = {}, []
    for name in found.keys() - LOOKS:
        values = [x[name] for x in told if name in x]  # some are not told every time
        if name.startswith("loss/") and "_abs" not in name and "_last" not in name:
            expected[name] = sum(x * k for x, k in zip(values, steps, strict=True)) / sum(steps)
        elif (
            name not in LOOKS
            and name.startswith("policy/")
            and name.endswith(("_max", "_max_error", "_min"))
        ):
            expected[name] = min(values) if name.endswith("_min") else max(values)
            earlier.append(expected[name] != values[-1])
    assert expected
    assert not earlier or any(earlier)
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-9)


# Several learners


SHARING = [name for name, entry in LEARNERS.items() if entry.shared]


@pytest.mark.parametrize(
    "case",
    [
        *(param for param, case in zip(GATED, CASES.values(), strict=True) if case.algo in SHARING),
        *gated(
            (case for case in WITH_STATISTICS if case.algo in SHARING and case.core != "none"),
            lambda case: case.algo,
        ),
    ],
    ids=lambda case: f"{case.algo} {case.core} {case.options}",
)
def test_ranks_are_equal_to_the_bit_and_one_learner_to_the_last_digits(case: Case) -> None:
    batches, one = case.batches(2), case.learner()
    try:
        threads = RankThreads(2, lambda ranks: case.learner(ranks=ranks))
    except ConfigError as refused:
        if not case.options or "must have runtime.num_learners=1" not in str(refused):
            raise
        pytest.skip("one learner only, as it says")
    for i, each in enumerate(batches):
        for batch in each:
            told = threads.update(batch, 500 * i)  # which finds the same reports on all
            assert told == pytest.approx(learn(one, [batch], 500 * i), rel=2e-5, abs=2e-6)
    first, second = map(everything, threads.learners)
    assert first == second
    assert (weights(one) - weights(threads.learners[0])).abs().max() < 1e-5


# Whole runs


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in LEARNERS.items():
        monkeypatch.setitem(registry.LEARNERS.loaded, name.replace(" ", "_"), entry)


def last_state(run: Path) -> str:
    newest = max((run / "checkpoints").iterdir())
    return sha256((newest / "learner.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("core", ["none", pytest.param("gru", marks=pytest.mark.slow)])
@pytest.mark.parametrize("algo", gated(LEARNERS))
def test_a_resumed_run_has_the_bytes_of_one_that_was_not_interrupted(
    algo: str, core: str, registered: None, tmp_path: Path
) -> None:
    """6 streams: at the checkpoints, columns of some learners wait for the next batch."""
    if core != "none" and "model.core" in LEARNERS[algo].needs:
        pytest.skip(f"{algo} has no memory")
    case = Case(algo, core=core)
    config: dict[str, Any] = {
        **{name: getattr(case.config, name) for name in case.config.model_fields_set},
        "preset": "none",
        "runtime.kind": "serial",
        "env.num_streams": 6,
        "env.backend": "gymnasium",
        "eval.episodes": 0,
        "report.progress": False,
        "checkpoint.interval_iterations": 4,
        "checkpoint.keep": 100,
        "checkpoint.max_cut_frac": 1.0,
        "model.core": core,
        "model.policy_hidden": (8, 8),
    }
    env = "CartPole-v1"
    if not LEARNERS[algo].acts_in(gymnasium.spaces.Discrete(2)):
        env = "Pendulum-v1"
    budget, run = 7 * 6 * case.config.unroll_steps + 5, tmp_path / "run"
    name = algo.replace(" ", "_")
    whole = quintet.train(name, env, budget, 1, run, config)
    assert whole.metrics["env_steps"] == budget
    expected = last_state(run)
    for newer in sorted((run / "checkpoints").iterdir())[1:]:
        shutil.rmtree(newer)
    shutil.rmtree(run / "policy")
    resumed = quintet.train(name, env, budget, 1, run, config)
    assert last_state(run) == expected
    assert resumed.metrics["updates"] == whole.metrics["updates"] > 5
