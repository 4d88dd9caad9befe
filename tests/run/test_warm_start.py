"""Beginning with what another run learned: what is taken over, what is not, and what must fit."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import small_run_helpers
import torch
import yaml
from small_run_helpers import TOY, newest

import quintet
from quintet.checkpoints import checkpoint
from quintet.errors import ConfigError
from quintet.observe.report_files import read_metrics
from quintet.run import warm_start
from quintet.run.launch import Result
from quintet.run.trainer import Trainer

SMALL = small_run_helpers.SMALL | {
    "report.interval_s": 0.0,
    "report.sinks": ["jsonl"],
    "checkpoint.interval_iterations": 5,
    "checkpoint.keep": 100,
}
TOTAL = 1000

Tensors = dict[str, torch.Tensor]


def run(folder: Path, total: int = TOTAL, env: str = TOY, **config: Any) -> Result:
    options = {name.replace("__", "."): value for name, value in config.items()}
    seed = options.pop("seed", 5)
    return quintet.train("ppo", env, total, seed, folder, SMALL | options)


@pytest.fixture(scope="module")
def donor(tmp_path_factory) -> Result:
    """Contexts are one-hot, so the normaliser has something to say."""
    return run(tmp_path_factory.mktemp("donor") / "run", seed=9, eval__episodes=2)


@pytest.fixture
def begun(monkeypatch):
    """What every run has when its loop begins: the learner's state, and the policy."""
    found: list[tuple[Tensors, dict[str, Any], quintet.Policy]] = []
    train = Trainer.train

    def watched(self: Trainer, *given: Any) -> Any:
        state = self.policies[0].learner.save()
        tensors = {name: x.clone() for name, x in state.tensors.items()}
        found.append((tensors, dict(state.scalars), self.policies[0].policy()))
        return train(self, *given)

    monkeypatch.setattr(Trainer, "train", watched)
    return found


def same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", ["run", "checkpoint", "policy", "best"])
def test_a_run_begins_with_the_weights_and_statistics_of_another(donor, tmp_path, begun, kind):
    places = {
        "run": donor.run_dir,
        "checkpoint": sorted((donor.run_dir / "checkpoints").iterdir())[0],
        "policy": donor.run_dir / "policy",
        "best": donor.run_dir / "best",
    }
    given = quintet.load(places[kind])
    theirs = dict(given.publication.tensors)
    assert {name.split("/")[0] for name in theirs} == {"network", "normalizer"}
    acts_only = kind in ("policy", "best")
    if not acts_only:
        path = places[kind] if kind == "checkpoint" else newest(donor.run_dir).path
        learner = checkpoint.read(path).tensors["learner"]
        theirs |= {k: x for k, x in learner.items() if k.startswith("reward_moments/")}
        assert theirs["reward_moments/count"] > 0
    result = run(tmp_path / "new", init_from=str(places[kind]))
    (tensors, scalars, policy), *_ = begun
    assert same({name: tensors[name] for name in theirs}, theirs)
    played = [quintet.evaluate(each, episodes=5).returns.tolist() for each in (policy, given)]
    assert played[0] == played[1]
    # All else is new.
    assert not tensors["optimizer/exp_avg"].any()
    assert not tensors["optimizer/exp_avg_sq"].any()
    assert (scalars["updates"], scalars["version"]) == (0, 0)
    first = read_metrics(tmp_path / "new")[0]
    assert first["iterations"] == 1
    assert first["optim/learning_rate"] == pytest.approx(3e-4)
    # And it learned.
    assert result.metrics["env_steps"] == TOTAL
    assert not same(dict(result.policy.publication.tensors), theirs)
    version = given.publication.version
    said = f"begins with {len(theirs)} tensors of {places[kind]} (version {version})"
    if acts_only:
        assert tensors["reward_moments/count"] == 0
        said += "; a saved policy holds only its actor, so these start fresh: reward_moments"
    assert f"{said}\n" in (tmp_path / "new/log.txt").read_text()
    config = yaml.safe_load((tmp_path / "new/config.yaml").read_text())
    assert config["init_from"] == str(places[kind])


def test_of_a_population_the_leading_learner_is_taken_whole(tmp_path, begun):
    """With what only learning needs."""
    two = {"population.size": 2, "population.pbt": False}
    quintet.train("ppo", TOY, TOTAL, 5, tmp_path / "donor", SMALL | two)
    found = newest(tmp_path / "donor")
    theirs = found.tensors[f"learner_{found.meta['leader']}"]
    run(tmp_path / "new", init_from=str(tmp_path / "donor"))
    tensors, *_ = begun[-1]
    taken = {name: x for name, x in theirs.items() if name.startswith(("reward_", "network/"))}
    assert taken["reward_moments/count"] > 0
    assert same({name: tensors[name] for name in taken}, taken)
    assert "start fresh" not in (tmp_path / "new/log.txt").read_text()


def test_statistics_of_rewards_that_are_not_used_go_no_further(donor, tmp_path, begun):
    """Another run would take them for those of its values."""
    run(tmp_path / "a", init_from=str(donor.run_dir), reward_normalizer="none")
    assert begun[0][0]["reward_moments/count"] == 0


def test_it_differs_from_a_run_that_begins_anew(donor, tmp_path, begun):
    run(tmp_path / "a")
    run(tmp_path / "b", init_from=str(donor.run_dir))
    assert not same(begun[0][0], begun[1][0])


def test_the_donor_is_read_once_and_the_bytes_are_those_of_the_whole_run(donor, tmp_path):
    shutil.copytree(donor.run_dir, tmp_path / "donor")
    given = {"init_from": str(tmp_path / "donor")}
    run(tmp_path / "whole", **given)

    def stop(report):
        return report["iterations"] == 7

    options = SMALL | given
    half = quintet.train("ppo", TOY, TOTAL, 5, tmp_path / "half", options, stop)
    assert half.status == "stopped"
    shutil.rmtree(tmp_path / "donor")
    run(tmp_path / "half", resume="exact", **given)
    whole, resumed = (newest(tmp_path / name) for name in ("whole", "half"))
    assert checkpoint.tensor_hashes(whole) == checkpoint.tensor_hashes(resumed)
    # Left out, the saved run's own stands; another one is another run.
    run(tmp_path / "half")
    with pytest.raises(ConfigError, match=r"init_from: .*donor', this command has '.*elsewhere'"):
        run(tmp_path / "half", init_from="elsewhere")


def test_a_run_that_was_killed_before_its_first_checkpoint_reads_it_again(donor, tmp_path, begun):
    given = {"init_from": str(donor.run_dir)}
    run(tmp_path, **given)
    shutil.rmtree(tmp_path / "checkpoints")
    run(tmp_path, **given)
    assert same(begun[0][0], begun[1][0])


def test_frozen_normalisers_keep_the_statistics_of_the_donor(donor, tmp_path):
    run(tmp_path, init_from=str(donor.run_dir), update_normalizers=False)
    kept, theirs = (
        {k: x for part in newest(each).tensors.values() for k, x in part.items()}
        for each in (tmp_path, donor.run_dir)
    )
    frozen = {name for name in kept if name.startswith(("normalizer/", "reward_moments/"))}
    assert same({name: kept[name] for name in frozen}, {name: theirs[name] for name in frozen})
    assert kept["normalizer/moments.0.count"] > 0
    assert kept["reward_moments/count"] > 0
    assert not same(kept, theirs)


def test_statistics_that_are_not_there_can_not_be_kept(donor, tmp_path):
    """A saved policy is what acts, so rewards would be divided by nothing, and nobody would say."""
    given = {"init_from": str(donor.run_dir / "policy"), "update_normalizers": False}
    with pytest.raises(
        ConfigError, match="must have statistics of rewards, but init_from has none"
    ):
        run(tmp_path / "new", **given)
    assert not (tmp_path / "new").exists()
    run(tmp_path / "new", **given, reward_normalizer="none")


def test_a_part_by_the_names_of_its_tensors(donor, tmp_path, begun):
    """Only what the patterns name has to fit: other actions, another head."""
    run(tmp_path / "plain", env__kwargs={"num_contexts": 3})
    keys = ["network/encoder.*", "network/value_*", "normalizer/*"]
    run(tmp_path / "part", init_from=str(donor.run_dir), init_from_keys=keys)
    theirs = {k: x for part in newest(donor.run_dir).tensors.values() for k, x in part.items()}
    mine, plain = begun[1][0], begun[0][0]
    theirs = {name: x for name, x in theirs.items() if not name.startswith(("opt", "shuffle"))}
    taken = {name for name in theirs if torch.equal(mine[name], theirs[name])}
    assert {name for name in theirs if name.startswith(("network/enc", "network/val"))} <= taken
    left = {name for name in theirs if name.startswith(("network/policy_head", "reward_moments"))}
    assert left
    assert all(torch.equal(mine[name], plain[name]) for name in left)
    config = yaml.safe_load((tmp_path / "part/config.yaml").read_text())
    assert config["init_from_keys"] == keys
    run(tmp_path / "part", init_from_keys=keys)  # the same command again is the same run


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"env": "quintet.envs.toy:Target"}, r"observation space: .*action space: .*Discrete"),
        ({"env__kwargs": {"num_contexts": 4}}, r"observation space: .*\(4,\).*\(3,\)"),
        ({"model__policy_hidden": [9]}, r"policy_hidden: the run has \[9\], init_from \[8\]"),
        (
            {"model__policy_hidden": [9]},
            r"weight: the run has shape \(9, 3\), init_from shape \(8, 3\)",
        ),
        ({"model__shared_torso": True}, r"value_encoder.*: the run has none, init_from shape"),
        ({"model__activation": "relu"}, "model.activation: the run has relu, init_from tanh"),
        ({"normalize_observations": False}, "normalizer/moments.0.mean: the run has none"),
        (
            {"init_from": "absent"},
            "init_from must be a trained policy, got none: .*absent, which does not exist",
        ),
        ({"init_from_keys": ["core.*", "network/*"]}, r"'core\.\*' matches no tensor of init_from"),
        ({"init_from_keys": ["core.*"]}, "its tensors are network/encoder"),
        (
            {"init_from_keys": ["*encoder*"], "model__policy_hidden": [9]},
            r"encoder.*weight: the run has shape \(9, 3\), init_from shape \(8, 3\)",
        ),
        ({"init_from": None, "init_from_keys": ["*"]}, "init_from_keys=.* without init_from"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_is_written(donor, tmp_path, given, says):
    with pytest.raises(ConfigError, match=f"(?s){says}"):
        run(tmp_path / "new", **{"init_from": str(donor.run_dir)} | given)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("known", "fits"), [({}, True), ({"layer_norm": True}, False)])
def test_a_donor_of_before_there_was_an_option(donor, known: dict[str, bool], fits: bool):
    mine = donor.policy.description
    model = {k: x for k, x in mine["model"].items() if k != "layer_norm"} | known
    assert (warm_start._other_policy(mine, mine | {"model": model}) == []) == fits


def test_a_damaged_donor_keeps_its_checkpoints(donor, tmp_path):
    shutil.copytree(donor.run_dir, tmp_path / "donor")
    for path in (tmp_path / "donor/checkpoints").iterdir():
        (path / "policy.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"can be read.*give another run, or a ch") as raised:
        run(tmp_path / "new", init_from=str(tmp_path / "donor"))
    assert "remove" not in str(raised.value)
    run(tmp_path / "new", init_from=str(tmp_path / "donor/policy"))


def test_a_group_lists_its_runs(donor, tmp_path):
    for name in ("s1", "s2"):
        shutil.copytree(donor.run_dir, tmp_path / "g" / name)
    says = f"give one of them: {tmp_path}/g/s1, {tmp_path}/g/s2"
    with pytest.raises(ConfigError, match=says):
        run(tmp_path / "new", init_from=str(tmp_path / "g"))


def test_one_pattern_needs_no_list(donor, tmp_path):
    run(tmp_path, init_from=str(donor.run_dir), init_from_keys="network*")
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["init_from_keys"] == ["network*"]


def test_bounds_of_observations_and_the_drawing_of_weights_may_differ(donor, tmp_path, begun):
    given = {"model__init": "truncated_normal", "init_from": str(donor.run_dir)}
    run(tmp_path / "a", env="test_warm_start:make_wider", **given)
    assert same(
        {k: v for k, v in begun[0][0].items() if k.startswith("network/")},
        {k: v for k, v in donor.policy.publication.tensors.items() if k.startswith("network/")},
    )


def make_wider():
    from gymnasium import spaces

    from quintet.envs.toy import Contextual

    env = Contextual()
    env.observation_space = spaces.Box(-2.0, 2.0, (3,))
    return env


def test_statistics_of_another_kind_of_reward_start_fresh(donor, tmp_path, begun):
    run(tmp_path / "a", init_from=str(donor.run_dir), reward_normalizer="step_std")
    assert begun[0][0]["reward_moments/count"] == 0
    said = (tmp_path / "a" / "log.txt").read_text()
    assert "reward_moments/* start fresh: reward_normalizer is step_std here and" in said
    assert "a saved policy" not in said


def test_statistics_to_keep_must_be_there(donor, tmp_path):
    frozen = {"update_normalizers": False}
    with pytest.raises(ConfigError, match="has no effect without init_from, whose statistics"):
        run(tmp_path / "a", **frozen)
    part = {"init_from": str(donor.run_dir), "init_from_keys": ["network/*"]}
    with pytest.raises(ConfigError, match="must have statistics of observations, but init_from"):
        run(tmp_path / "b", **frozen, **part, reward_normalizer="none")
