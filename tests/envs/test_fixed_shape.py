"""Texts and sequences in observations are arrays of a fixed shape, also for policies."""

import gymnasium
import numpy as np
import pytest
from envs_helpers import Custom, record
from gymnasium import spaces

import quintet
from quintet.envs.fixed_shape import FixedShape
from quintet.envs.public import make_vector_env
from quintet.errors import ConfigError, EnvironmentFault, QuintetError

GREEK = spaces.Text(3, charset="aé")
SPACE = spaces.Dict({"a": spaces.Tuple((GREEK, spaces.Discrete(2))), "b": spaces.Text(2)})


def bytes_of(text: str, size: int) -> list[int]:
    code = list(text.encode())
    return code + [0] * (size - len(code))


def test_texts_become_bytes_with_room_for_the_longest_and_zeros_behind_them():
    env = make_vector_env(lambda: Custom(SPACE, {"a": ("aé", 1), "b": ""}), 2)
    leaves = env.spaces.observation
    assert leaves["a"][0] == spaces.Box(0, 255, (6,), np.uint8)  # é takes two bytes
    assert leaves["b"] == spaces.Box(0, 255, (2,), np.uint8)
    rows = record(env, [1, 2], np.zeros((2, 2), np.int64)).obs
    assert rows["a/0"][0].tolist() == [bytes_of("aé", 6)] * 2
    assert rows["a/1"][-1].tolist() == [1, 1]
    assert rows["b"][-1].tolist() == [[0, 0]] * 2


def test_a_plain_text_and_a_mask_from_info():
    class Masked(Custom):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"action_mask": np.array([1, 0], np.int8)}

        def step(self, action):
            return *super().step(action)[:4], {"action_mask": np.array([0, 1], np.int8)}

    env = make_vector_env(lambda: Masked(spaces.Text(4), "go"), 1, mask_from_info=True)
    rows = record(env, [1], np.zeros((1, 1), np.int64)).obs
    assert rows["obs"][:, 0].tolist() == [bytes_of("go", 4)] * 2
    assert rows["action_mask"][:, 0].tolist() == [[1, 0], [0, 1]]


def test_a_text_that_is_too_long_or_no_text_ends_the_run():
    for wrong, says in (("abc", "at most 2 bytes, got 3: 'abc'"), (7, "gave shape")):
        env = make_vector_env(lambda x=wrong: Custom(spaces.Text(2), "ab", wrong_at=2, wrong=x), 1)
        with pytest.raises(EnvironmentFault, match=f"step 2 .*{says}"):
            record(env, [1], np.zeros((3, 1), np.int64))


def test_texts_of_vector_environments_are_refused_with_the_way_out():
    make = lambda: Custom(spaces.Text(2), "ab")  # noqa: E731
    with pytest.raises(
        ConfigError, match="give a function that makes one environment: its strings"
    ):
        make_vector_env(gymnasium.vector.AsyncVectorEnv([make], context="spawn", daemon=True))


class Words(spaces.Space):
    """Texts without a greatest length, as MiniGrid's missions are."""

    def __init__(self):
        super().__init__((), str)


def test_texts_of_unknown_length_have_room_for_512_bytes():
    space = spaces.Dict({"mission": Words()})
    long = {"mission": "x" * 513}
    env = make_vector_env(lambda: Custom(space, {"mission": "go"}, wrong_at=2, wrong=long), 1)
    assert env.spaces.observation["mission"] == spaces.Box(0, 255, (512,), np.uint8)
    with pytest.raises(EnvironmentFault, match=r"step 2 .*at most 512 bytes, got 513"):
        record(env, [1], np.zeros((3, 1), np.int64))
    roomy = FixedShape(Custom(space, long), max_bytes=600)
    assert roomy.reset()[0]["mission"].tolist() == [120] * 513 + [0] * 87


class Told(gymnasium.Env):
    """The text says which action is paid."""

    observation_space, action_space = spaces.Text(3), spaces.Discrete(2)

    def _show(self):
        self.right = int(self.np_random.integers(2))
        return ("no", "yes")[self.right]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 8
        return self._show(), {}

    def step(self, action):
        self.left -= 1
        paid = float(action == self.right)
        return self._show(), paid, self.left == 0, False, {}


def test_a_policy_is_asked_with_texts_or_their_bytes(tmp_path):
    config = {"eval.episodes": 0, "report.progress": False, "learning_rate": 3e-3}
    config |= {"unroll_steps": 64, "minibatch_steps": 64}
    policy = quintet.train("ppo", Told, 4096, run_dir=tmp_path / "run", config=config).policy
    assert quintet.evaluate(policy, Told, episodes=5).mean == 8.0
    assert policy.act("yes")[0] == 1
    assert policy.act(["no", "yes", "no"])[0].tolist() == [0, 1, 0]
    coded = np.array([bytes_of("yes", 3), bytes_of("no", 3)], np.uint8)
    assert policy.act(coded)[0].tolist() == [1, 0]
    with pytest.raises(QuintetError, match="at most 3 bytes, got 5"):
        policy.act("maybe")


def test_sequences_become_items_with_zeros_behind_them_and_their_count():
    item = spaces.Dict(
        {
            "at": spaces.Box(1.0, 5.0, (2,), np.float64),
            "kind": spaces.Discrete(3, start=4),
            "name": spaces.Text(2),
            "sizes": spaces.MultiDiscrete([2, 3]),
            "on": spaces.MultiBinary(2),
        }
    )
    space = spaces.Dict({"a": spaces.Sequence(item), "b": spaces.Box(0, 1, (1,))})
    one = {"at": np.array([1.5, 2.5]), "kind": 4, "name": "go"}
    one |= {"sizes": np.array([0, 2]), "on": np.array([1, 0], np.int8)}
    two = {**one, "kind": np.int64(6), "name": ""}
    obs = {"a": (one, two), "b": np.zeros(1, np.float32)}
    env = make_vector_env(lambda: Custom(space, obs, wrong_at=1, wrong={**obs, "a": ()}), 1)
    found = env.spaces.observation["a"]
    assert found["count"] == spaces.Discrete(33)
    assert found["items"]["at"] == spaces.Box(0.0, 5.0, (32, 2), np.float32)
    assert found["items"]["kind"] == spaces.MultiDiscrete([4] * 32)
    rows = record(env, [1], np.zeros((1, 1), np.int64)).obs
    first, last = ({name: x[t, 0] for name, x in rows.items()} for t in (0, 1))
    assert first["a/count"] == 2
    assert first["a/items/at"][:3].tolist() == [[1.5, 2.5], [1.5, 2.5], [0, 0]]
    assert first["a/items/kind"][:3].tolist() == [1, 3, 0]  # 0: no item
    assert first["a/items/name"][:2].tolist() == [bytes_of("go", 2), [0, 0]]
    assert first["a/items/sizes"][:3].tolist() == [[1, 3], [1, 3], [0, 0]]
    assert first["a/items/on"][:3].tolist() == [[1, 0], [1, 0], [0, 0]]
    assert all(not x.any() for name, x in last.items() if name.startswith("a/"))


@pytest.mark.parametrize(
    ("space", "obs", "items", "inner"),
    [
        (spaces.Sequence(spaces.Discrete(3), stack=True), np.array([2, 0]), [3, 1, 0], None),
        (spaces.Sequence(spaces.Sequence(spaces.Discrete(3))), ((), (2, 1)), [1, 3, 0], [4, 3, 1]),
    ],
)
def test_stacked_and_nested_sequences(space, obs, items, inner):
    env = FixedShape(Custom(space, obs), 3)
    found = env.reset()[0]
    assert env.observation_space.contains(found)
    assert found["count"] == 2
    if inner is None:
        assert found["items"].tolist() == items
    else:
        assert found["items"]["count"].tolist() == items  # from 1 on, as 0 is no item
        assert found["items"]["items"].tolist() == [[1, 1, 1], inner, [0, 0, 0]]


def test_a_stack_of_dicts():
    item = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), "y": spaces.Discrete(2)})
    stack = {"x": np.array([[0.5, -0.5]], np.float32), "y": np.array([1])}
    found = FixedShape(Custom(spaces.Sequence(item, stack=True), stack), 2).reset()[0]
    assert found["items"]["x"].tolist() == [[0.5, -0.5], [0, 0]]
    assert found["items"]["y"].tolist() == [2, 0]
    assert found["count"] == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([np.zeros(2)] * 33, r"at most 32 items, got 33; .*FixedShape\(env, max_items"),
        ([np.zeros(3)], "an item of a sequence must be of Box"),
        ([np.array(["a", "b"])], "an item of a sequence must be of Box"),
        (7, "an observation must be a sequence of Box.*, got 7"),
    ],
)
def test_what_does_not_fit_a_sequence_ends_the_run(wrong, says):
    space = spaces.Sequence(spaces.Box(-1, 1, (2,)))
    env = make_vector_env(lambda: Custom(space, (), wrong_at=2, wrong=wrong), 1)
    with pytest.raises(EnvironmentFault, match=f"(?s)step 2 .*{says}"):
        record(env, [1], np.zeros((3, 1), np.int64))


PAIR = spaces.Dict({"x": spaces.Discrete(3), "y": spaces.MultiBinary(2)})


@pytest.mark.parametrize(
    ("item", "wrong"),
    [
        (spaces.Discrete(3), 1.7),
        (spaces.Discrete(3), 3),
        (spaces.Discrete(3), "a"),
        (spaces.Discrete(3), None),
        (spaces.MultiDiscrete([2, 3]), np.array([0.5, 1.0])),
        (spaces.MultiBinary(2), np.array([256, 0])),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0.5, 1.0])),
        (PAIR, {"x": 1}),
        (PAIR, 3),
    ],
)
def test_items_that_are_not_as_declared_are_refused(item, wrong):
    with pytest.raises(ValueError, match=r"of a sequence must be of .*, got"):
        FixedShape(Custom(spaces.Sequence(item), (wrong,))).reset()


def test_values_of_small_types_have_room_for_no_item():
    item = spaces.MultiDiscrete([255], dtype=np.uint8)
    found = FixedShape(Custom(spaces.Sequence(item), (np.array([254], np.uint8),)), 2).reset()[0]
    assert found["items"].tolist() == [[255], [0]]


def test_an_environment_whose_reset_takes_no_options_and_one_of_the_old_api():
    class Plain(Custom):
        def reset(self, *, seed=None):
            return super().reset(seed=seed)

    class Old(Custom):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0]

    env = make_vector_env(lambda: Plain(spaces.Text(2), "ab"), 1)
    assert record(env, [1], np.zeros((1, 1), np.int64)).obs["obs"][0, 0].tolist() == [97, 98]
    env = make_vector_env(lambda: Old(spaces.Text(2), "ab"), 1)
    with pytest.raises(EnvironmentFault, match="reset"):
        record(env, [1], np.zeros((1, 1), np.int64))


def test_there_is_room_for_an_item():
    for wrong in ({"max_items": 0}, {"max_bytes": 0}):
        with pytest.raises(ValueError, match="must be at least 1"):
            FixedShape(Custom(spaces.Text(2), ""), **wrong)


class Counted(Told):
    """How many items there are says which action is paid."""

    observation_space = spaces.Sequence(spaces.Discrete(2))

    def _show(self):
        self.right = int(self.np_random.integers(2))
        return (0,) * (1 + 2 * self.right)


@pytest.mark.slow
def test_a_sequence_can_be_learned_from(tmp_path):
    config = {"eval.episodes": 0, "report.progress": False, "learning_rate": 3e-3}
    config |= {"unroll_steps": 64, "minibatch_steps": 64}
    policy = quintet.train("ppo", Counted, 4096, run_dir=tmp_path / "run", config=config).policy
    assert quintet.evaluate(policy, Counted, episodes=5).mean == 8.0
    env = FixedShape(Counted())
    obs, _ = env.reset(seed=1)
    assert policy.act(obs)[0] == env.unwrapped.right
