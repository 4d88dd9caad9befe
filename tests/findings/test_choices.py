"""Doubts about automatic choices: each where it is planted, and not where it is absent."""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from quintet.algorithms import registry
from quintet.envs.evidence import Evidence
from quintet.envs.ids import list_envs
from quintet.envs.make import make_group_env
from quintet.envs.random_play import random_rows
from quintet.errors import QuintetError
from quintet.findings.choices import Chosen, Learning, as_choice
from quintet.findings.engine import evaluate
from quintet.findings.record import Finding
from quintet.models.config import ModelConfig, resolve_model
from quintet.options.layers import Layer
from quintet.options.saved import load_config
from quintet.types import ACTION_MASK, Spaces

TWO = spaces.Discrete(2)
FLOATS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
INTS = spaces.Box(0, 10**6, (2,), np.int32)
SCALED = Learning()


def before(space: spaces.Space, actions: spaces.Space = TWO, steps: int = 10**6, **model):
    of, asked = Spaces(space, actions), ModelConfig(**model)
    return evaluate("choices", Chosen(asked, resolve_model(asked, of), of, SCALED, steps))


def seen(
    space: spaces.Space = FLOATS,
    *,
    scale: float = 1.0,
    reward: float = 1.0,
    every: int = 1,
    rows: int = 2_000,
    lengths: tuple[int, ...] = (),
    terminated: bool = True,
    last: float | None = None,
) -> Evidence:
    """Evidence of rows with observations of size `scale`, and a reward in every few."""
    evidence, random = Evidence(space), np.random.default_rng(0)
    leaves = space.spaces if isinstance(space, spaces.Dict) else {"obs": space}
    obs = {
        name: (scale * random.standard_normal((rows, *leaf.shape))).astype(leaf.dtype)
        for name, leaf in leaves.items()
    }
    rewards = np.where(np.arange(rows) % every == every - 1, reward, 0.0)
    evidence.add(obs, rewards, np.ones(rows, np.bool_))
    for length in lengths:
        evidence.ended(length, reward, terminated, reward if last is None else last)
    return evidence


def during(evidence: Evidence, learning: Learning = SCALED, **model):
    of = Spaces(evidence.observation, TWO)
    asked = ModelConfig(**model)
    chosen = Chosen(asked, resolve_model(asked, of), of, learning, evidence=evidence)
    return evaluate("choices", chosen)


def one(doubts: list[Finding], choice: str) -> str:
    """The text of the only doubt, which is of this choice."""
    assert [as_choice(each)["choice"] for each in doubts] == [choice]
    return str(doubts[0])


@pytest.mark.parametrize(
    ("space", "option"),
    [
        (spaces.Box(0, 255, (8, 8), np.uint8), "--model.encoder small_cnn reads it"),
        (spaces.MultiBinary((6, 7)), "--model.encoder small_cnn reads it"),
        (spaces.Box(-9, 9, (7, 7, 3), np.int32), "give it as bool, uint8 or float32"),
        (spaces.Box(0.0, 1.0, (84, 84)), "--model.encoder small_cnn reads it"),
        (spaces.MultiBinary((40, 40)), "--model.encoder small_cnn reads it"),
    ],
)
def test_a_picture_that_an_mlp_reads(space: spaces.Space, option: str):
    told = one(before(spaces.Dict({"board": space, "x": FLOATS})), "encoder")
    assert told.startswith("observation 'board' (")
    assert option in told
    assert re.search(r"mlp reads [\d,]+ numbers without their positions", told)


@pytest.mark.parametrize(
    ("picture", "beside", "option"),
    [
        ((84, 84, 4), (10, 10, 4), "nature_cnn .*: --model.encoder small_cnn reads it"),
        ((10, 10, 4), (8, 8), "small_cnn .*: give it as .*, which --model.encoder small_cnn"),
        ((84, 84, 4), (8, 8), "nature_cnn .*: give it as .*, which --model.encoder small_cnn"),
    ],
)
def test_a_picture_that_is_flattened_beside_another(
    picture: tuple[int, ...], beside: tuple[int, ...], option: str
):
    both = {"a": spaces.Box(0, 255, picture, np.uint8), "b": spaces.Box(0, 255, beside, np.uint8)}
    told = one(before(spaces.Dict(both)), "encoder")
    assert told.startswith("observation 'b' (")
    assert re.search(option, told)


@pytest.mark.parametrize(
    ("space", "model"),
    [
        (spaces.Box(0, 255, (8, 8), np.uint8), {"encoder": "mlp"}),  # as the user wants it
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), {}),  # small_cnn
        (spaces.Box(-1.0, 1.0, (8, 8)), {}),  # tables
        (spaces.Box(-1.0, 1.0, (30, 16)), {}),
        (spaces.Box(-np.inf, np.inf, (20, 20)), {}),
        (spaces.Box(0, 255, (100, 8), np.uint8), {}),
        (spaces.Box(0, 255, (128,), np.uint8), {}),
        (spaces.Box(0, 255, (2, 9), np.uint8), {}),
        (spaces.Box(0, 9, (2, 3, 9), np.int64), {}),
        (spaces.MultiDiscrete([4, 4]), {}),
    ],
)
def test_no_picture_that_an_mlp_reads(space: spaces.Space, model: dict):
    assert before(space, **model) == []


def test_a_layout_that_the_shape_does_not_tell():
    told = one(before(spaces.Box(0, 1, (10, 10, 10), np.bool_)), "layout")
    assert "of 10 x 10 x 10 is read as height x width x channels" in told
    assert """--model.encoder-kwargs '{"layout": "chw"}'""" in told
    assert before(spaces.Box(0, 1, (10, 10, 7), np.bool_)) == []
    given = {"encoder": "small_cnn", "encoder_kwargs": {"layout": "hwc"}}
    assert before(spaces.Box(0, 1, (10, 10, 10), np.bool_), **given) == []


def test_observations_of_a_large_scale():
    raw = Learning(normalizes=False)
    told = one(during(seen(scale=3e3), raw), "observation_scale")
    assert "in numbers of size 3,0" in told
    assert "--normalize-observations true scales floats" in told
    both = spaces.Dict({"price": spaces.Box(-1.0, 1.0, (1,)), "stock": INTS})
    told = one(during(seen(both, scale=500.0)), "observation_scale")
    assert "observation 'stock' reaches the network in numbers of size" in told
    assert "others have size 1 (root" in told  # of the price, which is normalised
    assert "give it as float32" in told


def test_observations_of_a_usual_scale():
    raw = Learning(normalizes=False)
    assert during(seen(scale=20.0), raw) == []
    assert during(seen(scale=3e3), Learning(normalizes=True)) == []
    assert during(seen(scale=3e3, rows=100), raw) == []  # too few to tell
    assert during(seen(scale=3e3), raw, encoder="torch.nn:Linear") == []
    picture = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    assert during(seen(picture, scale=90.0), raw) == []


@pytest.mark.parametrize(("size", "shown"), [(2e4, "20,000"), (1e-5, "1e-05")])
def test_rewards_that_are_not_scaled(size: float, shown: str):
    told = one(during(seen(reward=size), Learning(scaling="do this")), "reward_size")
    assert f"a size of {shown} (root mean square of the 2,000" in told
    assert told.endswith(": do this")
    assert during(seen(reward=size), Learning()) == []  # they are scaled


def test_rewards_that_normalising_leaves_small():
    learning = Learning(divisor=0.03)
    told = one(during(seen(reward=2e-6), learning), "reward_size")
    assert "normalising divides them by no less than 0.03" in told
    assert "multiply them by about 5e+05" in told
    for size in (1e-3, 1.0, 1e6):
        assert during(seen(reward=size), learning) == []
    assert during(seen(reward=2e-6, rows=300, every=100), learning) == []


@pytest.mark.parametrize("algo", ["ppo", "impala", "appo", "acer"])
def test_learners_tell_by_what_they_divide_rewards(algo: str):
    record = registry.find(algo)
    on = record.config(reward_normalizer="return_std", normalizer_variance_epsilon=1e-4)
    assert record.reward_divisor(on) == pytest.approx(1e-2)
    assert record.reward_divisor(record.config(reward_normalizer="none")) == 0.0


@pytest.mark.parametrize("size", [900.0, 1.0, 2e-3, 0.0])
def test_rewards_of_a_usual_size(size: float):
    assert during(seen(reward=size), Learning(scaling="do this")) == []


def test_a_gamma_that_is_short():
    late = seen(every=1_000, rows=20_000, lengths=(1_000,) * 18 + (990, 1_010))
    told = one(during(late, Learning(gamma=0.99)), "gamma")
    assert "after 1,000 steps (20 episodes), and gamma=0.99 makes it worth 4e-05" in told
    assert told.endswith("--gamma 0.999")


def test_a_reward_that_comes_early_is_not_told_as_late():
    lengths = (1_000,) * 18 + (990, 1_010)
    early = seen(every=1_000, rows=20_000, lengths=lengths, last=0.0)
    assert during(early, Learning(gamma=0.99)) == []


@pytest.mark.parametrize(
    ("every", "length", "count", "gamma"),
    [
        (1_000, 1_000, 20, 0.999),  # far enough
        (1_000, 1_000, 3, 0.99),  # too few episodes
        (100, 1_000, 20, 0.99),  # ten rewards in each
        (200, 200, 100, 0.99),  # soon enough
        (1_000, 1_000, 20, 1.0),
    ],
)
def test_a_gamma_that_is_not_short(every: int, length: int, count: int, gamma: float):
    lengths = tuple(length + i % 3 for i in range(count))
    late = seen(every=every, rows=20_000, lengths=lengths)
    assert during(late, Learning(gamma=gamma)) == []


def test_a_gamma_that_hardly_looks_ahead():
    varied = seen(lengths=tuple(range(15, 35)))
    told = one(during(varied, Learning(gamma=0.1)), "gamma")
    assert (
        "gamma=0.1 reaches about 1.1 steps ahead, and episodes have 24 steps (20 episodes)" in told
    )
    assert told.endswith("--gamma 0.99")
    bandit = seen(lengths=(1,) * 20)
    for gamma, evidence in ((0.9, varied), (0.1, seen(lengths=(20,) * 9)), (0.0, bandit)):
        assert during(evidence, Learning(gamma=gamma)) == []


def test_a_time_limit_that_ends_as_termination():
    told = one(during(seen(lengths=(200,) * 19 + (40,))), "time_limit")
    assert "19 of 20 episodes were terminated after exactly 200 steps" in told
    assert "truncated=True" in told
    told = one(during(seen(lengths=(500,) * 4)), "time_limit")  # of long ones, four are enough
    assert "4 of 4 episodes were terminated after exactly 500 steps" in told


@pytest.mark.parametrize(
    ("lengths", "terminated"),
    [
        ((200,) * 20, False),
        ((200,) * 3, True),  # too few
        ((90,) * 9, True),
        ((10,) * 20, True),  # a task of ten steps
        ((200,) * 17 + (40,) * 3, True),
        (tuple(range(180, 200)), True),
    ],
)
def test_no_time_limit_that_ends_as_termination(lengths: tuple[int, ...], terminated: bool):
    assert during(seen(lengths=lengths, terminated=terminated)) == []


CLOCKS = {
    "days left": lambda left: [left / 25],
    "share of the time": lambda left: [1 - left / 25],
    "one-hot": lambda left: np.eye(25)[left - 1],
    "counts": lambda left: [x := (left * 7) % 11, 25 - left - x],
    "nothing": lambda left: [0.0],
    "a wave": lambda left: [left % 5],
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_limit_that_an_observation_shows_is_none(clock: str):
    """Some episodes end early where the clock is one number."""
    early = 0 if clock == "counts" else 3
    random = np.random.default_rng(0)
    width = len(CLOCKS[clock](1))
    evidence = Evidence(spaces.Box(-1.0, 1.0, (2 + width,)))
    for number in range(40):
        over = 12 if number < early else 25
        for left in range(25, 25 - over, -1):
            row = np.array([[*random.standard_normal(2), *CLOCKS[clock](left)]])
            last = np.array([left == 26 - over])
            evidence.ends.add({"obs": row.astype(np.float32)}, last)
        evidence.ended(over, 1.0, terminated=True, last_reward=1.0)
    told = [as_choice(each)["choice"] for each in during(evidence)]
    assert told == (["time_limit"] if clock in ("nothing", "a wave") else [])


def masked(allowed: int, size: int, rows: int = 2_000) -> Evidence:
    evidence = Evidence(spaces.Dict({"x": FLOATS, ACTION_MASK: spaces.MultiBinary(size)}))
    mask = np.zeros((rows, size), np.int8)
    mask[np.arange(rows), np.arange(rows) % allowed] = 1
    obs = {"x": np.zeros((rows, 3), np.float32), ACTION_MASK: mask}
    evidence.add(obs, np.ones(rows), np.ones(rows, np.bool_))
    return evidence


def test_actions_that_are_never_allowed():
    told = one(during(masked(9, 100)), "action_mask")
    assert "allowed only 9 of 100 actions in 2,000 steps" in told
    for evidence in (masked(30, 100), masked(2, 9), masked(9, 100, rows=500), seen()):
        assert during(evidence) == []


def test_actions_that_are_hardly_tried():
    told = one(before(FLOATS, spaces.Discrete(50_000)), "actions")
    assert "1,000,000 env_steps try each of 50,000 actions about 20 times" in told
    assert before(FLOATS, spaces.Discrete(9_000)) == []
    assert before(FLOATS, spaces.MultiDiscrete([200] * 20)) == []
    assert before(FLOATS, spaces.Discrete(15), 500) == []
    with_mask = spaces.Dict(x=FLOATS, action_mask=spaces.MultiBinary(50_000))
    assert before(with_mask, spaces.Discrete(50_000)) == []  # it may allow few


def test_rows_that_were_not_executed_do_not_count():
    evidence = Evidence(FLOATS)
    valid = np.arange(10) < 4
    evidence.add({"obs": np.full((10, 3), 2.0)}, np.full(10, 3.0), valid)
    assert (evidence.rows, evidence.observed, evidence.rewards) == (4, 4, 4)
    assert evidence.sizes("obs").tolist() == [2.0] * 3
    assert evidence.reward_size == 3.0


def test_so_many_rows_are_looked_at_and_no_more():
    evidence = Evidence(FLOATS)
    rows = {"obs": np.repeat([[1.0], [9.0]], [4_096, 4_000], 0) * np.ones(3)}
    evidence.add(rows, np.zeros(8_096), np.ones(8_096, bool))
    assert (evidence.rows, evidence.observed) == (8_096, 4_096)
    assert evidence.sizes("obs").tolist() == [1.0] * 3


def test_large_leaves_are_not_copied():
    """A float64 copy of a batch of pictures would be twice as large as the batch."""
    space = spaces.Box(-1.0, 1.0, (100_000,), np.float32)
    evidence, rows = Evidence(space), {"obs": np.ones((200, 100_000), np.float32)}
    tracemalloc.start()
    try:
        evidence.add(rows, np.zeros(200), np.ones(200, bool))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 1.5 * rows["obs"].nbytes  # one copy of the rows that were executed
    assert evidence.sizes("obs").max() == 1.0


SLOW = (  # like Pong-v5
    "vizdoom.gymnasium_wrapper:VizdoomBasic-v1",
    "vizdoom.gymnasium_wrapper:VizdoomDefendCenter-v1",
    "vizdoom.gymnasium_wrapper:VizdoomHealthGathering-v1",
    "Breakout-v5",
)


def patterns() -> list[Any]:
    """Every environment that has a preset, with the learners that have one for it."""
    found: dict[str, list[str]] = {}
    for algo in ("ppo", "impala", "appo", "ddpg", "acer"):
        for pattern in registry.presets_of(algo)["environments"]:
            found.setdefault(pattern, []).append(algo)
    return [
        pytest.param(pattern, " ".join(algos), marks=pytest.mark.slow if pattern in SLOW else ())
        for pattern, algos in found.items()
    ]


@pytest.mark.parametrize(("pattern", "algos"), patterns())
def test_no_choice_for_an_environment_with_a_preset_is_doubtful(
    pattern: str, algos: str, tmp_path: Path
):
    """In the first rows of random play."""
    if ":" in pattern:
        pytest.importorskip(pattern.split(":")[0])
    ids = [pattern] if ":" in pattern else [name for name, _ in list_envs(pattern)]
    if not ids:
        pytest.skip(f"no backend of {pattern} is installed")
    evidence = None
    for algo in algos.split():
        given = {"env.id": ids[0], "run_dir": str(tmp_path / algo)}
        loaded = load_config(algo, [], Layer("call", given))
        if evidence is None:
            try:
                made = make_group_env(loaded.env, 4)
            except QuintetError as fault:
                pytest.skip(str(fault))
            of = made.spaces
            evidence = Evidence(of.observation)
            lengths, returns = np.zeros(4, int), np.zeros(4)
            for row in (each.row for each in random_rows(made, 400, 0) if each.number):
                evidence.add(row.obs, row.reward, row.valid)
                lengths += row.valid
                returns += row.raw_reward
                for i in np.flatnonzero(row.terminated | row.truncated):
                    last = float(row.raw_reward[i])
                    evidence.ended(
                        int(lengths[i]), float(returns[i]), bool(row.terminated[i]), last
                    )
                    lengths[i], returns[i] = 0, 0.0
            made.close()
        config, learner = loaded.config, loaded.config.learner
        learning = Learning(
            getattr(learner, "gamma", None),
            getattr(learner, "normalize_observations", False),
            registry.find(algo).reward_scaling(learner),
            registry.find(algo).reward_divisor(learner),
        )
        model, budget = resolve_model(config.model, of), config.total_env_steps
        chosen = Chosen(config.model, model, of, learning, budget, evidence)
        assert evaluate("choices", chosen) == []
