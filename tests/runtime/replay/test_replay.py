"""What is drawn from replay, against plain lists; uniformity; how much is drawn and when."""

import copy
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import seam_helpers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_run_helpers import digest
from replay_streams_helpers import Chances, Run, check_sequence, check_window, make, plan

from quintet.errors import ConfigError
from quintet.protocols import DataPlan, ReplayPlan
from quintet.runtime.replay import layout as replay_layout
from quintet.runtime.replay import replay as replay_module
from quintet.runtime.replay.replay import Replay
from quintet.system import memory
from quintet.types import Rollout

QUIET = Chances(end=0.1, masked=0, odd=0, empty=0, lost=0, budget=0)
CALM = Chances(end=0, masked=0, odd=0, empty=0, lost=0, budget=0)


def tags(batches: list[Rollout]) -> np.ndarray:
    """Tags of row 0 of every column."""
    return np.concatenate([batch.record["tag"][0].numpy() for batch in batches])


def some_streams(draw: np.random.Generator, num_streams: int) -> list[int]:
    """All streams, or any of them, some twice, ordered by stream."""
    if draw.random() < 0.5:
        return list(range(num_streams))
    return sorted(draw.integers(0, num_streams, draw.integers(1, 2 * num_streams + 1)).tolist())


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    num_streams=st.integers(1, 3),
    unroll=st.integers(1, 5),
    steps=st.integers(1, 6),
    capacity=st.integers(1, 30),
)
def test_windows_are_those_of_a_replay_in_lists(
    seed: int, num_streams: int, unroll: int, steps: int, capacity: int
) -> None:
    capacity = num_streams * max(capacity, unroll)
    # Of odd seeds all fields that may lie by themselves do, as large ones always do.
    with mock.patch.object(replay_layout, "_PACKED_BYTES", 0 if seed % 2 else 1024):
        replay = make(
            plan(
                "windows", unroll=unroll, steps=steps, capacity_steps=capacity, columns=12, rate=2
            ),
            num_streams,
        )
        run = Run(replay, num_streams, unroll, seed)
        for iteration in range(12):
            run.collect(some_streams(run.random, num_streams))
            live = run.lists.live()
            assert replay.size == len(live)
            assert bool(live) or not list(replay.draws(1, iteration))
            if live:
                for batch in replay.draws(1, iteration):
                    for column in range(12):
                        check_window(batch, column, run.lists, live)
            if run.random.random() < 0.15:
                run.restart(told=run.random.random() < 0.8)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    num_streams=st.integers(1, 3),
    unroll=st.sampled_from([(1, 1), (2, 1), (4, 2), (5, 5)]),
    unrolls=st.integers(1, 6),
)
def test_sequences_are_those_of_a_replay_in_lists(
    seed: int, num_streams: int, unroll: tuple[int, int], unrolls: int
) -> None:
    steps, every = unroll
    capacity = num_streams * steps * unrolls + num_streams * steps - 1
    replay = make(
        plan(
            "sequences",
            unroll=steps,
            state_every=every,
            capacity_steps=capacity,
            columns=10,
            rate=1,
        ),
        num_streams,
    )
    assert replay.capacity == num_streams * steps * unrolls
    run = Run(replay, num_streams, steps, seed)
    for iteration in range(12):
        run.collect(some_streams(run.random, num_streams), every)
        live = run.lists.live_unrolls()
        assert replay.size == len(run.lists.live())
        for batch in replay.draws(2, iteration) if live else ():
            for column in range(10):
                check_sequence(batch, column, live, every)
        if run.random.random() < 0.15:
            run.restart(told=run.random.random() < 0.8)


def chi_square(counts: np.ndarray) -> float:
    """Distance from uniform in standard deviations of the chi-square statistic."""
    expected = counts.sum() / len(counts)
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float((statistic - (len(counts) - 1)) / np.sqrt(2 * (len(counts) - 1)))


@pytest.mark.parametrize("steps", [1, 3])
def test_windows_begin_at_every_live_valid_row_equally_often(steps: int) -> None:
    replay = make(plan("windows", steps=steps, capacity_steps=300, columns=1000, rate=60), 3)
    run = Run(replay, 3, 4, 0)
    for _ in range(40):
        run.collect(some_streams(run.random, 3))
    live = sorted(run.lists.live())
    drawn, counts = np.unique(tags(list(replay.draws(1, 0))), return_counts=True)
    assert drawn.tolist() == live  # also the newest, the oldest, and those before a gap
    assert abs(chi_square(counts)) < 4


@pytest.mark.parametrize("source", ["any_stream", "per_stream"])
def test_sequences_are_drawn_equally_often(source: str) -> None:
    columns = 3 if source == "per_stream" else 500
    replay = make(
        plan(
            "sequences",
            capacity_steps=300,
            columns=columns,
            rate=9_000 / columns,
            column_source=source,
        ),
        3,
    )
    run = Run(replay, 3, 4, 0)
    for _ in range(30):
        run.collect([0, 1, 2])
    live = run.lists.live_unrolls()
    batches = list(replay.draws(1, 0))
    drawn, counts = np.unique(tags(batches), return_counts=True)
    assert drawn.tolist() == sorted(live)
    if source == "any_stream":
        assert abs(chi_square(counts)) < 4
        return
    for batch in batches[:100]:
        assert batch.stream_id.tolist() == [0, 1, 2]
    for stream in range(3):
        mine = [live[tag]["stream"] == stream for tag in drawn.tolist()]
        assert counts[mine].sum() == len(batches)
        assert abs(chi_square(counts[mine])) < 4


def test_streams_with_more_rows_are_drawn_more_often() -> None:
    replay = make(plan("windows", capacity_steps=400, columns=1000, rate=10), 2)
    run = Run(replay, 2, 4, 0, QUIET)
    for _ in range(10):
        run.collect([0])
    run.collect([1])
    live = run.lists.live()
    share = sum(stream == 1 for stream, _ in live.values()) / len(live)
    drawn = np.concatenate([batch.stream_id.numpy() for batch in replay.draws(1, 0)])
    assert share < 0.2
    assert abs(drawn.mean() - share) < 4 * np.sqrt(share / len(drawn))


@pytest.mark.parametrize("kind", ["windows", "sequences"])
def test_the_oldest_rows_go_first(kind: str) -> None:
    replay = make(plan(kind, capacity_steps=24, columns=400), 1)
    run = Run(replay, 1, 4, 0, QUIET)
    seen = []
    for iteration in range(12):
        run.collect([0])
        drawn = np.unique(tags(list(replay.draws(1, iteration))))
        live = run.lists.live() if kind == "windows" else run.lists.live_unrolls()
        assert drawn.tolist() == sorted(live)
        seen.append(drawn.min())
        assert run.lists.live_unrolls().keys() <= set(run.lists.live()) | set(drawn.tolist())
    assert seen == sorted(seen)
    assert len(set(seen)) > 4


@pytest.mark.parametrize(("rate", "steps"), [(0.5, 7), (0.29, 100), (1 / 3, 3), (0.1, 1), (2.5, 3)])
def test_owed_draws_are_exact(rate: float, steps: int) -> None:
    replay = make(plan("windows", columns=1, rate=rate, unroll=steps, capacity_steps=steps), 1)
    Run(replay, 1, steps, 0, CALM).collect([0])
    made = 0
    for iteration in range(1, 100):
        made += len(list(replay.draws(steps, iteration)))
        assert made == int(np.floor(np.round(rate * steps * iteration, 9)))


@pytest.mark.parametrize("rate", [1e-7, 6e-7, 0.3e-12])
def test_draws_of_a_tiny_rate_are_owed_too(rate: float) -> None:
    replay = make(plan("windows", columns=1, rate=rate), 1)
    Run(replay, 1, 4, 0, CALM).collect([0])
    replay.counted_steps = round(3 / rate) - 4  # nothing was drawn for them yet
    assert len(list(replay.draws(3, 1))) == 2
    assert len(list(replay.draws(4, 2))) == 1


def test_nothing_is_drawn_before_the_start_and_nothing_is_owed_for_it() -> None:
    replay = make(plan("windows", start_steps=10, rate=0.5, columns=2), 2)
    run = Run(replay, 2, 4, 0, CALM)
    assert list(replay.draws(8, 0)) == []
    run.collect([0, 1])
    assert list(replay.draws(8, 1)) == []
    run.collect([0, 1])
    assert len(list(replay.draws(8, 2))) == 3  # 16 stored, 6 beyond the start
    run.collect([0, 1])
    assert len(list(replay.draws(8, 3))) == 4


def test_per_stream_waits_for_every_stream() -> None:
    replay = make(
        plan("sequences", columns=2, column_source="per_stream", rate=1, capacity_steps=60), 2
    )
    run = Run(replay, 2, 4, 0, QUIET)
    run.collect([0])
    assert list(replay.draws(4, 0)) == []
    run.collect([1])
    assert len(list(replay.draws(4, 1))) == 4


@pytest.mark.parametrize("source", ["any_stream", "per_stream"])
@pytest.mark.parametrize("kind", ["windows", "sequences"])
def test_streams_may_have_any_numbers(kind: str, source: str) -> None:
    """As those of a policy among others; per_stream takes as many columns from each."""
    of = plan(kind, columns=4, column_source=source, rate=0.5)
    plain, other = make(of, 2), make(of, 2, numbers=[3, 7])
    run, number = Run(plain, 2, 4, 0), torch.tensor([3, 7])
    drawn = 0
    for iteration in range(12):
        batch = run.collect([0, 1] if iteration % 3 else [1])
        other.store(replace(batch, stream_id=number[batch.stream_id]))
        both = list(plain.draws(4, iteration)), list(other.draws(4, iteration))
        for one, two in zip(*both, strict=True):
            assert torch.equal(number[one.stream_id], two.stream_id)
            if source == "per_stream":
                assert two.stream_id.tolist() == [3, 3, 7, 7]
            assert digest([one]) == digest([replace(two, stream_id=one.stream_id)])
            drawn += 1
    assert drawn > 10
    assert plain.size == other.size
    with pytest.raises(AssertionError, match="no ring"):
        other.store(replace(batch, stream_id=torch.full_like(batch.stream_id, 5)))


def test_poisson_draws_have_their_mean_and_variance(monkeypatch) -> None:
    replay = make(plan("sequences", draws="poisson", rate=4.0, columns=1), 1)
    run = Run(replay, 1, 4, 0, QUIET)
    run.collect([0])
    monkeypatch.setattr(replay, "_drawn", lambda _store, _stream, entry: entry)  # how many
    counts = np.array([len(list(replay.draws(4, i))) for i in range(10_000)])
    assert abs(counts.mean() - 4) < 4 * np.sqrt(4 / 10_000)
    assert 3.7 < counts.var() < 4.3


def test_a_fixed_number_follows_every_batch_with_a_valid_row() -> None:
    replay = make(plan("windows", draws="fixed", rate=3), 1)
    Run(replay, 1, 4, 0, QUIET).collect([0])
    assert [len(list(replay.draws(steps, i))) for i, steps in enumerate((4, 1, 0))] == [3, 3, 0]
    with pytest.raises(AssertionError, match="must be whole"):
        plan("windows", draws="fixed", rate=1.5)


@pytest.mark.parametrize("source", ["any_stream", "per_stream"])
@pytest.mark.parametrize("steps", [1, 3])
def test_draws_that_are_read_together_are_those_read_one_by_one(
    steps: int, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = make(
        plan("windows", steps=steps, draws="fixed", rate=5, columns=3, column_source=source), 3
    )
    run = Run(replay, 3, 4, 3)
    for _ in range(4):
        run.collect([0, 1, 2])
    reads, draw = [], Replay._draw
    monkeypatch.setattr(
        Replay, "_draw", lambda *args: reads.append(args[-1].size // 3) or draw(*args)
    )
    found, draw_bytes = [], 3 * replay._layout.column_bytes(steps)
    for ahead_bytes in (0, 2 * draw_bytes, 2**20):
        monkeypatch.setattr(replay_module, "_AHEAD_BYTES", ahead_bytes)
        found.append(list(replay.draws(4, 7)))
    assert reads == [1, 1, 1, 1, 1, 2, 2, 1, 5]
    assert digest(found[0]) == digest(found[1]) == digest(found[2])


def test_draws_follow_from_seed_and_iteration() -> None:
    def drawn(seed: int, iteration: int) -> list[int]:
        replay = make(plan("windows", columns=50), 2, seed)
        run = Run(replay, 2, 4, 3, QUIET)
        for _ in range(4):
            run.collect([0, 1])
        return tags(list(replay.draws(2, iteration))).tolist()

    assert drawn(0, 5) == drawn(0, 5)
    assert len({tuple(drawn(seed, iteration)) for seed in (0, 1) for iteration in (5, 6)}) == 4


def test_draws_of_an_iteration_do_not_depend_on_those_before() -> None:
    """One batch or several per iteration, near and far, in any order."""
    replay = make(plan("windows", columns=50), 2)
    run = Run(replay, 2, 4, 3, QUIET)
    for _ in range(4):
        run.collect([0, 1])

    def drawn(iteration: int, number: int) -> list[int]:
        return tags(list(replay.draws(number, iteration))).tolist()

    asked = [(i, n) for i in (0, 1, 63, 64, 65, 10_000_000_000) for n in (1, 2)]
    first = {pair: drawn(*pair) for pair in asked}
    assert {pair: drawn(*pair) for pair in reversed(asked)} == first
    assert len({tuple(each) for each in first.values()}) == len(asked)


@pytest.mark.parametrize("source", ["any_stream", "per_stream"])
def test_one_batch_per_iteration_is_drawn_equally_often_from_all_rows(source: str) -> None:
    columns = 3 if source == "per_stream" else 100
    replay = make(
        plan("windows", capacity_steps=300, columns=columns, rate=1, column_source=source), 3
    )
    run = Run(replay, 3, 4, 0, CALM)  # so that all streams have as many rows
    for _ in range(40):
        run.collect([0, 1, 2])
    batches = [batch for i in range(18_000 // columns) for batch in replay.draws(1, i)]
    assert len(batches) == 18_000 // columns
    drawn, counts = np.unique(tags(batches), return_counts=True)
    assert drawn.tolist() == sorted(run.lists.live())
    assert abs(chi_square(counts)) < 4
    assert len({tuple(tags([batch]).tolist()) for batch in batches}) > 0.98 * len(batches)


def test_batches_in_the_same_memory_are_stored_as_those_in_their_own() -> None:
    """As a sampler's slot, whose tensors are written again for every unroll."""
    own, same = (make(plan("windows", steps=3, columns=100), 2) for _ in range(2))
    run = Run(own, 2, 4, 7)
    memory = None
    for iteration in range(20):
        batch = run.collect([0, 1])
        if memory is None:
            memory = copy.deepcopy(batch)
        for name, value in vars(memory).items():
            for leaf, x in (value if isinstance(value, dict) else {"": value}).items():
                if isinstance(x, torch.Tensor):
                    given = getattr(batch, name)
                    x.copy_(given[leaf] if isinstance(value, dict) else given)
        same.store(memory)
        wanted, found = (digest(list(replay.draws(1, iteration))) for replay in (own, same))
        assert wanted == found
    assert own.size == same.size


@pytest.mark.parametrize("source", ["any_stream", "per_stream"])
def test_batches_share_no_memory(source: str) -> None:
    columns = 2 if source == "per_stream" else 50
    replay = make(plan("windows", steps=2, columns=columns, column_source=source), 2)
    run = Run(replay, 2, 4, 3, CALM)
    for _ in range(4):
        run.collect([0, 1])
    wanted = [digest([batch]) for batch in replay.draws(2, 5)]
    found = []
    for batch in replay.draws(2, 5):
        found.append(digest([batch]))
        for value in vars(batch).values():
            for x in (value if isinstance(value, dict) else {"": value}).values():
                if isinstance(x, torch.Tensor):
                    x.zero_()
    assert len(wanted) == 2
    assert found == wanted
    assert [digest([batch]) for batch in replay.draws(2, 5)] == wanted


def test_rows_that_are_only_reached_hold_nothing_of_the_rows_before_them_in_the_ring() -> None:
    replay = make(plan("windows", steps=3, columns=400, capacity_steps=8, rate=1), 1)
    run = Run(replay, 1, 4, 0, CALM)
    behind = 0
    for iteration in range(30):
        run.collect([0])
        (batch,) = replay.draws(1, iteration)
        newest = batch.record["tag"][0] == run.streams[0].tag  # the window's rows 1, 2 come later
        behind += int(newest.sum())
        for name in ("action", "reward", "version", "policy_id", "return_carry"):
            assert not getattr(batch, name)[1:, newest].any()
        assert not batch.record["tag"][1:, newest].any()
        assert not batch.valid[1:, newest].any()
    assert behind > 100


def test_what_was_drawn_is_a_copy() -> None:
    replay = make(plan("windows", columns=50, capacity_steps=8), 1)
    run = Run(replay, 1, 4, 0, QUIET)
    run.collect([0])
    live = run.lists.live()
    (batch,) = replay.draws(1, 0)
    before = [check_window(batch, column, run.lists, live) for column in range(50)]
    for _ in range(5):
        run.collect([0])
    after = batch.record["tag"][0].tolist()
    assert after == before


def constant_rows() -> Rollout:
    """An unroll that could follow on itself, by all that its rows show."""
    batch = Run(make(plan("windows"), 1), 1, 4, 0, CALM).collect([0])
    return replace(
        batch,
        obs={name: torch.zeros_like(x) for name, x in batch.obs.items()},
        action=torch.zeros_like(batch.action),
        reward=torch.zeros_like(batch.reward),
        is_first=torch.zeros_like(batch.is_first),
    )


@pytest.mark.parametrize("between", ["nothing", "a column without a valid row", "a cut"])
def test_no_window_runs_across_a_break_that_rows_do_not_show(between: str) -> None:
    replay, unroll = make(plan("windows", steps=6, columns=200), 1), constant_rows()
    replay.store(unroll)
    if between == "a column without a valid row":
        replay.store(replace(unroll, valid=torch.zeros_like(unroll.valid)))
    elif between == "a cut":
        replay.cut()
    replay.store(unroll)
    (drawn,) = replay.draws(1, 0)
    assert int(drawn.valid.sum(0).max()) == (6 if between == "nothing" else 4)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: {"obs": r.obs | {"vector": r.obs["vector"] + 1}},
        lambda r: {"obs": r.obs | {"image": r.obs["image"] + 1}},
        lambda r: {"is_first": ~r.is_first},
        lambda r: {"episode_id": r.episode_id + 1},
        lambda r: {"last_action": r.last_action + 1},
        lambda r: {"last_reward": r.last_reward + 1},
    ],
)
def test_columns_that_never_came_are_seen_by_any_sign(change) -> None:
    replay, unroll = make(plan("windows", steps=6, columns=200), 1), constant_rows()
    replay.store(unroll)
    replay.store(replace(unroll, **change(unroll)))
    (drawn,) = replay.draws(1, 0)
    assert int(drawn.valid.sum(0).max()) == 4


@pytest.mark.parametrize("steps", [1, 2])
def test_metrics_count_what_is_held_and_drawn(steps: int) -> None:
    """A window of several steps is one transition."""
    replay = make(plan("windows", columns=6, rate=0.5, steps=steps), 2)
    assert replay.metrics() == {"replay/size": 0.0}
    run = Run(replay, 2, 4, 0, CALM)
    run.collect([0, 1])
    assert len(list(replay.draws(8, 0))) == 4
    assert replay.metrics()["replay/draws_per_env_step"] == 3.0


def test_rows_of_another_dtype_than_declared_are_refused() -> None:
    replay = make(plan("windows"), 1)
    run = Run(replay, 1, 4, 0, QUIET)
    batch = run.collect([0])
    wrong = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    with pytest.raises(AssertionError, match="action: float32"):
        replay.store(Rollout(**(wrong | {"action": batch.action.double()})))


def test_a_capacity_below_one_unroll_of_every_stream_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="must be at least 12 steps, an unroll of 4 steps of each of 3"
    ):
        make(plan("windows", capacity_steps=11), 3)


def test_a_replay_that_cannot_fit_is_refused_at_once(tmp_path) -> None:
    huge = plan("windows", capacity_steps=10**13)
    with pytest.raises(ConfigError, match="on the disk of"):
        make(huge, 1, folder=tmp_path / "run" / "replay")
    assert not list(tmp_path.iterdir())  # so the corrected call finds a new folder


@pytest.mark.parametrize("way", ["the folder", "its parent", "a file"])
def test_what_is_in_the_way_of_its_files_is_said(way: str, tmp_path) -> None:
    folder = tmp_path / "run" / "replay"
    if way == "a file":
        (folder / "rows.bin").mkdir(parents=True)
    elif way == "the folder":
        folder.parent.mkdir()
        folder.write_text("")
    else:
        folder.parent.write_text("")
    replay = make(plan("windows"), 1, folder=folder)
    with pytest.raises(ConfigError, match=r"must have a folder for its files, .*remove what is in"):
        Run(replay, 1, 4, 0, QUIET).collect([0])


def test_memory_is_bounded_also_where_the_kernel_does_not_say_what_is_free(monkeypatch) -> None:
    def missing(*_) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    make(plan("windows"), 1)
    with pytest.raises(ConfigError, match=r"bytes of memory, got [\d,]+ free.*lower"):
        memory.require(10**15, "the index of a replay", "lower the replay capacity")


def test_it_says_what_it_takes(tmp_path) -> None:
    replay = make(plan("windows", capacity_steps=1000), 2, folder=tmp_path, slack_steps=40)
    assert "1,000 rows takes at least" in replay.describe()
    Run(replay, 2, 4, 0, QUIET).collect([0, 1])
    said = replay.describe()
    assert f"{replay.nbytes / 2**20:,.1f} MiB in {tmp_path}, stacked frames kept once" in said
    held = sum(file.stat().st_size for file in tmp_path.glob("*.bin"))
    index = 8 * 2 * (500 + 4 + 1)
    assert replay.nbytes == held + index
    # The disk has given every block already, not only promised the size.
    assert all(f.stat().st_blocks * 512 >= f.stat().st_size for f in tmp_path.glob("*.bin"))


def test_unrolls_of_the_runtime_follow_on_each_other_without_gaps(monkeypatch) -> None:
    made = []
    monkeypatch.setattr(seam_helpers, "Replay", lambda *a: made.append(Replay(*a)) or made[-1])
    windows = ReplayPlan("windows", 4000, steps=2, columns=4, draws="owed", rate=0.1)
    learner = seam_helpers.SeamLearner(
        DataPlan(10, 4, replay=windows), seam_helpers.Ledger(4, 2, 1)
    )
    world = seam_helpers.World(groups=2, group_size=2, total_env_steps=600, checkpoint_iterations=6)
    seam_helpers.drive("serial", world, [learner])
    unrolls = learner.kinds.count("fresh")
    restarts = (unrolls - 1) // 6
    assert made[0]._store.head.tolist() == [10 * unrolls + 1 + restarts] * 4
