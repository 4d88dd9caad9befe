"""Episodes that do not end: evaluations cut them, count them and say so."""

import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import quintet
from quintet.checkpoints import checkpoint
from quintet.commands import cli
from quintet.envs.public import make_vector_env
from quintet.errors import ConfigError
from quintet.observe.report_files import read_metrics
from quintet.policies.episodes import How, _Games, play
from quintet.run import policy_run
from quintet.run.policy_run import automatic_bound
from quintet.types import ActOutput

SMALL = {
    "env.num_streams": 4,
    "unroll_steps": 16,
    "minibatch_steps": 64,
    "num_epochs": 1,
    "model.policy_hidden": (8,),
    "report.sinks": ["jsonl"],
    "eval.episodes": 3,
}


class Door(gymnasium.Env):
    """Pays 1 a step, until action 1 is taken in three steps."""

    observation_space, action_space = spaces.Box(0, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.knocks = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.knocks += int(action)
        return np.ones(1, np.float32), 1.0, self.knocks == 3, False, {}


class Closed(Door):
    """Nothing ends it."""

    def step(self, action):
        return *super().step(action)[:2], False, False, {}


class Scripted:
    """Every stream has its own action for ever."""

    def __init__(self, actions):
        self.actions = torch.tensor(actions)

    def initial_state(self, _):
        return {}

    def act(self, *_):
        return ActOutput(self.actions, self.actions, {}, {})


def found(actions, episodes, max_steps, stop=None):
    env = make_vector_env(Door, len(actions))
    how = How(Scripted(actions), episodes, 5, True, stop, max_steps=max_steps)
    return play(env, how)


def test_cut_episodes_count_with_their_return_so_far():
    told = found([0, 1, 1], 6, 20)
    assert told.complete
    assert [(each.return_, each.length, each.cut) for each in told.played] == (
        [(20.0, 20, True)] * 2 + [(3.0, 3, False)] * 4
    )
    exact = found([1, 1], 4, 3)  # the bound of an episode that ends there cuts nothing
    assert [each.cut for each in exact.played] == [False] * 4
    asked = iter([False] * 100 + [True] * 10)
    assert not found([0, 0], 2, None, lambda: next(asked)).complete


def test_a_game_is_cut_as_a_whole():
    games = _Games(np.array([1, 1]), 2, np.array([True, False, True, False]))
    ones, none = np.ones(4, np.float32), np.zeros(4, np.bool_)
    late = games.cut(np.array([5, 2, 4, 4]), none, 5)
    assert late.tolist() == [True, True, False, False]
    row = SimpleNamespace(raw_reward=ones, valid=~none)
    games.add(row, none, late)
    assert (games.left, games.stuck) == (1, False)
    assert [games.counts(stream) for stream in range(4)] == [False, False, True, True]
    games.add(row, none, games.cut(np.array([9, 9, 5, 5]), none, 5))
    assert (games.left, len(games.results().own)) == (0, 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Its greedy policy stands still: the weights of the head are 0 but for one bias."""
    folder = tmp_path_factory.mktemp("bounds") / "run"
    result = quintet.train("ppo", Door, 512, run_dir=folder, config={**SMALL, "eval.episodes": 0})
    tensors = result.policy.publication.tensors
    for name in ("weight", "bias"):
        tensors[f"network/policy_head.linear.{name}"].zero_()
    tensors["network/policy_head.linear.bias"][0] = 1.0
    return quintet.Policy(result.policy.description, result.policy.publication), folder


def test_the_bound_comes_from_the_lengths_of_the_training(run):
    policy, folder = run
    newest = checkpoint.latest(folder / "checkpoints", warn=print)
    longest = newest.meta["longest_episode"]
    assert longest >= 3
    bound = automatic_bound(10 * longest)
    assert newest.meta["policy"]["eval_max_steps"] == bound >= 1_000
    assert quintet.load(folder).description["eval_max_steps"] == bound
    about = {**policy.description, "eval_max_steps": 60}
    far = quintet.Policy(about, policy.publication)
    scores = quintet.evaluate(far, Door, episodes=2)
    assert (scores.cut_episodes, scores.returns.tolist()) == (2, [60.0] * 2)
    assert scores.reported()["eval/cut_episodes"] == 2.0
    assert quintet.evaluate(far, Door, episodes=2, max_steps=7).lengths.tolist() == [7, 7]
    limited = quintet.evaluate(far, lambda: gymnasium.wrappers.TimeLimit(Door(), 80), 1)
    assert (limited.max_steps, limited.cut_episodes, limited.mean) == (None, 0, 80.0)
    for wrong in (0, True, 1.5, "many"):
        with pytest.raises(ConfigError, match="max_steps must be a whole number from 1"):
            quintet.evaluate(far, Door, max_steps=wrong)


def test_the_command_says_it(run, tmp_path, capsys):
    policy, _ = run
    folder, env = str(policy.save(tmp_path / "p")), "test_evaluation_bounds:Door"
    words = ["eval", folder, f"--env={env}", "--episodes=2", "--max-steps=9"]
    assert cli.main(words) == 0
    assert "2 of 2 episodes had no end within 9 steps and were cut" in capsys.readouterr().out
    assert cli.main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["cut_episodes"], told["max_steps"], told["returns"]) == (2, 9, [9.0, 9.0])
    assert cli.main([*words[:-1], "--max-steps=soon"]) == 2
    assert "max_steps must be" in capsys.readouterr().err


def test_training_goes_on_where_no_episode_ends(tmp_path, capfd):
    config = {**SMALL, "eval.interval": 128, "eval.episodes": 1}
    result = quintet.train("ppo", Closed, 256, run_dir=tmp_path / "run", config=config)
    assert result.status == "finished"
    assert result.metrics["eval/cut_episodes"] == 1.0
    assert result.metrics["eval/length_mean"] == 1_000.0
    out = capfd.readouterr().out
    assert out.count("1 of 1 episodes had no end within 1,000 steps and were cut") == 1
    config |= {"eval.max_steps": 50}
    again = quintet.train("ppo", Closed, 320, run_dir=tmp_path / "run", config=config)
    assert again.metrics["eval/length_mean"] == 50.0


@pytest.mark.parametrize(
    ("steps", "bound"), [(0, 1_000), (9_999, 1_000), (10_000, 10_000), (123_456, 100_000)]
)
def test_the_automatic_bound_changes_seldom(steps, bound):
    assert automatic_bound(steps) == bound


class Costly(Closed):
    def step(self, action):
        return *super().step(action)[:1], -1.0, False, False, {}


@pytest.mark.parametrize("resumed", [False, True])
def test_scores_of_episodes_that_were_cut_earlier_are_not_compared(tmp_path, monkeypatch, resumed):
    """A policy that was cut after 10 steps, with a return of -10, is not better than one of 100."""
    monkeypatch.setattr(policy_run, "LEAST_BOUND", 10)
    config = SMALL | {"eval.interval": 128, "report.interval_s": 0.0, "runtime.kind": "serial"}

    def stop(report):
        return resumed and report.get("eval/return_mean") == -10.0 and report["env_steps"] > 200

    for on_report in (stop, lambda _: None)[: 1 + resumed]:
        quintet.train("ppo", Costly, 1_024, 0, tmp_path, config, on_report=on_report)
    returns = [x["eval/return_mean"] for x in read_metrics(tmp_path) if "eval/return_mean" in x]
    assert {-10.0, -100.0} == {*returns}
    best = checkpoint.read(tmp_path / "best").meta
    assert (best["best"], best["best_cut_at"]) == (-100.0, 100)
    said = (tmp_path / "log.txt").read_text()
    assert said.count("the best score so far is of episodes cut after 10 steps") == 1


def test_a_policy_that_ends_earlier_than_the_bound_is_compared(tmp_path, monkeypatch):
    """Whatever bound others had: its return does not depend on it."""
    monkeypatch.setattr(policy_run, "LEAST_BOUND", 10)
    lasting, early = np.array([100] * 3), np.array([7] * 3)
    policy = SimpleNamespace()
    written = []
    mine = SimpleNamespace(best=-10.0, best_cut_at=10, scores={})
    mine.config = SimpleNamespace(
        checkpoint=SimpleNamespace(save_best=True, best_by="eval/return_mean")
    )
    mine.folder = SimpleNamespace(write=lambda *_, score, cut: written.append((score, cut)))

    def scores(lengths, mean, cut, max_steps):
        def reported():
            return {"eval/return_mean": mean}

        return SimpleNamespace(
            lengths=lengths, cut_episodes=cut, max_steps=max_steps, reported=reported
        )

    score = policy_run.PolicyRun.score
    assert score(mine, policy, scores(early, -12.0, 0, 100)) == ""
    assert not written
    assert score(mine, policy, scores(early, -7.0, 0, 100)) == ""
    assert score(mine, policy, scores(lasting, -6.0, 3, 100)) == ""
    assert "cut after 100" in score(mine, policy, scores(lasting * 10, -60.0, 3, 1000))
    assert written == [(-7.0, None), (-6.0, 100), (-60.0, 1000)]
