"""Games in turn: every decision is a row, once, with its outcome; as a plain loop sees them."""

from typing import Any

import pytest
import torch
from turns_helpers import AGENTS, Alone, Decision, Scripted, action_of, decisions, game_env

import quintet
from quintet.errors import ConfigError
from quintet.observe.timing import PhaseTimer
from quintet.policies.episodes import How, play
from quintet.protocols import DataPlan
from quintet.runtime.batch import select
from quintet.runtime.sampler import SerialSampling, unroll
from quintet.runtime.seed_tree import group_seeds
from quintet.types import ActOutput, Publication, Rollout, TensorSpec

GAMMA = 0.5


class Counting:
    """Counts its decisions in each episode, in a recurrent state."""

    action_spec = TensorSpec((), torch.int64)
    record_specs = {"count": TensorSpec((), torch.float32)}
    state_specs = {"memory": TensorSpec((1,), torch.float32)}

    def load(self, publication: Publication) -> None: ...

    def initial_state(self, num_streams: int) -> dict[str, torch.Tensor]:
        return {"memory": torch.zeros(num_streams, 1), "hidden": torch.zeros(num_streams)}

    def draw_noise(self, steps: int, num_streams: int, _: torch.Generator) -> torch.Tensor:
        return torch.zeros(steps, num_streams, 0)

    def act(self, obs: Any, state: Any, is_first: torch.Tensor, _: Any) -> ActOutput:
        count = torch.where(is_first, 0.0, state["memory"][:, 0]) + 1.0
        hidden = torch.where(is_first, 0.0, state["hidden"]) + 1.0
        assert torch.equal(count, hidden)
        action = action_of(obs["obs"], count).long()
        return ActOutput(
            action, action, {"count": count}, {"memory": count[:, None], "hidden": hidden}
        )


def collect(
    make: Any, steps: int, every: int, games: int, env_steps: int
) -> tuple[list[Any], list[int]]:
    """Batches of a budget, and the seeds of the games."""
    env = game_env(make, games * 3, env_id="turns", success="info:won")
    plan = DataPlan(steps, games * 3, return_discount=GAMMA, state_every=every)
    sampling = SerialSampling([env], Counting, plan, 3, PhaseTimer())
    found, left = [], env_steps
    for version in range(10 * env_steps):
        sampling.publish(Publication(version, {}))
        if version == 0:
            sampling.restart(0)
        batch = sampling.collect(left)
        found.append((_copied(batch.rollout), batch))
        left -= batch.env_steps
        if not left:
            break
    assert not left
    return found, group_seeds(3, 0, 0, games * 3)[0]


def _copied(rollout: Rollout) -> Rollout:
    return select(rollout, torch.arange(rollout.stream_id.numel()))


@pytest.mark.parametrize("make", [Scripted, Alone])
@pytest.mark.parametrize(("steps", "every"), [(1, 1), (2, 1), (6, 2), (32, 8)])
def test_rows_are_the_decisions_of_a_plain_loop(make: Any, steps: int, every: int) -> None:
    games, budget = 2, 301
    found, seeds = collect(make, steps, every, games, budget)
    rows = 0
    expected: list[list[Decision]] = []
    for game in range(games):
        of_game = decisions(make(), seeds[3 * game], 2_000)
        expected += [of_game[agent] for agent in AGENTS]
    for stream, wanted in enumerate(expected):
        number, carry, last = 0, 0.0, None
        for rollout, _ in found:
            column = int((rollout.stream_id == stream).nonzero()[0])
            if rollout.valid[:, column].any():
                assert rollout.episode_id[column] == wanted[number].episode
            before = None if last is None else wanted[last]
            assert rollout.last_action[column] == (0 if before is None else before.action)
            assert rollout.last_reward[column] == (0 if before is None else before.reward)
            for row in range(steps):
                if not rollout.valid[row, column]:
                    assert row == 0 or not rollout.not_cut_t[row - 1, column]
                    continue
                made = wanted[number]
                assert rollout.obs["obs"][row, column].tolist() == made.obs.tolist()
                assert rollout.action[row, column] == made.action
                assert rollout.record["count"][row, column] == made.count
                assert rollout.is_first[row, column] == (made.count == 1)
                assert rollout.reward[row, column] == made.reward
                assert rollout.terminated[row, column] == made.terminated
                assert rollout.truncated[row, column] == (made.truncated and not made.terminated)
                assert rollout.obs["obs"][row + 1, column].tolist() == made.next_obs.tolist()
                if row + 1 < steps:  # an end's own memory, in which its last observation is seen
                    assert rollout.record["count"][row + 1, column] == made.count + 1
                carry = made.reward + GAMMA * carry
                assert rollout.return_carry[row, column] == carry
                carry *= not (made.terminated or made.truncated)
                if row % every == 0 and made.count > 1:
                    memory = rollout.state["memory"][row // every, column]
                    assert memory.tolist() == [made.count - 1.0]
                number, last = number + 1, number
                rows += 1
    assert rows == budget


def whole_episodes(made: list[Decision]) -> list[tuple[float, int, bool]]:
    """Return, length and success of the episodes that ended."""
    ends = [k for k, each in enumerate(made) if each.terminated or each.truncated]
    begins = [0, *(end + 1 for end in ends)]
    return [
        (sum(x.reward for x in made[a : b + 1]), b + 1 - a, made[b].won)
        for a, b in zip(begins, ends, strict=False)
    ]


def test_episodes_are_measured_whole() -> None:
    games = 3
    found, seeds = collect(Scripted, 5, 1, games, 400)
    measured: dict[int, list[tuple[float, int, bool | None]]] = {k: [] for k in range(3 * games)}
    for rollout, batch in found:
        for each in batch.episodes:
            stream = int(rollout.stream_id[each.column])
            measured[stream].append((each.return_, each.length, each.success))
    assert sum(map(len, measured.values())) > 20
    for game in range(games):
        of_game = decisions(Scripted(), seeds[3 * game], 2_000)
        for index, agent in enumerate(AGENTS):
            mine = measured[3 * game + index]
            assert mine == whole_episodes(of_game[agent])[: len(mine)]


def test_evaluation_plays_as_a_plain_loop_does() -> None:
    env = game_env(Scripted, 6, env_id="turns", success="info:won")
    found = play(env, How(Counting(), 8, 50, True, None), 3)  # type: ignore[arg-type]
    mine = [(each.return_, each.length, each.success) for each in found.played]
    expected = []
    for game in range(2):
        of_game = decisions(Scripted(), 50 + 3 * game, 2_000)
        expected += [whole_episodes(of_game[agent]) for agent in AGENTS]
    for wanted in expected:
        first = wanted[:3]
        assert mine[: len(first)] == first
        while mine and wanted and mine[0] == wanted[0]:
            mine, wanted = mine[1:], wanted[1:]
    assert not mine


def test_executed_steps_are_those_of_batches_and_what_is_told_beside_them() -> None:
    found, _ = collect(Scripted, 6, 1, 2, 301)
    steps = [batch.steps for _, batch in found]
    executed = sum(each.executed for each in steps)
    discarded = sum(each.discarded for each in steps)
    assert executed - discarded - steps[-1].waiting == 301


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_a_short_unroll_counts_the_decisions_that_its_batch_will_hold(rows: int) -> None:
    """If it counted those without an outcome, it would end too soon: where every unroll is a short
    one after which the streams begin anew, the budget would never be spent.
    """
    env = game_env(Scripted, 6, env_id="turns")
    sampling = SerialSampling([env], Counting, DataPlan(9, 6), 3, PhaseTimer())
    sampling.publish(Publication(0, {}))
    sampling.restart(0)
    (group,), (slot,) = sampling.groups, sampling.slots
    for _ in range(20):
        counted = [0]

        def more(done: int, counted: list[int] = counted) -> int:
            counted.append(group.executed(done) if done else 0)
            return int(done < rows)

        unroll([group], [slot], PhaseTimer(), more=more)
        held = int(slot.valid.sum())
        assert counted[-1] == held
        assert counted == sorted(counted)


SMALL = {
    "env.num_streams": 6, "env.streams_per_group": 3, "unroll_steps": 16, "eval.episodes": 3,
    "report.progress": False, "env.backend": "pettingzoo", "runtime.actor_threads": 1,
}  # fmt: skip


def trained(folder: Any, algo: str = "ppo", steps: int = 600, **options: Any) -> Any:
    config = {**SMALL, **{name.replace("__", "."): x for name, x in options.items()}}
    game = "turns_helpers:scripted"
    return quintet.train(algo, env=game, total_steps=steps, seed=1, run_dir=folder, config=config)


def test_a_server_is_refused(tmp_path: Any) -> None:
    with pytest.raises(
        ConfigError, match="inference=server must have agents that act at the same time"
    ):
        trained(tmp_path, runtime__kind="lockstep", runtime__inference="server")


@pytest.mark.slow
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_workers_and_a_resume_give_the_bytes_of_one_process(core: str, tmp_path: Any) -> None:
    own = {"model__core": core, **({"bptt_steps": 4} if core == "lstm" else {})}
    serial = trained(tmp_path / "a", **own).policy.publication.tensors
    workers = {"runtime__kind": "lockstep", "runtime__lag": 0, "runtime__num_workers": 2}
    lockstep = trained(tmp_path / "b", **own, **workers).policy.publication.tensors
    assert all(torch.equal(lockstep[name], x) for name, x in serial.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "options"),
    [
        ("ppo", {"self_play__past_frac": 0.5}),
        ("ppo", {"population__size": 2, "population__pbt": False}),
        ("impala", {"batch_unrolls": 6}),
        ("appo", {"minibatch_steps": 96}),
        ("acer", {"replay_start_steps_per_stream": 20}),
    ],
)
def test_learners_that_train_on_games_in_turn(
    algo: str, options: dict[str, Any], tmp_path: Any
) -> None:
    result = trained(tmp_path, algo, steps=1_000, **options)
    assert result.status == "finished"
    assert result.metrics["env_steps"] == 1_000


@pytest.mark.slow
def test_tictactoe_is_learned(tmp_path: Any) -> None:
    """By self-play, to beat random actions: greedily 141, 154 and 153 of 200 games."""
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    won = []
    for seed in (1, 2, 3):
        config = {
            "env.num_streams": 32, "unroll_steps": 32, "minibatch_steps": 128, "num_epochs": 6,
            "learning_rate": 1e-3, "entropy_coef": 0.01, "gamma": 1.0, "eval.episodes": 0,
            "report.progress": False, "runtime.compile": "off",
        }  # fmt: skip
        policy = quintet.train(
            "ppo", env="pettingzoo.classic.tictactoe_v3:env", total_steps=60_000, seed=seed,
            run_dir=tmp_path / str(seed), config=config,
        ).policy  # fmt: skip
        games = quintet.evaluate(policy, episodes=200, against="random", seed=10_000).games
        assert games is not None
        won.append(games.won)
    print(won)
    assert sum(won) / 3 >= 125
