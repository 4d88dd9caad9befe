"""A policy as a thing of its own: found, asked, saved and loaded."""

import copy
import importlib
import json
import multiprocessing
import pickle
import pickletools
import shutil
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import small_run_helpers
import torch
from gymnasium import spaces
from small_run_helpers import TOY

import quintet
from quintet.checkpoints import checkpoint
from quintet.envs.gymnasium import leaf_of
from quintet.errors import CheckpointError, QuintetError
from quintet.runtime.torch_settings import OwnTorch
from quintet.spaces import leaf_keys
from quintet.types import Spaces

SMALL = small_run_helpers.SMALL | {"eval.episodes": 2, "checkpoint.interval_iterations": 1}


class Mixed(gymnasium.Env):
    """Nested observations of several kinds."""

    def __init__(self) -> None:
        inner = spaces.Dict({"flags": spaces.MultiBinary(3), "kind": spaces.Discrete(4, start=2)})
        self.observation_space = spaces.Dict(
            {"x": spaces.Box(-1, 1, (2,), np.float64), "inner": inner}
        )
        self.action_space = spaces.MultiDiscrete([2, 3], start=[5, -1])
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), float(action[0]), self.steps >= 5, False, {}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy") / "run"
    return quintet.train("ppo", TOY, 256, run_dir=folder, config=SMALL)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy") / "mixed"
    return quintet.train("ppo", Mixed, 128, run_dir=folder, config=SMALL)


@pytest.fixture(scope="module")
def continuous(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy") / "continuous"
    config = {**SMALL, "env.kwargs": {"size": 2}}
    return quintet.train("ppo", "quintet.envs.toy:Target", 128, run_dir=folder, config=config)


def weights(policy: quintet.Policy) -> dict[str, bytes]:
    return {name: x.numpy().tobytes() for name, x in policy.publication.tensors.items()}


OBSERVATIONS = np.eye(3, dtype=np.float32)


def test_load_finds_run_checkpoint_best_and_policy_folder(run):
    final = weights(run.policy)
    assert weights(quintet.load(run.run_dir)) == final
    assert weights(quintet.load(str(run.run_dir))) == final
    assert weights(quintet.load(run.run_dir / "policy")) == final
    newest, *_, oldest = sorted((run.run_dir / "checkpoints").iterdir(), reverse=True)
    assert weights(quintet.load(newest)) == final
    older = weights(quintet.load(oldest))
    assert older != final
    assert weights(quintet.load(run.run_dir, oldest.name)) == older
    assert weights(quintet.load(run.run_dir, str(oldest))) == older
    best = quintet.load(run.run_dir, "best")
    assert weights(best) == weights(quintet.load(run.run_dir / "best"))
    assert best.env.id == TOY


def test_load_says_what_is_missing(run, tmp_path):
    with pytest.raises(CheckpointError, match=r"policy folder, got .*does not exist"):
        quintet.load(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="holds no checkpoint yet"):
        quintet.load(tmp_path)
    with pytest.raises(CheckpointError, match=f"give the run's folder, {run.run_dir}$"):
        quintet.load(run.run_dir / "checkpoints")
    (tmp_path / "theirs.zip").write_bytes(b"PK")
    for which in ("latest", "best"):
        with pytest.raises(CheckpointError, match=r"theirs.zip, which is a file: .* of other libr"):
            quintet.load(tmp_path / "theirs.zip", which)
    (tmp_path / "theirs.zip").unlink()
    with pytest.raises(CheckpointError, match="path must be that of a run or a policy, got None"):
        quintet.load(None)
    with pytest.raises(CheckpointError, match="holds no checkpoint yet"):
        quintet.load(tmp_path, "best")
    shutil.copytree(run.run_dir / "policy", tmp_path / "policy_1" / "policy")
    for which in ("latest", "best"):
        with pytest.raises(CheckpointError, match=r"final policy only: give \S+/policy_1/policy"):
            quintet.load(tmp_path / "policy_1", which)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*000000999"):
        quintet.load(run.run_dir, "000000999")


def test_act_on_one_observation_and_on_a_batch(run):
    single, state = run.policy.act(OBSERVATIONS[0])
    assert single.shape == ()
    assert single in (0, 1, 2)
    batch, _ = run.policy.act(OBSERVATIONS)
    assert batch.shape == (3,)
    assert [int(run.policy.act(row, state)[0]) for row in OBSERVATIONS] == batch.tolist()
    assert run.policy.act(OBSERVATIONS.tolist())[0].tolist() == batch.tolist()


def test_deterministic_is_the_mode(run, continuous):
    actor = run.policy.recorder("params_mu")
    out = actor.act({"obs": torch.from_numpy(OBSERVATIONS)}, {}, torch.ones(3).bool(), None)
    logits = out.record["params_mu"].numpy()
    assert run.policy.act(OBSERVATIONS)[0].tolist() == logits.argmax(-1).tolist()
    obs = np.array([[0.5, -0.5]], np.float32)
    out = continuous.policy.recorder("params_mu").act(
        {"obs": torch.from_numpy(obs)}, {}, torch.ones(1).bool(), None
    )
    mean = out.record["params_mu"].numpy()[:, :2]
    assert (np.abs(mean) < 1).all()  # so that the bounds [-1, 1] change nothing
    # By way of the bounds, numbers of size 1, of which rounding leaves 6e-8.
    np.testing.assert_allclose(continuous.policy.act(obs)[0], mean, rtol=0, atol=1e-7)


def test_stochastic_differs_from_call_to_call(run, continuous):
    many = np.repeat(OBSERVATIONS[:1], 200, 0)
    assert set(run.policy.act(many, deterministic=False)[0].tolist()) == {0, 1, 2}
    assert len(set(run.policy.act(many)[0].tolist())) == 1
    obs = np.zeros(2, np.float32)
    one, two = (continuous.policy.act(obs, deterministic=False)[0] for _ in range(2))
    assert one.shape == (2,)
    assert not np.array_equal(one, two)
    assert np.array_equal(continuous.policy.act(obs)[0], continuous.policy.act(obs)[0])
    wide = continuous.policy.act(np.zeros((500, 2), np.float32), deterministic=False)[0]
    assert np.abs(wide).max() == 1.0  # clipped to the bounds, std is about 1


def test_nested_observations(mixed):
    policy = mixed.policy
    obs = {"x": np.zeros(2), "inner": {"flags": np.zeros(3, np.int8), "kind": 3}}
    action, _ = policy.act(obs)
    assert Mixed().action_space.contains(action)
    batch = {
        "x": np.zeros((4, 2)),
        "inner": {"flags": np.zeros((4, 3), np.int8), "kind": np.full(4, 3)},
    }
    assert policy.act(batch)[0].tolist() == [action.tolist()] * 4
    flat = {"x": np.zeros(2), "inner/flags": np.zeros(3, np.int8), "inner/kind": 3}
    assert policy.act(flat)[0].tolist() == action.tolist()
    with pytest.raises(QuintetError, match=r"leaves \['inner/flags', 'inner/kind', 'x'\]"):
        policy.act({"x": np.zeros(2)})
    with pytest.raises(QuintetError, match=r"leaf 'x' must be of shape .*got shape"):
        policy.act({**obs, "x": np.zeros(3)})
    mixed_batch = {"x": np.zeros((4, 2)), "inner": obs["inner"]}  # one leaf batched, two not
    with pytest.raises(QuintetError, match=r"must all be of one observation, or all be batches"):
        policy.act(mixed_batch)
    obs["inner"]["kind"] = 1
    with pytest.raises(QuintetError, match=r"in Discrete\(4, start=2\), got values from 1"):
        policy.act(obs)


def test_spaces_of_an_older_description_are_the_stored_ones(mixed):
    about = {name: x for name, x in mixed.policy.description.items() if name != "own"}
    older = quintet.Policy(about, mixed.policy.publication)
    obs = {"x": np.zeros(2), "inner": {"flags": np.zeros(3, np.int8), "kind": 1}}
    assert (older.act(obs)[0] < [2, 3]).all()
    assert len(quintet.evaluate(older, Mixed, episodes=1).returns) == 1


def test_where_episodes_begin_is_said_or_follows_from_the_state(run, monkeypatch):
    """A recurrent policy forgets by `is_first`; this one only shows what reaches it."""
    policy = quintet.load(run.run_dir)
    seen: list[tuple[list[bool], float]] = []
    act = policy.actor.act

    def watched(obs, state, is_first, noise):
        seen.append((is_first.tolist(), float(state.get("h", torch.zeros(1)).sum())))
        out = act(obs, {}, is_first, noise)
        return replace(out, state={"h": torch.ones(len(is_first), 2)})

    monkeypatch.setattr(policy.actor, "act", watched)
    monkeypatch.setattr(policy.actor, "initial_state", lambda n: {"h": torch.zeros(n, 2)})
    _, state = policy.act(OBSERVATIONS)
    assert state["h"].shape == (3, 2)
    policy.act(OBSERVATIONS, state)
    policy.act(OBSERVATIONS, state, is_first=np.array([False, True, False]))
    policy.act(OBSERVATIONS, state, is_first=[True, False, False])
    policy.act(OBSERVATIONS, state, is_first=True)
    policy.act(OBSERVATIONS, is_first=False)
    assert seen == [
        ([True] * 3, 0.0),
        ([False] * 3, 6.0),
        ([False, True, False], 6.0),
        ([True, False, False], 6.0),
        ([True] * 3, 6.0),
        ([False] * 3, 0.0),
    ]
    _, state = policy.act(OBSERVATIONS[0])  # one observation: a batch of one inside
    assert state["h"].shape == (1, 2)
    policy.act(OBSERVATIONS[0], state)
    policy.act(OBSERVATIONS[0], state, is_first=True)
    assert seen[-2:] == [([False], 2.0), ([True], 2.0)]
    for given in ({"is_first": [True, False]}, {"state": state}, {"is_first": np.ones((3, 1))}):
        with pytest.raises(QuintetError, match=r"of 3 observations must .*got"):
            policy.act(OBSERVATIONS, **given)
    for wrong in ("no", [0.5, 1.0, 0.0]):
        with pytest.raises(QuintetError, match=r"is_first of 3 observations must be"):
            policy.act(OBSERVATIONS, is_first=wrong)


class Declared(gymnasium.Env):
    """Ends at once; observes samples of its space."""

    def __init__(self, observation: spaces.Space, action: spaces.Space | None = None) -> None:
        self.observation_space = observation
        self.action_space = action or spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.sample(), {}

    def step(self, action):
        return self.sample(), 0.0, True, False, {}

    def sample(self):
        obs = self.observation_space.sample()
        if "action_mask" in obs:
            obs["action_mask"][:] = 1
        return obs


def declared(folder, observation: spaces.Space, action: spaces.Space | None = None, **config):
    given = {**SMALL, "eval.episodes": 0, **config}
    env = partial(Declared, observation, action)
    return quintet.train("ppo", env, 64, run_dir=folder, config=given).policy


MASKED = spaces.Dict({"x": spaces.Box(-1, 1, (1,)), "action_mask": spaces.MultiBinary(5)})
PARTS = spaces.Dict(
    {
        "picture": spaces.Box(0, 255, (2, 2), np.uint8),
        "kind": spaces.Discrete(3),
        "digits": spaces.MultiDiscrete([2, 3]),
        "flags": spaces.MultiBinary(2),
        "x": spaces.Box(-1, 1, (1,), np.float32),
    }
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return declared(tmp_path_factory.mktemp("policy") / "parts", PARTS)


GOOD = {
    "picture": np.full((2, 2), 255, np.uint8),
    "kind": 2,
    "digits": np.array([1, 2]),
    "flags": np.array([0, 1], np.int8),
    "x": np.array([0.5], np.float32),
}


@pytest.mark.parametrize(
    "given",
    [
        {"picture": [[0, 255], [1, 2]]},
        {"kind": np.int8(0), "flags": [True, False]},
        {"x": [1]},
        {"x": torch.zeros(1, requires_grad=True)},
        {"picture": GOOD["picture"][::-1], "digits": torch.tensor([0, 0])},
    ],
)
def test_what_means_the_same_is_taken(parts, given):
    assert parts.act(GOOD | given)[0] in (0, 1)


@pytest.mark.parametrize(
    ("leaf", "wrong", "says"),
    [
        ("picture", np.full((2, 2), 0.5, np.float32), "got dtype float32; convert it"),
        ("picture", np.full((2, 2), 300.5), "got dtype float64"),
        ("picture", np.full((2, 2), -1), "got values from -1 to -1"),
        ("picture", np.full((2, 2), 256), "got values from 256 to 256"),
        ("kind", 3, "got values from 3 to 3"),
        ("kind", 1.7, "got dtype float64"),
        ("digits", np.array([2, 0]), "got values from 0 to 2"),
        ("digits", np.array([1, -1]), "got values from -1 to 1"),
        ("flags", np.array([0, 7], np.int8), "got values from 0 to 7"),
        ("flags", np.array([0, 0.5]), "got dtype float64"),
        ("x", np.array([np.nan]), "not finite"),
        ("x", np.array([np.inf], np.float32), "not finite"),
        ("x", np.array([1j]), "got dtype complex128"),
        ("x", np.array(["a"]), "got dtype <U1"),
        ("x", np.array([None]), "got dtype object"),
        ("x", [[1.0], [1.0, 2.0]], "got something that can't be an array"),
    ],
)
def test_observations_of_wrong_numbers_are_refused(parts, leaf, wrong, says):
    with pytest.raises(QuintetError, match=rf"leaf '{leaf}' must be of .*, .*{says}"):
        parts.act(GOOD | {leaf: wrong})


def test_batches_of_several_sizes_are_refused(parts):
    batch = {name: np.stack([x] * 3) for name, x in GOOD.items()}
    assert parts.act(batch)[0].shape == (3,)
    with pytest.raises(
        QuintetError, match=r"the same number, at least 1, in every leaf, got .*'x': 2"
    ):
        parts.act(batch | {"x": np.zeros((2, 1), np.float32)})
    with pytest.raises(QuintetError, match="a batch with the same number, at least 1"):
        parts.act({name: x[:0] for name, x in batch.items()})


def test_a_mask_must_allow_something_in_every_choice(tmp_path):
    policy = declared(tmp_path, MASKED, spaces.MultiDiscrete([2, 3]))
    x = np.zeros(1, np.float32)
    assert policy.act({"x": x, "action_mask": [0, 1, 0, 0, 1]})[0].tolist() == [1, 2]
    # As MaskablePPO's predict takes it; one and several.
    both, given = np.stack([x, x]), np.array([0, 1, 0, 0, 1])
    assert policy.predict({"x": x}, action_masks=given)[0].tolist() == [1, 2]
    masks = np.stack([given, given])
    assert policy.predict({"x": both}, action_masks=masks)[0].tolist() == [[1, 2]] * 2
    with pytest.raises(QuintetError, match=r"all be of one .*'action_mask': \(1, 5\).*'x': \(1,\)"):
        policy.act({"x": x, "action_mask": given[None]})
    for mask in ([0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0] * 5):
        with pytest.raises(QuintetError, match=r"allow at least one .*of sizes \[2, 3\]"):
            policy.act({"x": x, "action_mask": mask})
        both = {"x": np.stack([x, x]), "action_mask": [[1] * 5, mask]}
        with pytest.raises(QuintetError, match="allow at least one"):
            policy.act(both)


def test_states_that_are_not_the_policys_are_refused(run, tmp_path):
    box = spaces.Box(-1, 1, (2,), np.float32)
    config = {"model.core": "lstm", "model.core_size": 4, "bptt_steps": 16}
    policy = declared(tmp_path, box, **config)
    obs = np.ones(2, np.float32)
    _, state = policy.act(obs)
    _, after = policy.act(obs, state)
    _, same = policy.act(obs, {name: x.numpy() for name, x in state.items()})
    assert all(torch.equal(after[name], same[name]) for name in after)
    name = next(iter(state))
    for wrong, says in (
        ({}, r"got \[\]"),
        ({**state, "x": torch.zeros(1)}, r"got \["),
        ((1, 2), "got tuple"),
        ({**state, name: state[name][:, :3]}, rf"got {name}: torch.float32 \(1, 3\)"),
        ({**state, name: state[name].double()}, rf"got {name}: torch.float64"),
        ({**state, name: "abc"}, f"got {name}: "),
    ):
        with pytest.raises(QuintetError, match=f"a state of 1 observations must .*, {says}"):
            policy.act(obs, wrong)
    with pytest.raises(QuintetError, match=r"must have the leaves \{\}, got \['x'\]"):
        run.policy.act(OBSERVATIONS[0], {"x": torch.zeros(1)})


ENCODER = """
import torch
class Mine(torch.nn.Module):
    def __init__(self, leaves):
        super().__init__()
        self.LAYER = torch.nn.Linear(3, 4)
        self.feature_size = 4
    def forward(self, obs):
        return self.LAYER(obs["obs"])
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ENCODER.replace("LAYER", "other"), "the class that model.encoder=changed:Mine names: .*"
         r"Missing key\(s\).*other\.weight.*Unexpected key\(s\).*first\.weight"),
        ("class Mine(:", "importing it raised SyntaxError"),
        ("raise RuntimeError('licence')", "importing it raised RuntimeError: licence"),
    ],
)  # fmt: skip
def test_a_changed_or_broken_encoder_is_told(tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    config = SMALL | {"model.encoder": "changed:Mine", "model.policy_hidden": None}
    (tmp_path / "changed.py").write_text(ENCODER.replace("LAYER", "first"))
    try:
        quintet.train("ppo", TOY, 64, run_dir="run", config=config)
        sys.modules.pop("changed")
        (tmp_path / "changed.py").write_text(text)
        importlib.invalidate_caches()
        with pytest.raises(QuintetError, match=says):
            quintet.load("run")
        with pytest.raises(QuintetError, match=says):
            quintet.train("ppo", TOY, 128, run_dir="run", config=config)
    finally:
        sys.modules.pop("changed", None)


@pytest.mark.parametrize("shape", [(), (2,), (4,), (2, 4), (1, 1, 3), (3, 1)])
def test_observations_of_a_wrong_shape_are_refused(run, shape):
    with pytest.raises(
        QuintetError, match=r"leaf 'obs' must be of shape \(3,\).*got shape"
    ) as raised:
        run.policy.act(np.zeros(shape, np.float32))
    assert str(shape) in str(raised.value)


def test_save_and_load_again_give_the_same_actions(run, mixed, continuous, tmp_path):
    for index, result in enumerate((run, mixed, continuous)):
        folder = result.policy.save(tmp_path / "deep" / str(index))
        assert folder == tmp_path / "deep" / str(index)
        again = quintet.load(folder)
        assert weights(again) == weights(result.policy)
        assert again.description == result.policy.description
        assert again.spaces == result.policy.spaces
        obs = (result.policy.spaces.own or result.policy.spaces).observation.sample()
        np.testing.assert_array_equal(again.act(obs)[0], result.policy.act(obs)[0])
    # over an older one
    run.policy.save(tmp_path / "deep/2")
    assert weights(quintet.load(tmp_path / "deep/2")) == weights(run.policy)


def test_saving_removes_no_checkpoint_of_a_run(run, tmp_path):
    (newest, *_) = sorted((run.run_dir / "checkpoints").iterdir(), reverse=True)
    before = {path: path.read_bytes() for path in newest.iterdir()}
    with pytest.raises(CheckpointError, match=r"is a checkpoint of a run.*give another folder"):
        run.policy.save(newest)
    assert {path: path.read_bytes() for path in newest.iterdir()} == before


def test_saving_takes_the_place_of_nothing_else(run, tmp_path):
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("mine")
    for place in ("notes", "folder"):
        with pytest.raises(
            CheckpointError, match="holds something else, which saving would remove"
        ):
            run.policy.save(tmp_path / place)
    assert {path.name for path in tmp_path.iterdir()} == {"notes", "folder"}


def test_a_place_that_can_not_be_saved_to_is_told_as_such(run, tmp_path):
    with pytest.raises(CheckpointError, match=r"policy's folder must be made of .*'my policy'"):
        run.policy.save(tmp_path / "my policy")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"can't write .*or give another folder$") as raised:
        run.policy.save(tmp_path / "file" / "policy")
    assert "run_dir" not in str(raised.value)
    assert "checkpoint is" not in str(raised.value)


def test_a_policy_of_a_run_is_no_window_on_its_learner(run):
    """What training does later must not change a policy that was handed out."""
    before = weights(run.policy)
    config = {**SMALL, "checkpoint.interval_iterations": 1}
    later = quintet.train("ppo", TOY, 384, run_dir=run.run_dir, config=config)
    assert weights(later.policy) != before
    assert weights(run.policy) == before


def test_a_saved_policy_holds_no_code(run, monkeypatch):
    import pickle

    def forbidden(*_, **__):
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "load", forbidden)
    monkeypatch.setattr(pickle, "loads", forbidden)
    monkeypatch.setattr(pickle, "Unpickler", forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    for place in (run.run_dir, run.run_dir / "policy", run.run_dir / "best"):
        quintet.load(place)
    files = [
        path
        for part in ("checkpoints", "best", "policy")
        for path in (run.run_dir / part).rglob("*")
        if path.is_file()
    ]
    assert len(files) > 9
    assert {path.suffix for path in files} == {".safetensors", ".json", ".md"}
    for path in files:
        data = path.read_bytes()
        if path.suffix == ".json":
            json.loads(data)
        with pytest.raises(ValueError, match=r"opcode|pickle exhausted"):
            list(pickletools.genops(data))


def test_a_damaged_policy_is_refused(run, tmp_path):
    folder = run.policy.save(tmp_path / "policy")
    file = folder / "policy.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"policy\.safetensors is corrupted"):
        quintet.load(folder)
    assert checkpoint.read(run.run_dir / "policy")  # the other one is as it was


def test_a_policy_can_be_pickled_and_copied(run, mixed):
    for result, obs in ((run, OBSERVATIONS), (mixed, Mixed().reset(seed=1)[0])):
        policy = quintet.load(result.run_dir, threads=2)
        policy.value(obs)
        policy.act(obs, deterministic=False)
        for other in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
            assert weights(other) == weights(policy)
            assert (other.description, other.threads) == (policy.description, policy.threads)
            assert np.array_equal(other.act(obs)[0], policy.act(obs)[0])
            assert quintet.evaluate(other, episodes=1).mean == (
                quintet.evaluate(policy, episodes=1).mean
            )


def played(policy: quintet.Policy, obs: Any) -> Any:
    return policy.act(obs)[0], quintet.evaluate(policy, episodes=2).mean


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_policy_acts_in_a_pool_of_processes(run, start):
    """Also in forks of a process that has computed in several threads, which these lack."""
    policy = quintet.load(run.run_dir, threads=2)
    with OwnTorch(2):
        torch.ones(512, 512) @ torch.ones(512, 512)
    wanted = played(policy, OBSERVATIONS)
    with multiprocessing.get_context(start).Pool(1) as pool:
        got = pool.apply_async(played, (policy, OBSERVATIONS)).get(60.0)
    assert np.array_equal(got[0], wanted[0])
    assert got[1] == wanted[1]


def test_a_sequence_is_said_to_be_given_in_a_fixed_shape():
    items = spaces.Dict({"items": spaces.Box(0, 1, (4, 2)), "count": spaces.Discrete(5)})
    for space, given in (
        (items, (np.ones(2),)),
        (spaces.Dict({"bag": items}), {"bag": (np.ones(2),)}),
    ):
        policy = object.__new__(quintet.Policy)
        policy._own = policy.spaces = Spaces(space, spaces.Discrete(3))
        policy.critic_leaves = frozenset()
        policy.leaves = [leaf_of(path, *found) for path, found in leaf_keys(space).items()]
        with pytest.raises(QuintetError, match=r"give sequences as .*FixedShape makes them"):
            policy.act(given)
