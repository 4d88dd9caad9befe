"""Past weights as opponents, and a policy for each agent."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import quintet
from quintet.algorithms.parts.acting import WARMING_UP
from quintet.checkpoints import checkpoint
from quintet.commands.cli import main
from quintet.errors import ConfigError
from quintet.policies.episodes import How, _seated
from quintet.population.config import SelfPlayConfig
from quintet.population.self_play import PastWeights
from quintet.protocols import DataPlan, ReplayPlan
from quintet.run import evaluations
from quintet.run.sampling import assignment_of
from quintet.run.trainer import Trainer
from quintet.runtime.policies import Assignment
from quintet.runtime.sampler import SerialSampling
from quintet.types import Publication

GAME = "quintet.envs.games:parallel_env"
SMALL = {
    "env.num_streams": 8, "unroll_steps": 32, "eval.episodes": 0, "report.progress": False,
    "num_epochs": 2, "minibatch_steps": 128,
}  # fmt: skip


def train(folder: Path, steps: int = 2_000, **options: Any) -> Any:
    on_report = options.pop("on_report", None)
    config = {**SMALL, **{name.replace("__", "."): x for name, x in options.items()}}
    return quintet.train(
        "ppo", GAME, steps, seed=2, run_dir=folder, config=config, on_report=on_report
    )


def weights(result: Any) -> dict[str, torch.Tensor]:
    return load_file(result.run_dir / "policy" / "policy.safetensors")


def test_past_weights_play_all_agents_but_one_in_a_share_of_the_games():
    draw = torch.rand(3_000, generator=torch.Generator().manual_seed(0))
    anew, before = torch.ones(3_000, dtype=torch.bool), torch.zeros(3_000, dtype=torch.int64)
    who = Assignment(2, True, num_agents=3, past_frac=0.25)
    games = who.players(draw, anew, before).view(-1, 3)
    past = games.sum(1)
    assert set(past.tolist()) == {0, 2}
    assert abs((past == 2).float().mean().item() - 0.25) < 0.05
    alone = (games[past == 2] == 0).nonzero()[:, 1]
    assert {int(agent) for agent in alone} == {0, 1, 2}
    always = Assignment(2, True, num_agents=2, past_frac=1.0)
    assert (always.players(draw, anew, before).view(-1, 2).sum(1) == 1).all()
    # Who comes in later plays as it was drawn when the game began.
    late = anew.clone()
    late[::3] = False
    assert torch.equal(who.players(torch.rand(3_000), late, games.flatten()), games.flatten())


def test_a_policy_for_each_agent():
    draw, anew = torch.rand(8), torch.ones(8, dtype=torch.bool)
    who = Assignment(2, True, num_agents=4, by_agent=True)
    assert who.players(draw, anew, anew.long()).tolist() == [0, 1, 0, 1] * 2
    assert (who.num_learners, Assignment(2, True, 2, past_frac=0.5).num_learners) == (2, 1)


def of_version(version: int) -> Publication:
    return Publication(version, {"x": torch.tensor([float(version)])})


def test_kept_weights_act_by_themselves_and_not_uniformly():
    """Also those of a policy that was still warming up."""
    past, sent = PastWeights(SelfPlayConfig(past_frac=1), 5, 1_000), list[Publication]()
    trainer = SimpleNamespace(past=past, counters=SimpleNamespace(env_steps=0))
    tensors = {"x": torch.zeros(1), WARMING_UP: torch.tensor(True)}
    sampling = SimpleNamespace(publish=sent.append)
    Trainer._published(trainer, sampling, Publication(0, tensors))  # type: ignore[arg-type]
    assert not sent[0].tensors[WARMING_UP]
    assert "x" in sent[0].tensors
    assert tensors[WARMING_UP]


def test_which_weights_are_kept_and_which_play():
    past = PastWeights(SelfPlayConfig(past_frac=1, versions=3, interval_env_steps=100), 5, 1_000)
    for version, env_steps in enumerate((0, 60, 120, 180, 240, 260, 510)):
        past.consider(of_version(version), env_steps)
        past.consider(of_version(version), env_steps)  # published again, as after a resume
    assert [each.version for each in past.kept] == [2, 4, 6]
    drawn = [past.opponent(version) for version in range(200)]
    assert {int(each.tensors["x"]) for each in drawn} == {2, 4, 6}
    assert [each.version for each in drawn] == list(range(200))
    tensors, entry = past.save()
    again = PastWeights(past.config, 5, 1_000)
    again.load(tensors, entry)
    assert all(
        torch.equal(again.opponent(v).tensors["x"], past.opponent(v).tensors["x"])
        for v in range(50)
    )
    other = PastWeights(past.config, 6, 1_000)
    other.load(tensors, entry)
    assert any(other.opponent(v).tensors["x"] != past.opponent(v).tensors["x"] for v in range(50))
    assert PastWeights(SelfPlayConfig(past_frac=1), 5, 1_000).interval == 50


def test_kept_weights_do_not_change_with_the_learners():
    past = PastWeights(SelfPlayConfig(past_frac=1), 0, 1_000)
    live = of_version(3)
    past.consider(live, 0)
    live.tensors["x"] += 1
    assert past.opponent(9).tensors["x"].item() == 3


def test_only_the_learners_own_steps_count(tmp_path: Path):
    result = train(tmp_path / "run", 4_000, self_play__past_frac=1.0)
    assert result.metrics["env_steps"] == 4_000
    # The past's steps, as many as the learner's own, are counted nowhere.
    discarded = result.metrics["data/discarded_env_steps"]
    assert result.metrics["data/executed_env_steps"] == 4_000 + discarded
    assert discarded < 400
    assert not [name for name in result.metrics if name.startswith("policy_0/")]
    newest = checkpoint.latest(result.run_dir / "checkpoints", warn=print)
    assert newest is not None
    held = newest.meta["self_play"]["versions"]
    assert held == sorted(held)
    assert len(held) == 10
    assert newest.tensors["past_0"].keys() == newest.tensors["policy"].keys()


def test_weights_of_the_past_are_what_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    given: dict[int, list[dict[str, torch.Tensor]]] = {0: [], 1: []}
    publish = SerialSampling.publish

    def watched(self: SerialSampling, publication: Publication) -> None:
        tensors = {name: x.clone() for name, x in publication.tensors.items()}
        given[publication.policy].append(tensors)
        publish(self, publication)

    def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(x, b[name]) for name, x in a.items())

    monkeypatch.setattr(SerialSampling, "publish", watched)
    train(tmp_path / "run", self_play__past_frac=0.5, runtime__kind="serial")
    newest, opponents = given[0], given[1]
    assert len(newest) == len(opponents) > 4
    assert all(any(equal(x, y) for y in newest[: k + 1]) for k, x in enumerate(opponents))
    assert not all(equal(x, y) for x, y in zip(opponents, newest, strict=True))


def test_a_resumed_run_has_the_same_opponents(tmp_path: Path):
    whole = train(tmp_path / "whole", self_play__past_frac=0.7)
    seen: list[float] = []

    def half(report: dict[str, float]) -> bool:
        seen.append(report["env_steps"])
        return report["env_steps"] > 1_000

    options = {"self_play__past_frac": 0.7, "report__interval_s": 0.0}
    train(tmp_path / "parts", **options, on_report=half)
    assert seen[-1] < 2_000
    parts = train(tmp_path / "parts", **options, resume="exact")
    assert all(torch.equal(x, weights(parts)[name]) for name, x in weights(whole).items())
    plain = train(tmp_path / "plain")
    assert any(not torch.equal(x, weights(plain)[name]) for name, x in weights(whole).items())


@pytest.mark.parametrize(
    "option",
    ["self_play__past_frac", pytest.param("population__assignment", marks=pytest.mark.slow)],
)
def test_worker_processes_give_the_same_bytes(option: str, tmp_path: Path):
    given: dict[str, Any] = {option: 0.5, "env__streams_per_group": 4}
    if option == "population__assignment":
        given |= {option: "agent", "population__size": 2, "population__pbt": False}
    serial = train(tmp_path / "serial", **given)
    workers = {"runtime__kind": "lockstep", "runtime__lag": 0, "runtime__num_workers": 2}
    lockstep = train(tmp_path / "lockstep", **given, **workers)
    assert all(torch.equal(x, weights(lockstep)[name]) for name, x in weights(serial).items())
    if option == "population__assignment":
        first, second = (
            load_file(tmp_path / "serial" / f"policy_{k}" / "policy" / "policy.safetensors")
            for k in (0, 1)
        )
        assert any(not torch.equal(x, second[name]) for name, x in first.items())


def test_what_has_no_effect_or_does_not_go_together_is_refused(tmp_path: Path):
    for options, says in (
        ({"self_play__versions": 3}, r"self_play.versions=3 has no effect without self_play.past"),
        (
            {"self_play__past_frac": 0.5, "population__size": 2},
            r"self_play.past_frac=0.5 has no effect without population.size=1",
        ),
        (
            {"population__assignment": "agent", "population__size": 2},
            "assignment=agent can't have population.pbt",
        ),
        ({"population__assignment": "agent"}, r"population.assignment=agent has no effect"),
        (
            {"population__assignment": "agent", "population__size": 3, "population__pbt": False},
            "an agent for each of the 3 policies, got 2 of",
        ),
    ):
        with pytest.raises(ConfigError, match=says):
            train(tmp_path / "run", **options)
    with pytest.raises(
        ConfigError, match=r"without an environment of several agents \(CartPole-v1 has one\)"
    ):
        quintet.train(
            "ppo",
            "CartPole-v1",
            4_096,
            run_dir=tmp_path / "run",
            config={"self_play.past_frac": 0.5},
        )
    assert not (tmp_path / "run").exists()


def test_the_configuration_is_refused_as_the_run_is(capsys: pytest.CaptureFixture[str]):
    alone = ["config", "ppo", "--env", "CartPole-v1", "--self-play.past-frac", "0.5"]
    assert main(alone) == 2
    assert "without an environment of several agents" in capsys.readouterr().err
    assert main([*alone[:3], GAME, *alone[4:]]) == 0


def test_a_policy_of_one_agent_replays_the_streams_of_that_agent(tmp_path: Path):
    config = {
        "population.assignment": "agent", "population.size": 2, "population.pbt": False,
        "env.num_streams": 4, "replay_start_steps_per_stream": 50, "eval.episodes": 0,
    }  # fmt: skip
    result = quintet.train("acer", GAME, 1_000, run_dir=tmp_path / "run", config=config)
    for policy in (0, 1):
        assert result.metrics[f"policy_{policy}/replay/draws_per_env_step"] > 0


def test_a_replay_of_every_stream_requires_equal_shares():
    """Of three agents two play for the first policy, so it has two thirds of the streams."""
    config: Any = SimpleNamespace(
        env=SimpleNamespace(num_streams=12, num_groups=1),
        self_play=SimpleNamespace(past_frac=0.0),
        population=SimpleNamespace(assignment="agent"),
    )
    env: Any = SimpleNamespace(num_agents=3)
    own: Any = {"capacity_steps": 240, "steps": 20, "columns": 12, "draws": "poisson", "rate": 4.0}
    for source, refused in (("any_stream", False), ("per_stream", True)):
        replay = ReplayPlan("sequences", **own, column_source=source)
        plan = DataPlan(20, 12, replay=replay)
        if not refused:
            assert assignment_of(config, env, plan, 2).by_agent
            continue
        with pytest.raises(
            ConfigError,
            match="a batch of 12 unrolls from replay must be a multiple of the 8 streams",
        ):
            assignment_of(config, env, plan, 2)


def test_each_agent_is_played_by_its_own_policy_in_evaluations(monkeypatch: pytest.MonkeyPatch):
    policies: Any = [
        SimpleNamespace(player_on=lambda device, k=k: f"actor {k}", threads=1) for k in range(3)
    ]
    config: Any = SimpleNamespace(
        eval=SimpleNamespace(episodes=3, greedy=True, max_steps=None),
        population=SimpleNamespace(assignment="agent"),
        runtime=SimpleNamespace(worker_timeout_s=1.0, inference="local"),
    )
    found: list[How] = []

    def evaluate_in(_policy: Any, _env: Any, how: How, _max_steps: None) -> Any:
        found.append(how)
        return SimpleNamespace(complete=False)

    monkeypatch.setattr("quintet.policies.evaluation.evaluate_in", evaluate_in)
    env = SimpleNamespace(config=SimpleNamespace(curriculum=None))
    loaded: Any = SimpleNamespace(evaluated=env, plays_elsewhere=False)
    plays = evaluations.Evaluations(config, loaded)
    for index in range(3):
        plays.play(policies, index, 0, lambda: False)
        actor, own = _seated(found[-1], num_games=2, num_agents=3)
        assert own.tolist() == [agent == index for agent in range(3)] * 2
        for each, streams in zip(actor.actors, actor.streams, strict=True):
            assert {f"actor {stream % 3}" for stream in streams.tolist()} == {each}


def test_policies_of_agents_are_evaluated_in_their_own_games(tmp_path: Path):
    """Each plays its own agent, whose returns are those of the game."""
    result = train(
        tmp_path / "run",
        population__assignment="agent",
        population__size=2,
        population__pbt=False,
        eval__episodes=6,
    )
    scores = [result.metrics[f"policy_{k}/eval/return_mean"] for k in (0, 1)]
    assert scores[0] == -scores[1]  # the two meet, and a game's rewards add up to 0
    assert result.metrics["policy_0/eval/episodes"] == 6
