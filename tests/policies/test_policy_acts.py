"""What an act of a policy costs: the action alone, on the run's threads."""

import numpy as np
import pytest
import torch
from small_run_helpers import SMALL, TOY

import quintet
from quintet.errors import ConfigError
from quintet.system.cpus import usable_cores


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("acts") / "run"
    return quintet.train("ppo", TOY, 64, run_dir=folder, config=SMALL)


def threads_of_acts(policy, monkeypatch):
    """The process's threads within acts, greedy, sampled and in an evaluation."""
    seen = []
    for actor in (policy.actor, policy.player):

        def spied(*given, act=actor.act):
            seen.append(torch.get_num_threads())
            return act(*given)

        monkeypatch.setattr(actor, "act", spied)
    for greedy in (True, False):
        policy.act(np.eye(3, dtype=np.float32), None, greedy)
    quintet.evaluate(policy, episodes=1)
    return set(seen)


def test_acts_use_the_threads_of_the_run_and_set_back_those_of_the_process(run, monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        for policy in (run.policy, quintet.load(run.run_dir), quintet.load(run.run_dir / "policy")):
            assert threads_of_acts(policy, monkeypatch) == {1}
        assert threads_of_acts(quintet.load(run.run_dir, threads=2), monkeypatch) == {2}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_threads_of_a_run_are_at_most_the_cores(run):
    about = {**run.policy.description, "threads": 4096}
    assert quintet.Policy(about, run.policy.publication).threads == usable_cores()
    del about["threads"]  # as an older version wrote it: a small network has one
    assert quintet.Policy(about, run.policy.publication).threads == 1
    for wrong in (0, True, 1.5, "2"):
        with pytest.raises(ConfigError, match="threads must be a whole number from 1"):
            quintet.load(run.run_dir, threads=wrong)


def test_other_threads_make_no_other_policy(run, capfd):
    """The weights of the final policy stay as they are."""
    weights = (run.run_dir / "policy" / "policy.safetensors").read_bytes()
    more = {**SMALL, "runtime.actor_threads": 2, "report.progress": True}
    quintet.train("ppo", TOY, 64, run_dir=run.run_dir, config=more)
    said = capfd.readouterr().out
    assert "is finished" in said
    assert (run.run_dir / "policy" / "policy.safetensors").read_bytes() == weights


def test_an_act_computes_neither_value_nor_probability(run, monkeypatch):
    policy = quintet.load(run.run_dir)
    family, network = type(policy.actor.family), policy.actor.network

    def refused(*_):
        raise AssertionError("nobody asked for it")

    for name in ("log_prob", "entropy"):
        monkeypatch.setattr(family, name, refused)
    monkeypatch.setattr(network, "forward", refused)
    monkeypatch.setattr(network.value_head, "forward", refused)
    for greedy in (True, False):
        policy.act(np.eye(3, dtype=np.float32)[0], None, greedy)
