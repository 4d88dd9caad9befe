"""Texts in observations are rows of bytes, in environments and for policies."""

import gymnasium
import numpy as np
import pytest
from envs_helpers import Custom, record
from gymnasium import spaces

import quintet
from quintet.envs.make import make_vector_env
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
    for wrong, says in (("abc", "at most 2 bytes is required, got 3: 'abc'"), (7, "gave shape")):
        env = make_vector_env(lambda x=wrong: Custom(spaces.Text(2), "ab", wrong_at=2, wrong=x), 1)
        with pytest.raises(EnvironmentFault, match=f"step 2 .*{says}"):
            record(env, [1], np.zeros((3, 1), np.int64))


def test_texts_of_vector_environments_and_of_unknown_length_are_refused_with_the_way_out():
    class Words(spaces.Space):
        def __init__(self):
            super().__init__((), str)

    make = lambda: Custom(spaces.Text(2), "ab")  # noqa: E731
    with pytest.raises(ConfigError, match="give what makes its single environments, whose texts"):
        make_vector_env(gymnasium.vector.AsyncVectorEnv([make], context="spawn", daemon=True))
    with pytest.raises(ConfigError, match=r"declare it as gymnasium.spaces.Text\(LENGTH\), which"):
        make_vector_env(lambda: Custom(spaces.Dict({"mission": Words()}), {}), 1)


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
    with pytest.raises(QuintetError, match="at most 3 bytes is required, got 5"):
        policy.act("maybe")
