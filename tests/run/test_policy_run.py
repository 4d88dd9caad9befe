"""Two policies in the same streams, through `launch`: each has its learner, its counters, its part
of the folder, of checkpoints and of reports."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run_helpers import newest

import quintet
from quintet.algorithms.parts.acting import SamplingActor
from quintet.algorithms.ppo.learner import PPOLearner
from quintet.checkpoints import checkpoint
from quintet.commands import cli
from quintet.errors import ConfigError, NonFiniteError
from quintet.observe.report_files import read_metrics
from quintet.options.layers import Layer
from quintet.options.saved import load_config
from quintet.run import launch
from quintet.run.launch import Result
from quintet.run.trainer import Trainer
from quintet.runtime.batch import select
from quintet.runtime.delivery import Batch
from quintet.runtime.sampler import GroupSampler
from quintet.types import Rollout

ENV = "quintet.envs.toy:Contextual"
SMALL = {
    "env.id": ENV,
    "env.num_streams": 6,
    "env.streams_per_group": 2,  # 3 groups, which two policies can't share out
    "unroll_steps": 16,
    "minibatch_steps": 32,
    "num_epochs": 2,
    "learning_rate": 3e-3,
    "lr_schedule": "constant",
    "eval.episodes": 2,
    "eval.interval": 1000,
    "report.interval_s": 0.0,
    "report.sinks": ["jsonl", "csv"],
    "report.progress": False,
    "checkpoint.interval_iterations": 5,
    "checkpoint.max_cut_frac": 1.0,
    "checkpoint.keep": 100,
}
TOTAL = 3_003
KINDS = {
    "serial": {"runtime.kind": "serial"},
    "lockstep": {"runtime.kind": "lockstep", "runtime.num_workers": 2, "runtime.lag": 1},
    "async": {"runtime.kind": "async", "runtime.num_workers": 2},
    "groups": {"runtime.kind": "serial", "env.streams_per_group": 3},
    "groups lockstep": {
        "runtime.kind": "lockstep",
        "runtime.num_workers": 2,
        "runtime.lag": 0,
        "env.streams_per_group": 3,
    },
    "groups async": {
        "runtime.kind": "async",
        "runtime.num_workers": 2,
        "runtime.inference": "server",
        "env.streams_per_group": 3,
    },
}


def run(
    folder: Path,
    total: int = TOTAL,
    second: float = 1e-3,
    on_report: Any = None,
    policies: int = 2,
    **config: Any,
) -> Result:
    """`second`: learning rate of all policies but the first."""
    options = {name.replace("__", "."): value for name, value in config.items()}
    given = {"run_dir": str(folder), "total_env_steps": total, "seed": 5}
    given |= {"population.size": policies}
    if policies > 1:
        rates = {"learning_rate": [3e-3] + [second] * (policies - 1)}
        given |= {"population.pbt": False, "population.initial": rates}
    loaded = load_config("ppo", [], Layer("call", SMALL | given | options))
    return launch.run(loaded, on_report)


def best(folder: Path, policy: int) -> Path:
    return folder / f"policy_{policy}" / "best"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A finished run of each kind, made once."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind) / "run"
            assert run(folder, **KINDS[kind]).status == "finished"
            made[kind] = folder
        return made[kind]

    return make


kinds = pytest.mark.parametrize(
    "kind",
    [
        kind if kind == "groups" else pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
        if kind != "groups lockstep"
    ],
)


@kinds
def test_counters_of_all_policies_add_up_to_the_budget(whole, kind):
    meta = newest(whole(kind)).meta
    run_, (first, second) = meta["counters"], [each["counters"] for each in meta["policies"]]
    assert run_["env_steps"] == TOTAL == first["env_steps"] + second["env_steps"]
    assert run_["iteration"] == first["iterations"] + second["iterations"]
    assert run_["ended_episodes"] == first["ended_episodes"] + second["ended_episodes"]
    known = run_["env_steps"] + run_["discarded_env_steps"] + run_["waiting_env_steps"]
    assert run_["executed_env_steps"] == known
    assert min(first["env_steps"], second["env_steps"]) > TOTAL / 4
    assert min(first["ended_episodes"], second["ended_episodes"]) > TOTAL / 10 / 4


@kinds
def test_every_policy_reports_under_its_prefix(whole, kind):
    reports = read_metrics(whole(kind))
    last, seen = reports[-1], {name for report in reports for name in report}
    for policy, rate in ((0, 3e-3), (1, 1e-3)):
        start = f"policy_{policy}/"
        own = {name.removeprefix(start) for name in seen if name.startswith(start)}
        assert {"episode/return_mean", "policy_lag/max", "eval/return_mean", "loss/total"} <= own
        rates = {r[f"{start}optim/learning_rate"] for r in reports if f"{start}loss/total" in r}
        assert {round(x, 6) for x in rates} == {rate}
        assert last[f"{start}eval/return_mean"] > 6  # a random policy has 3.3
    assert last["policy_0/env_steps"] + last["policy_1/env_steps"] == last["env_steps"] == TOTAL
    assert last["policy_0/iterations"] + last["policy_1/iterations"] == last["iterations"]
    assert not {"updates", "episode/return_mean", "eval/return_mean", "loss/total"} & seen
    # an episode is reported once, by the policy that played it
    counted = sum(r.get(f"policy_{k}/episode/count", 0) for r in reports for k in range(2))
    assert counted == newest(whole(kind)).meta["counters"]["ended_episodes"]


@kinds
def test_every_policy_has_a_best_and_a_final_one_in_its_own_folder(whole, kind, capsys):
    folder = whole(kind)
    assert not (folder / "best").exists()
    final = [quintet.load(folder / f"policy_{k}" / "policy") for k in range(2)]
    for k, policy in enumerate(final):
        held = newest(folder)
        weights = policy.publication.tensors
        assert all(torch.equal(weights[n], x) for n, x in held.tensors[f"policy_{k}"].items())
        assert policy.publication.version == held.meta["policies"][k]["version"]
        assert quintet.load(best(folder, k)).publication.version <= policy.publication.version
        assert policy.description["learner"]["learning_rate"] == (3e-3, 1e-3)[k]
    a, b = (policy.publication.tensors for policy in final)
    assert not any(torch.equal(a[name], b[name]) for name in a if name.endswith("weight"))
    assert cli.main(["eval", str(folder / "policy_1/policy"), "--episodes", "2"]) == 0
    ahead = quintet.load(folder).publication.tensors
    assert any(all(torch.equal(ahead[n], x) for n, x in own.items()) for own in (a, b))


@pytest.mark.parametrize(
    "kind",
    [
        "groups",
        pytest.param("serial", marks=pytest.mark.slow),
        pytest.param("lockstep", marks=pytest.mark.slow),
    ],
)
def test_both_policies_go_on_with_the_same_bytes(whole, tmp_path, kind):
    begun = tmp_path / "run"
    shutil.copytree(whole(kind), begun)
    for each in sorted((begun / "checkpoints").iterdir())[2:]:
        shutil.rmtree(each)
    run(begun, **KINDS[kind])
    one, other = newest(whole(kind)), newest(begun)
    # Also of columns that waited at the checkpoint, and were given up.
    assert one.meta["counters"] == other.meta["counters"]
    assert {"policy_0", "learner_0", "policy_1", "learner_1"} == set(other.tensors)
    assert checkpoint.tensor_hashes(one) == checkpoint.tensor_hashes(other)
    for a, b in zip(one.meta["policies"], other.meta["policies"], strict=True):
        assert (a["counters"], a["learner"], a["best"]) == (b["counters"], b["learner"], b["best"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_goes_on(tmp_path, kind):
    seen: list[dict[str, float]] = []

    def stop(report: dict[str, float]) -> bool:
        seen.append(report)
        return report["env_steps"] > TOTAL / 2

    assert run(tmp_path, on_report=stop, **KINDS[kind]).status == "stopped"
    before = [each["counters"] for each in newest(tmp_path).meta["policies"]]
    assert sum(each["env_steps"] for each in before) == seen[-1]["env_steps"] < TOTAL
    assert run(tmp_path, **KINDS[kind]).status == "finished"
    after = newest(tmp_path).meta["policies"]
    assert sum(each["counters"]["env_steps"] for each in after) == TOTAL
    for a, b in zip(before, after, strict=True):
        assert b["counters"]["iterations"] > a["iterations"] > 0
    reports = read_metrics(tmp_path)
    for name in ("policy_0/updates", "policy_1/updates", "policy_1/env_steps"):
        counted = [report[name] for report in reports]
        assert counted == sorted(counted)


def test_other_policies_than_those_of_the_folder_are_refused(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole("serial"), folder)
    for policies in (1, 3):
        says = f"population.size: the run has 2, this command has {policies}"
        with pytest.raises(ConfigError, match=says):
            run(folder, 2 * TOTAL, policies=policies, **KINDS["serial"])
    alone = tmp_path / "alone"
    run(alone, 256, policies=1, **KINDS["serial"])
    with pytest.raises(ConfigError, match=r"population\.size: the run has 1, this command has 2"):
        run(alone, 512, **KINDS["serial"])


@pytest.mark.slow
def test_options_that_were_replaced_are_the_policys_from_then_on(tmp_path, monkeypatch):
    """As a population does it; what is stored and gone on with is what was in force."""
    whole = Trainer.after_iteration

    def replacing(self: Trainer, batch: Batch) -> bool:
        policy = self.policies[1]
        if self.counters.iteration == 4:
            policy.configure(policy.config.learner.model_copy(update={"learning_rate": 5e-4}))
        return whole(self, batch) or self.counters.iteration == 8

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "after_iteration", replacing)
        assert run(tmp_path, **KINDS["serial"]).status == "stopped"
    saved = [
        each["policy"]["learner"]["learning_rate"] for each in newest(tmp_path).meta["policies"]
    ]
    assert saved == [3e-3, 5e-4]
    run(tmp_path, **KINDS["serial"])
    name = "policy_1/optim/learning_rate"
    rates = [round(report[name], 6) for report in read_metrics(tmp_path) if name in report]
    assert rates == sorted(rates, reverse=True)
    assert set(rates) == {1e-3, 5e-4}
    final = quintet.load(tmp_path / "policy_1/policy")
    assert final.description["learner"]["learning_rate"] == 5e-4


def test_several_learners_share_batches_of_one_policy_alone(tmp_path):
    given = {"algo": "impala", "env.id": ENV, "runtime.num_learners": 2, "run_dir": str(tmp_path)}
    given |= {"runtime.kind": "serial", "population.size": 2}
    says = r"runtime\.num_learners=2 has no effect without population\.size=1"
    with pytest.raises(ConfigError, match=says):
        load_config("impala", [], Layer("call", given))


def test_a_lost_best_of_one_policy_is_said_and_the_others_stay(tmp_path, capsys):
    often = KINDS["serial"] | {"checkpoint.interval_iterations": 1}
    run(tmp_path, 1_000, **often)
    before = [checkpoint.tensor_hashes(checkpoint.read(best(tmp_path, k))) for k in range(2)]
    assert before[0] != before[1]
    (best(tmp_path, 1) / "policy.safetensors").write_bytes(b"")
    run(tmp_path, 1_000, **often)
    said = capsys.readouterr().err
    assert said.count("the best policy is lost") == 1
    assert str(best(tmp_path, 1)) in said
    assert checkpoint.tensor_hashes(checkpoint.read(best(tmp_path, 0))) == before[0]


def test_a_failed_batch_says_whose_it_was(tmp_path, monkeypatch):
    whole = PPOLearner.update

    def fail(self: PPOLearner, batch: Rollout, env_steps: int) -> None:
        if self.config.learning_rate == 1e-3:
            raise NonFiniteError("as if")
        whole(self, batch, env_steps)

    monkeypatch.setattr(PPOLearner, "update", fail)
    with pytest.raises(NonFiniteError, match="The offending batch is kept in"):
        run(tmp_path, **KINDS["serial"])
    found = checkpoint.read(tmp_path / "failed_batch")
    assert found.meta["policy_index"] == 1
    batch = found.tensors["batch"]
    assert (batch["policy_id"][batch["valid"]] == 1).all()


class Seen:
    """Batches and acts of a run whose policies differ in their learning rate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[tuple[int, Rollout]] = []
        self.acts = self.forwards = 0
        update, forward, act = PPOLearner.update, SamplingActor.act, GroupSampler.act

        def learned(me: PPOLearner, batch: Rollout, env_steps: int) -> None:
            copied = select(batch, torch.arange(batch.stream_id.numel()))
            self.batches.append((int(me.config.learning_rate == 1e-3), copied))
            update(me, batch, env_steps)

        def forwarded(me: SamplingActor, *given: Any) -> Any:
            self.forwards += 1
            return forward(me, *given)

        def acted(me: GroupSampler, row: int) -> None:
            self.acts += 1
            act(me, row)

        monkeypatch.setattr(PPOLearner, "update", learned)
        monkeypatch.setattr(SamplingActor, "act", forwarded)
        monkeypatch.setattr(GroupSampler, "act", acted)

    def streams(self, policy: int) -> set[int]:
        return {x for k, batch in self.batches if k == policy for x in batch.stream_id.tolist()}

    def share(self, policy: int) -> int:
        return sum(int(batch.valid.sum()) for k, batch in self.batches if k == policy)


@pytest.mark.parametrize(
    ("kind", "forwards"), [("groups", 1), ("serial", 2), ("groups lockstep", None)]
)
def test_a_group_that_has_a_policy_to_itself_takes_one_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, forwards: int | None
) -> None:
    seen = Seen(monkeypatch)
    run(tmp_path, 1_000, **KINDS[kind], eval__episodes=0)
    for policy, batch in seen.batches:
        assert (batch.policy_id[batch.valid] == policy).all()
    if forwards != 2:
        assert [seen.streams(policy) for policy in range(2)] == [{0, 1, 2}, {3, 4, 5}]
        assert all((batch.policy_id == policy).all() for policy, batch in seen.batches)
        assert abs(seen.share(0) - seen.share(1)) < 6 * 16
    if forwards is not None:  # in workers of their own nobody counts
        begun = seen.forwards - forwards * seen.acts  # of an unroll that ended early
        assert 0 <= begun <= 3 * forwards
        assert seen.acts > 300


def test_no_policy_starves_where_streams_begin_anew_after_every_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have a batch at the same time, and that of the one that is not served is given up."""
    seen = Seen(monkeypatch)
    often = KINDS["groups"] | {"checkpoint.interval_iterations": 1}
    run(tmp_path, 1_000, **often, eval__episodes=0)
    assert abs(seen.share(0) - seen.share(1)) <= 6 * 16


def test_policies_of_the_same_options_begin_with_weights_of_their_own(tmp_path, monkeypatch):
    begun: list[dict[str, torch.Tensor]] = []
    train = Trainer.train

    def watched(self: Trainer, *given: Any) -> Any:
        begun.extend(policy.policy().publication.tensors for policy in self.policies)
        return train(self, *given)

    monkeypatch.setattr(Trainer, "train", watched)
    run(tmp_path, 256, second=3e-3, **KINDS["serial"])
    first, second = begun
    weights = [name for name in first if name.endswith("weight")]
    assert not any(torch.equal(first[name], second[name]) for name in weights)
    assert weights


def test_a_policy_of_a_donor_begins_both(whole, tmp_path):
    donor = whole("serial") / "policy_1/policy"
    run(tmp_path / "run", 256, init_from=str(donor), **KINDS["serial"])
    said = (tmp_path / "run/log.txt").read_text()
    assert said.count(f"tensors of {donor}") == 1
