"""`quintet bench`: the work is what the file says, and the record what was done."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from quintet import cli
from quintet.algorithms.ddpg import bench as bare_ddpg
from quintet.algorithms.ddpg.config import Knobs
from quintet.algorithms.ddpg.transitions import Transitions
from quintet.algorithms.parts.bare import BareActorCritic, transitions
from quintet.algorithms.parts.minibatches import Minibatch, Rows
from quintet.algorithms.parts.trained import StepOptions, knobs_of
from quintet.algorithms.parts.windows import Windows
from quintet.algorithms.parts.work import OnPolicyWork
from quintet.algorithms.registry import find
from quintet.bench import limits, measure, workloads
from quintet.bench.workloads import ENVIRONMENT_VARIABLE
from quintet.config.layers import Layer
from quintet.config.resolve import compose, resolve
from quintet.envs.make import make_vector_env
from quintet.errors import ConfigError
from quintet.ops import adam, reduce
from quintet.protocols import DataPlan
from quintet.run.learners import make_learner

ON_POLICY = ("cartpole-ppo", "pong-ppo", "halfcheetah-ppo", "cartpole-appo", "pong-appo")
SHIPPED = (
    *ON_POLICY, "halfcheetah-ddpg", "cartpole-acer", "pong-acer",
)  # fmt: skip

SMALL = """
[small]
algo = "ppo"
env_backend = "envpool"
env_id = "CartPole-v1"
num_envs = 4
obs = "vector"
rollout = 8
minibatch = 16
epochs = 3
hidden = [8]
activation = "tanh"
shared_torso = false
optimizer = "adam"
learning_rate = 1e-3
adam_eps = 1e-5
gamma = 0.9
gae_lambda = 0.8
clip = 0.1
value_coef = 0.3
entropy_coef = 0.02
max_grad_norm = 0.4
warmup_seconds = 0.1
seconds = 0.3

[small.peer.other]
threads = 2

[later]
algo = "sac"

[replayed]
algo = "ddpg"
env_backend = "gymnasium"
env_id = "Pendulum-v1"
num_envs = 1
obs = "vector"
minibatch = 16
updates_per_step = 0.5
hidden = [8, 7]
activation = "relu"
optimizer = "adam"
learning_rate = 1e-3
adam_eps = 1e-7
gamma = 0.9
tau = 0.02
noise_std = 0.3
buffer_size = 5_000
learning_starts = 100
warmup_seconds = 0.1
seconds = 0.3
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a workload of a third of a second."""
    path = tmp_path / "workloads.toml"
    path.write_text(SMALL)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(path))
    monkeypatch.setattr(limits, "SECONDS", 0.02)
    monkeypatch.setattr(measure, "has_compiler", lambda: False)  # nothing to wait for
    return path


@pytest.fixture
def without_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)


def check_fields(options: dict[str, Any], table: dict[str, Any], fields: dict[str, str]) -> None:
    for name, field in fields.items():
        assert options[name] == table[field], name


def options_of(name: str) -> dict[str, Any]:
    work = workloads.read(name)
    return compose(work.algo, [workloads.layer(work)]).config.flat()


def test_every_field_of_a_workload_is_in_the_configuration(small: Path):
    table = tomllib.loads(SMALL)["small"]
    options = options_of("small")
    fields = {
        "env.id": "env_id",
        "env.backend": "env_backend",
        "env.num_streams": "num_envs",
        "unroll_steps": "rollout",
        "minibatch_steps": "minibatch",
        "num_epochs": "epochs",
        "model.policy_hidden": "hidden",
        "model.activation": "activation",
        "model.shared_torso": "shared_torso",
        "learning_rate": "learning_rate",
        "adam_epsilon": "adam_eps",
        "gamma": "gamma",
        "gae_lambda": "gae_lambda",
        "clip_epsilon": "clip",
        "entropy_coef": "entropy_coef",
        "max_grad_norm": "max_grad_norm",
    }
    check_fields(options, table, fields)
    assert options["value_coef"] == 0.6  # of half the squared error
    assert options["normalize_advantage"] == "minibatch"
    assert not options["normalize_observations"]
    assert options["reward_normalizer"] == "none"
    assert options["lr_schedule"] == "constant"
    assert options["value_clip"] is options["target_kl"] is None


def test_every_field_of_a_workload_of_ddpg_is_in_the_configuration(small: Path):
    table = tomllib.loads(SMALL)["replayed"]
    options = options_of("replayed")
    fields = {
        "env.id": "env_id",
        "env.backend": "env_backend",
        "env.num_streams": "num_envs",
        "batch_size": "minibatch",
        "updates_per_env_step": "updates_per_step",
        "model.policy_hidden": "hidden",
        "model.activation": "activation",
        "actor_lr": "learning_rate",
        "critic_lr": "learning_rate",
        "adam_epsilon": "adam_eps",
        "gamma": "gamma",
        "tau": "tau",
        "replay_capacity_steps": "buffer_size",
        "replay_start_steps": "learning_starts",
    }
    check_fields(options, table, fields)
    assert options["exploration"] == "normal_0.3"
    assert options["warmup_policy"] == "uniform"
    assert options["value_coef"] == 2.0  # of half the squared error
    assert options["critic_l2_coef"] == 0.0
    assert options["action_layer"] == 1
    assert not options["normalize_observations"]
    assert not options["model.layer_norm"]


def test_the_record_of_ddpg_begins_with_its_updates(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # Its bare environment is measured here, not in a process for each number of threads.
    monkeypatch.setattr(limits, "_in_child", lambda function, *arguments: function(*arguments))
    assert cli.main(["bench", "replayed", "--json", "--runtime.compile", "off"]) == 0
    record = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    owed = (record["env_steps"] - record["reset_rows"]) / 2
    assert abs(record["updates"] - owed) <= 0.5  # a half is carried over
    assert record["parameters"] == 2 * (8 * 7 + 7) + (3 * 8 + 8) + (4 * 8 + 8) + 2 * (7 + 1)
    assert set(record["limit_us_per_env_step"]) == {"env", "act", "update"}
    assert min(record["limit_us_per_env_step"].values()) > 0.0


def test_the_bare_update_of_ddpg_is_the_trained_one(without_variable: None):
    """With the same weights and transitions: losses, and the weights and targets after a step."""
    work = workloads.read("halfcheetah-ddpg")
    assert isinstance(work, bare_ddpg.DDPGWork)
    env = make_vector_env(work.env_id, 1, backend=work.env_backend)
    spaces = env.spaces
    env.close()
    config = resolve(compose(work.algo, [workloads.layer(work)]), spaces).config
    eager = config.runtime.model_copy(update={"compile": "off"})
    learner = make_learner(config.model_copy(update={"runtime": eager}), spaces)
    torch.manual_seed(0)
    bare = bare_ddpg.BareNetworks(work, spaces)
    obs, action, reward, next_obs, end = data = transitions(work.minibatch, spaces)
    # Weights beside biases, layer by layer, in both.
    theirs = [p for part in (bare.critic, bare.policy) for p in part.parameters()]
    critic, actor = learner.network.critic, learner.network.actor
    parts = (critic.layers, critic.head, actor.encoder, actor.head)
    ours = [p for part in parts for p in part.parameters()]
    with torch.no_grad():
        for mine, other in zip(ours, theirs, strict=True):
            other.copy_(mine)
    update = bare_ddpg.update(work, bare, "fp32", data, compiled=False)
    named = dict(bare.named_parameters())
    expected = bare_ddpg.losses(work, bare, "fp32", named, named, data)
    rows = work.minibatch
    never = torch.zeros(1, rows, dtype=torch.bool)
    windows = Windows(
        {"obs": torch.cat((obs, next_obs))}, action, reward[None], ~never, never | (end > 0), never,
        {}, rows,
    )  # fmt: skip
    batch = Transitions(windows, None, torch.tensor([0.0, 1.0]))
    knobs = knobs_of(Knobs, learner.config)
    tensors = Knobs(*map(torch.tensor, knobs))
    _, told = learner.trained.evaluate(learner.trained.parameters, batch, tensors)
    assert told.means["loss/critic"].item() == pytest.approx(expected[0].item(), rel=1e-5)
    assert told.means["loss/actor"].item() == pytest.approx(expected[1].item(), rel=1e-5)
    rates = StepOptions(adam.rates(1, work.learning_rate, work.adam_eps), None)
    learner.trained.step(batch, knobs, rates, rates, polyak=work.tau)
    update()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_record_says_what_was_done(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(limits, "usable_cores", lambda: 1)  # one process that measures
    assert cli.main(["bench", "small", "--json", "--runtime.compile", "off"]) == 0
    record = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert record["workload"] == "small"
    assert record["wall_s"] >= 0.3
    assert record["env_steps"] % 32 == 0  # whole iterations
    # CartPole's episodes have 22 steps on average at first, and then one row of resetting
    assert 0.02 < record["reset_rows"] / record["env_steps"] < 0.08
    assert record["env_steps_per_s"] == pytest.approx(record["env_steps"] / record["wall_s"])
    assert record["updates"] == record["env_steps"] * 3 // 16
    assert record["trained_samples"] == record["updates"] * 16
    assert record["parameters"] == 2 * (4 * 8 + 8) + (8 * 2 + 2) + (8 + 1)
    assert record["precision"] == "fp32"
    assert record["compile_s"] == 0.0
    parts = record["limit_us_per_env_step"]
    assert set(parts) == {"env", "act", "update"}
    assert record["limit_env_steps_per_s"] == pytest.approx(1e6 / sum(parts.values()))
    spent = sum(record["us_per_env_step"].values()) * record["env_steps"] / 1e6
    assert spent == pytest.approx(record["wall_s"], rel=1e-3)


def test_a_person_reads_sentences(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    us = {
        "stepping": 2.0,
        "acting": 3.0,
        "learning": 4.0,
        "replay": 0.0,
        "waiting": 0.0,
        "other": 1.0,
    }
    record = {
        "workload": "small", "env_steps_per_s": 100_000.0, "us_per_env_step": us,
        "env_steps": 2_000, "reset_rows": 50,
        "limit_env_steps_per_s": 125_000.0,
        "limit_us_per_env_step": {"env": 1.5, "act": 2.5, "update": 3.5},
        "precision": "fp32", "compile_s": 2.0,
    }  # fmt: skip
    monkeypatch.setattr(measure, "run", lambda work, options: record)
    assert cli.main(["bench", "small"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "small: 100,000 env_steps/s, 80% of the 125,000 that its bare parts allow (fp32, compiled "
        "in 2.0 s); 2.5% of the env_steps are rows in which environments reset themselves",
        "  stepping      2.00 us per env_step, bare 1.50",
        "  acting        3.00 us per env_step, bare 2.50",
        "  learning      4.00 us per env_step, bare 3.50",
        "  other         1.00 us per env_step",
    ]


def test_an_observer_is_told_of_every_iteration_in_the_region(small: Path):
    seen: list[tuple[float, int]] = []
    eager = Layer("test", {"runtime.compile": "off"})
    record = measure.train(workloads.read("small"), eager, lambda *told: seen.append(told))[2]
    assert [env_steps for _, env_steps in seen] == [32 * (k + 1) for k in range(len(seen))]
    assert seen[-1] == (pytest.approx(record["wall_s"], abs=1e-6), record["env_steps"])


@pytest.mark.parametrize("name", ON_POLICY)
def test_the_bare_network_is_the_trained_one(without_variable: None, name: str):
    work = workloads.read(name)
    env = make_vector_env(work.env_id, 2, backend=work.env_backend)
    spaces = env.spaces
    env.close()
    config = resolve(compose(work.algo, [workloads.layer(work)]), spaces).config
    eager = config.runtime.model_copy(update={"compile": "off"})
    learner = make_learner(config.model_copy(update={"runtime": eager}), spaces)
    assert isinstance(work, OnPolicyWork)
    bare = BareActorCritic(work, spaces, work.shared_torso)
    shapes = sorted(tuple(p.shape) for p in bare.parameters())
    assert shapes == sorted(
        tuple(x.shape)
        for key, x in learner.publication().tensors.items()
        if key.startswith("network/")
    )
    obs = work.batch(spaces, 3)[0]
    policy, value = bare(obs)
    assert value.shape == (3,)
    assert policy.shape[0] == 3


@pytest.mark.parametrize("name", ["cartpole-ppo", "halfcheetah-ppo"])
def test_the_bare_loss_is_the_trained_one(without_variable: None, name: str):
    """With the same weights and rows: what the limit computes is PPO's loss, no part of it."""
    work = workloads.read(name)
    env = make_vector_env(work.env_id, 2, backend=work.env_backend)
    spaces = env.spaces
    env.close()
    config = resolve(compose(work.algo, [workloads.layer(work)]), spaces).config
    eager = config.runtime.model_copy(update={"compile": "off"})
    learner = make_learner(config.model_copy(update={"runtime": eager}), spaces)
    assert isinstance(work, OnPolicyWork)
    bare = BareActorCritic(work, spaces, work.shared_torso)
    ours = learner.network
    with torch.no_grad():
        for part, encoder, head in (
            (bare.policy, ours.encoder, ours.policy_head.linear),
            (bare.value, ours.value_encoder, ours.value_head),
        ):
            layers = [x for x in part if isinstance(x, torch.nn.Linear)]
            theirs = [x for x in encoder.modules() if isinstance(x, torch.nn.Linear)]
            for mine, other in zip(layers, [*theirs, head], strict=True):
                mine.weight.copy_(other.weight)
                mine.bias.copy_(other.bias)
    torch.manual_seed(0)
    obs, action, advantage, target, logp = work.batch(spaces, 64)
    parameters = dict(bare.named_parameters())
    expected = work.loss(bare, "fp32", (obs, action, advantage, target, logp), parameters)

    rows = Rows(
        {"obs": obs}, torch.zeros(64, dtype=torch.bool), action, logp,
        torch.zeros(64, learner.family.param_size), target, advantage, target, {},
    )  # fmt: skip
    weight, every = torch.full((64,), 1 / 64), torch.arange(64)
    given = Minibatch(rows, every, every, weight, reduce.normalize_valid(advantage, weight))
    knobs = type(learner.knobs())(*map(torch.tensor, learner.knobs()))
    loss, stats = learner.trained.evaluate(learner.trained.parameters, given, knobs)
    # The deviation that theirs divides advantages by has Bessel's correction.
    policy = stats.means["loss/policy"].item()
    corrected = loss.item() + ((63 / 64) ** 0.5 - 1) * policy
    assert corrected == pytest.approx(expected.item(), rel=1e-6)


def test_only_the_schedule_is_free(small: Path):
    layer = workloads.scheduling(["--runtime.threads", "2", "--env.streams-per-group", "2"])
    assert layer.values == {"runtime.threads": 2, "env.streams_per_group": 2}
    with pytest.raises(ConfigError, match=r"must be some of .*; got num_epochs; leave it out"):
        workloads.scheduling(["--num-epochs", "1"])
    file = small.parent / "more.yaml"
    file.write_text("runtime.threads: 2")
    with pytest.raises(ConfigError, match=r"got config; leave it out"):
        workloads.scheduling(["--config", str(file)])


def test_wrong_workloads_are_refused(small: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=r"one of small, replayed; got 'pong-ppo'"):
        workloads.read("pong-ppo")
    small.write_text(SMALL.replace('optimizer = "adam"', 'optimizer = "sgd"'))
    with pytest.raises(ConfigError, match="small can't be run: optimizer"):
        workloads.read("small")
    small.write_text("[small")
    with pytest.raises(ConfigError, match=ENVIRONMENT_VARIABLE):
        workloads.read("small")
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(small.parent / "absent.toml"))
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        workloads.read("small")


def test_shipped_workloads_are_those_that_are_listed(
    without_variable: None, capsys: pytest.CaptureFixture[str]
):
    assert tuple(workloads.names()) == SHIPPED
    for name in SHIPPED:
        work = workloads.read(name)
        assert (
            find(work.algo).check(
                compose(work.algo, [workloads.layer(work)]).config.learner,
                compose(work.algo, [workloads.layer(work)]).config.model,
                work.num_envs,
                10**6,
            )
            == []
        )
    assert cli.main(["bench", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in SHIPPED)


def test_an_unknown_workload_is_wrong_usage(
    without_variable: None, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["bench", "cartpol"]) == 2
    assert "one of cartpole-ppo, pong-ppo, halfcheetah-ppo" in capsys.readouterr().err


def test_the_region_is_whole_iterations(small: Path):
    """It begins at the end of one after the warm-up and ends at the first end that makes it long
    enough.
    """
    work = workloads.read("small")
    times = iter([0.05, 0.12, 0.2, 0.38, 0.43, 0.6])

    class Timer:
        passed = 0.0

        def seconds(self):
            return {"learning": 0.75 * self.passed, "other": 0.25 * self.passed}

    class Counted:
        iteration = env_steps = 0
        updates = 1
        plan = DataPlan(unroll_steps=8, columns_per_batch=4)

    timer, counted = Timer(), Counted()
    watch = measure.Stopwatch(work, counted, counted, timer)
    over = False
    while not over:
        Counted.iteration += 1
        timer.passed = next(times)
        over = watch.after_iteration()
    assert watch.begin.seconds == 0.12
    assert watch.end.seconds == 0.43
    assert watch.end.phases["other"] == 0.25 * 0.43
    assert watch.end.env_steps - watch.begin.env_steps == 96
