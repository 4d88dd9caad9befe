"""Curricula by themselves: when stages change, what a schedule gives, how levels are drawn."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents_helpers import Game
from corridor_helpers import LENGTHS, Longer
from small_run_helpers import SMALL

import quintet
from quintet.envs.config import EnvConfig
from quintet.envs.curriculum import Ended, make_curriculum, read_record, record_of
from quintet.envs.tasks import packed
from quintet.errors import ConfigError


def of(**record: Any) -> Any:
    return make_curriculum(read_record(record))


def ended(options: Any, success: bool = True, score: float | None = None) -> Ended:
    return Ended(options, 2.0 * success, 5, success, 0, score)


def length(curriculum: Any, seed: int = 0) -> Any:
    return curriculum.options(0, np.random.default_rng(seed))


def test_stages_go_on_by_the_last_episodes_of_their_own_and_may_go_back() -> None:
    stages = of(kind="stages", stages=LENGTHS, bar=[0.5, 0.6, 0.7], episodes=4, back=0.25)
    for _ in range(3):
        stages.ended(ended(LENGTHS[0]))
    assert length(stages) == LENGTHS[0]
    stages.ended(ended(LENGTHS[1]))  # of another stage
    assert length(stages) == LENGTHS[0]
    stages.ended(ended(LENGTHS[0]))
    assert length(stages) == LENGTHS[1]
    assert stages.metrics()["stage"] == 2.0
    for won in (True, False, False, True):  # neither 0.6 nor below 0.25
        stages.ended(ended(LENGTHS[1], won))
    assert length(stages) == LENGTHS[1]
    again = of(kind="stages", stages=LENGTHS, bar=[0.5, 0.6, 0.7], episodes=4, back=0.25)
    again.load(stages.state())
    for each in (stages, again):
        for _ in range(3):
            each.ended(ended(LENGTHS[1], False))
        assert length(each) == LENGTHS[1]  # a quarter was won
        each.ended(ended(LENGTHS[1], False))
        assert length(each) == LENGTHS[0]
    assert stages.options(0, np.random.default_rng(), final=True) == LENGTHS[3]


def test_the_last_stage_stays_and_a_negative_metric_is_better_when_less() -> None:
    stages = of(kind="stages", stages=LENGTHS[:2], bar=-5.0, metric="-length", episodes=1)
    for _ in range(3):
        stages.ended(ended(length(stages)))
    assert length(stages) == LENGTHS[1]
    assert ended(None).metric("-return") == -2.0


def test_a_metric_that_no_episode_has_is_an_error() -> None:
    stages = of(kind="stages", stages=LENGTHS, metric="env/gold", episodes=3)
    for _ in range(2):
        stages.ended(ended(LENGTHS[0]))
    with pytest.raises(ConfigError, match=r"metric that episodes report, got 'env/gold'"):
        stages.ended(ended(LENGTHS[0]))
    had = of(kind="stages", stages=LENGTHS, metric="env/gold", episodes=1, bar=1.0)
    had.ended(ended(LENGTHS[0])._replace(metrics={"gold": 1.0}))
    assert length(had) == LENGTHS[1]


def test_a_schedule_interpolates_and_rounds_whole_numbers() -> None:
    values = {"length": {0: 1, 100: 5}, "wind": {50: 0.0, 100: 1.0}}
    schedule = of(kind="schedule", values=values)
    assert length(schedule) == {"length": 1, "wind": 0.0}
    schedule.at(75)
    assert length(schedule) == {"length": 4, "wind": 0.5}
    assert schedule.options(0, np.random.default_rng(), final=True) == {"length": 5, "wind": 1.0}


def test_levels_by_the_definition_of_the_paper() -> None:
    levels = of(kind="levels", levels=LENGTHS, temperature=0.5, staleness=0.25)
    assert levels.weights.tolist() == [0.25] * 4
    for place, score in ((1, 0.1), (0, 3.0), (2, 0.2), (1, 0.1)):
        levels.ended(ended(LENGTHS[place], score=score))
    # Three of four were played: ranks 1, 3, 2; they were played 2, 0 and 1 episodes ago.
    by_rank = np.array([1.0, 1 / 9, 1 / 4])
    stale = np.array([2.0, 0.0, 1.0])
    mixed = 0.75 * by_rank / by_rank.sum() + 0.25 * stale / stale.sum()
    np.testing.assert_allclose(levels.weights, [*(0.75 * mixed), 0.25])
    drawn = Counter(length(levels, seed)["length"] for seed in range(4000))
    shares = [drawn[n] / 4000 for n in (1, 2, 3, 4)]
    np.testing.assert_allclose(shares, levels.weights, atol=0.03)
    again = of(kind="levels", levels=LENGTHS, temperature=0.5, staleness=0.25)
    again.load(packed(levels.state(), "it"))
    assert again.weights.tolist() == levels.weights.tolist()


def test_levels_that_are_seeds_and_levels_drawn_evenly() -> None:
    assert length(of(kind="levels", levels=1)) == {"reset_seed": 0}
    even = of(kind="levels", levels=2, score="none")
    even.ended(ended({"reset_seed": 1}))
    assert even.weights.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("record", "fault"),
    [
        ({"kind": "stages", "stages": []}, "stages: list should have at least 1 item"),
        (
            {"kind": "stages", "stages": LENGTHS, "bar": [0.5]},
            r"has no bar\), got 1 numbers: give 3",
        ),
        ({"kind": "stages", "stages": LENGTHS, "back": 0.9}, "back must be less than bar"),
        (
            {"kind": "stages", "stages": LENGTHS, "metric": "gold"},
            "metric: string should match pattern",
        ),
        ({"kind": "stages", "stages": LENGTHS}, "got success without a rule"),
        (
            {"kind": "schedule", "values": {"wind": {}}},
            "values: dictionary should have at least 1 item",
        ),
        ({"kind": "levels", "levels": 0}, "levels: input should be greater than or equal to 1"),
        ({"kind": "stairs"}, "must have a kind, stages, schedule, levels or an import string"),
        ({"kind": "m:X", "of": {1, 2}}, "only what JSON can store"),
        (3, "must have a kind"),
    ],
)
def test_faults_of_records_are_told(record: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        EnvConfig(id="x", curriculum=record)


@pytest.mark.parametrize("wrong", [5, object()])
def test_what_is_no_curriculum_is_refused_before_environments_are_made(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"an object with the methods .*: add the methods"):
        record_of(wrong)


def test_a_record_of_a_file_is_that_of_the_command_line() -> None:
    values = {"length": {0: 1, 100: 5}}
    config = EnvConfig(id="x", curriculum={"kind": "schedule", "values": values})
    assert config.curriculum == {"kind": "schedule", "values": {"length": {"0": 1, "100": 5}}}
    assert EnvConfig(id="x", curriculum="m:X").curriculum == {"kind": "m:X"}


def test_games_get_options(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Told(Game):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            seen.append(options)
            return super().reset(seed, options)

    record = {"kind": "stages", "stages": LENGTHS, "metric": "length", "bar": 1.0, "episodes": 5}
    config = SMALL | {"env.num_streams": 6, "env.backend": "pettingzoo", "env.curriculum": record}
    result = quintet.train("ppo", lambda: Told(), 1280, run_dir=tmp_path, config=config)
    assert result.metrics["curriculum/stage"] == 4.0
    lengths = [each["length"] for each in seen if each]
    begun = lengths[lengths.index(1) :]  # before it they are tried, as evaluations play them
    assert begun == sorted(begun)
    own = {name: x for name, x in config.items() if name != "env.curriculum"}
    folder = tmp_path / "own"  # `Longer` refuses episodes, of any agent, without options
    quintet.train("ppo", lambda: Told(), 640, run_dir=folder, config=own, curriculum=Longer())
