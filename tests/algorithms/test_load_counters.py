"""A learner takes the model and the optimizer of another and remains itself: its counters, its
generators and its fixed reference batch stay."""

import pytest
import torch
from conformance_helpers import Case, copied, go_on

from quintet.algorithms import registry

COUNTS = {"updates", "version", "collected_env_steps"}
OWN = ("shuffle", "generator", "reference/", "largest_reward")
OPTIONS = {
    "ppo": {"reward_normalizer": "step_std"},
    "impala": {"optimizer": "adam"},
    "ddpg": {"normalize_returns": True, "popart": True},
}


@pytest.mark.parametrize("algo", registry.LEARNERS.names())
def test_model_and_optimizer_come_without_the_counters(algo: str) -> None:
    case = Case(algo, options=OPTIONS.get(algo, {}))
    batches = case.batches(6)
    donor, own = case.learner(seeds=(5, 6)), case.learner(seeds=(7, 8))
    go_on(donor, batches[:5])
    go_on(own, batches[5:])
    given, before = copied(donor.save()), copied(own.save())
    counts = {name: before.scalars[name] for name in COUNTS & before.scalars.keys()}
    assert "updates" in counts
    assert all(given.scalars[name] > count for name, count in counts.items())
    mine = {name for name in before.tensors if name.startswith(OWN)}
    same = {n for n, x in before.tensors.items() if torch.equal(x, given.tensors[n])}
    assert not same & mine
    assert any("optimizer" in name for name in before.tensors.keys() - same)
    own.load(given, counters=False)
    after = copied(own.save())
    if "version" in counts:
        counts["version"] += 1  # rows that the former weights acted are older
    for name, x in after.scalars.items():
        assert x == (counts[name] if name in COUNTS else given.scalars[name]), name
    assert own.publication().version == own.version
    for name, x in after.tensors.items():
        source = before if name in mine else given
        assert torch.equal(x, source.tensors[name]), name
    go_on(own, batches[:1])
    assert own.updates > counts["updates"]
    own.load(given)
    whole = own.save()
    assert whole.scalars == given.scalars
    assert all(torch.equal(x, given.tensors[name]) for name, x in whole.tensors.items())
