"""Vector environments of tensors with the interfaces of other libraries."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from small_run_helpers import SMALL
from tensor_helpers import Counting

import quintet
from quintet.commands.cli import main
from quintet.envs.given_tensors import adapted, observed
from quintet.envs.public import make_vector_env
from quintet.envs.tensor import gives_tensors
from quintet.envs.vector import allocate_obs, allocate_row
from quintet.errors import ConfigError, EnvironmentFault
from quintet.run import sampling
from quintet.spaces import leaf_keys

COUNT = 3


class Isaac:
    """As Isaac Lab's and mjlab's: groups of observations, and no final ones."""

    metadata = {"render_modes": [None]}

    def __init__(self, num_envs: int = COUNT) -> None:
        self.num_envs, self.device, self._env = num_envs, "cpu", Counting(num_envs, final=False)
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.single_observation_space = spaces.Dict(
            {"policy": box, "critic": spaces.Dict({"x": box})}
        )
        self.single_action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.closed = False

    @property
    def unwrapped(self):
        return self

    def groups(self, obs):
        return {"policy": obs["obs"], "critic": {"x": 2 * obs["obs"]}}

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return self.groups(self._env.restart(seed or 0)), {}

    def step(self, action):
        assert action.shape == (self.num_envs, 2)
        out = self._env.step((action[:, 0] > 0).long())
        return self.groups(out.obs), out.reward, out.terminated, out.truncated, {"log": {}}

    def close(self):
        self.closed = True


class OwnSpaces(Isaac):
    """As newer versions of mjlab: spaces of classes of its own."""

    def __init__(self, num_envs: int = COUNT) -> None:
        super().__init__(num_envs)
        self.single_observation_space = SimpleNamespace(spaces={})
        self.single_action_space = SimpleNamespace(shape=(2,))


class ManiSkill(gymnasium.vector.VectorEnv):
    """As ManiSkill's: a vector environment that gives final observations and infos at endings."""

    def __init__(self, num_envs: int = COUNT) -> None:
        self.num_envs, self._env = num_envs, Counting(num_envs)
        self.device = torch.device("cpu")
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.single_action_space = spaces.Discrete(2, start=5)

    def reset(self, *, seed=None, options=None):
        return self._env.restart(seed or 0)["obs"], {}

    def step(self, action):
        assert action.min() >= 5
        out = self._env.step(action - 5)
        infos = {"success": out.success, "elapsed_steps": out.reward}
        if (out.terminated | out.truncated).any():
            infos = {
                "success": torch.zeros_like(out.success), "final_info": {"success": out.success},
                "final_observation": out.final_obs["obs"],
            }  # fmt: skip
        return out.obs["obs"], out.reward.unsqueeze(1), out.terminated, out.truncated, infos


class Arrays(Isaac):
    """As a simulator in JAX: arrays with DLPack, of another library than PyTorch."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = COUNT) -> None:
        super().__init__(num_envs)
        self._env = Counting(num_envs, AutoresetMode.NEXT_STEP)

    def groups(self, obs):
        found = super().groups(obs)
        return {"policy": found["policy"].numpy(), "critic": {"x": found["critic"]["x"].numpy()}}

    def step(self, action):
        assert isinstance(action, np.ndarray)
        obs, *rest, infos = super().step(torch.from_numpy(np.array(action)))
        return obs, *(x.numpy() for x in rest), infos


class Rsl:
    """As rsl_rl's VecEnv, in its newer form."""

    def __init__(self, num_envs: int = COUNT) -> None:
        self.num_envs, self.num_actions, self.device = num_envs, 2, "cpu"
        self.max_episode_length, self.cfg, self.env = 5, {}, Isaac(num_envs)
        self.obs, _ = self.env.reset(seed=1)
        self.episode_length_buf = torch.zeros(num_envs)

    def get_observations(self):
        return self.obs

    def step(self, actions):
        self.obs, reward, terminated, truncated, _ = self.env.step(actions)
        return self.obs, reward, (terminated | truncated).long(), {"time_outs": truncated}


class OldRsl(Rsl):
    """In its older form."""

    def get_observations(self):
        return self.obs["policy"], {"observations": {"critic": self.obs["critic"]["x"]}}

    def step(self, actions):
        _, reward, done, extras = super().step(actions)
        obs, others = self.get_observations()
        return obs, reward, done, extras | others


class Legged(Rsl):
    """As legged_gym's: plain observations, privileged ones beside them, which a step gives as the
    second of five values, and zeros before the first reset."""

    privileged = True

    def __init__(self, num_envs: int = COUNT) -> None:
        super().__init__(num_envs)
        self.begun = self.obs
        self.obs = {"policy": torch.zeros(num_envs, 3), "critic": {"x": torch.zeros(num_envs, 3)}}

    def reset(self):
        self.obs = self.begun
        return self.get_observations(), self.get_privileged_observations()

    def get_observations(self):
        return self.obs["policy"]

    def get_privileged_observations(self):
        return self.obs["critic"]["x"] if self.privileged else None

    def step(self, actions):
        _, *rest = super().step(actions)
        return self.get_observations(), self.get_privileged_observations(), *rest


class Unprivileged(Legged):
    privileged = False


class PlainRsl(Rsl):
    """Plain observations, and no others."""

    def get_observations(self):
        return self.obs["policy"]

    def step(self, actions):
        _, *rest = super().step(actions)
        return self.get_observations(), *rest


class PlainFirst(Rsl):
    """Plain observations before the first step, groups after it."""

    def get_observations(self):
        return self.obs["policy"]


class Brax(Rsl):
    """As MuJoCo Playground's of Brax: flags are floats, and looking at it begins anew."""

    def groups(self):
        return {"state": self.obs["policy"], "privileged_state": self.obs["critic"]["x"]}

    def get_observations(self):
        self.obs, _ = self.env.reset(seed=1)
        return self.groups()

    def step(self, actions):
        _, reward, done, extras = super().step(actions)
        time_outs = extras["time_outs"].float()
        extras = {"time_outs": time_outs, "observations": {"critic": None}, "log": {}}
        return self.groups(), reward, done.float(), extras


class Scaled(gymnasium.vector.VectorWrapper):
    """Has a space of actions of its own."""

    def __init__(self) -> None:
        super().__init__(Bare())
        self.single_action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Bare(Isaac, gymnasium.vector.VectorEnv):
    def __init__(self) -> None:
        Isaac.__init__(self)
        self.single_action_space = spaces.Box(0.0, 10.0, (2,), np.float32)


class OtherKind(Isaac):
    """Gives floats for whole numbers."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind
        self.single_observation_space = spaces.Box(0, 255, (3,), np.uint8)

    def groups(self, obs):
        return obs["obs"].to(self.kind)


RSL = [Rsl, OldRsl, Legged, Unprivileged, PlainRsl, PlainFirst]
ALL = [Isaac, OwnSpaces, ManiSkill, Arrays, *RSL]
CRITICS = {
    Isaac: "critic/x", OwnSpaces: "critic/x", Arrays: "critic/x", Rsl: "critic/x",
    OldRsl: "critic", Legged: "critic",
}  # fmt: skip


def test_another_environments_autoreset_mode_is_not_taken(monkeypatch) -> None:
    """ALE's vector environments write theirs into the metadata that all classes share."""
    shared = gymnasium.vector.VectorEnv.metadata
    monkeypatch.setitem(shared, "autoreset_mode", AutoresetMode.NEXT_STEP)
    assert ManiSkill().metadata is shared
    assert adapted(ManiSkill(), "theirs", None).autoreset == AutoresetMode.SAME_STEP


@pytest.mark.parametrize("kind", ALL)
def test_rows_are_those_of_the_counting_environment(kind) -> None:
    env = kind()
    assert gives_tensors(env)
    assert not gives_tensors(kind)
    made = adapted(env, "theirs", None)
    assert (made.num_streams, made.device.type) == (COUNT, "cpu")
    seed = 1 if kind in RSL else 7
    own = Counting(COUNT, made.autoreset, final=kind is ManiSkill)
    begun, theirs = made.restart(seed), own.restart(seed)
    name = "obs" if kind is ManiSkill else "policy"
    assert {*leaf_keys(made.spaces.observation)} == {name, *filter(None, [CRITICS.get(kind)])}
    assert torch.equal(begun[name], theirs["obs"])
    action = torch.tensor([1, 0, 1])
    ended = 0
    for _ in range(6):
        given = action if kind is ManiSkill else action[:, None].repeat(1, 2) * 2.0 - 1.0
        mine, expected = made.step(given), own.step(action)
        assert torch.equal(mine.obs[name], expected.obs["obs"])
        if kind in CRITICS:
            assert torch.equal(mine.obs[CRITICS[kind]], 2 * expected.obs["obs"])
        assert torch.equal(mine.reward, expected.reward)
        assert torch.equal(mine.terminated, expected.terminated)
        assert torch.equal(mine.truncated, expected.truncated)
        over = expected.terminated | expected.truncated
        if kind is ManiSkill and over.any():
            assert torch.equal(mine.final_obs["obs"][over], expected.final_obs["obs"][over])
        ended += int(over.sum())
    assert ended


@pytest.mark.parametrize("kind", ALL)
def test_they_are_trained_on_their_device(tmp_path, monkeypatch, kind) -> None:
    stayed, staying = [], sampling.staying
    monkeypatch.setattr(
        sampling, "staying", lambda *given: stayed.append(staying(*given)) or stayed[-1]
    )
    own = {name: x for name, x in SMALL.items() if name != "env.num_streams"}
    own |= {"unroll_steps": 8, "minibatch_steps": 24}
    env = kind()
    with pytest.warns(UserWarning, match="no evaluation while training"):
        found = quintet.train("ppo", env, 100, run_dir=tmp_path / "given", config=own)
    assert found.metrics["env_steps"] == 100
    assert found.metrics["episode/return_mean"] > 0
    made = quintet.train(
        "ppo", kind, 100, run_dir=tmp_path / "made", config=own | {"env.num_streams": 3}
    )
    assert made.metrics["env_steps"] == 100
    assert len(stayed) == 2
    assert None not in stayed


@pytest.mark.parametrize("kind", [Isaac, Legged, Brax, Arrays, Unprivileged])
def test_simulators_are_trained_and_evaluated_by_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: type
) -> None:
    run = str(tmp_path / "run")
    leaf = {Legged: "critic", Brax: "privileged_state"}.get(kind, "critic/x")
    critic = () if kind is Unprivileged else ("--model.critic-leaves", leaf)
    command = (
        *("train", "ppo", "--env", f"test_given_tensors:{kind.__name__}", "--run-dir", run),
        *("--total-steps", "96", "--env.num-streams", "3", "--unroll-steps", "8"),
        *("--minibatch-steps", "24", "--eval.episodes", "2", "--runtime.compile", "off"),
    )
    assert main([*command, *critic]) == 0
    capsys.readouterr()
    assert main(["eval", run, "--episodes", "4", "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert 2 <= scores["length_mean"] <= 4
    assert len(scores["returns"]) == 4
    policy = quintet.load(run)
    assert policy.critic_leaves == {name for name in (leaf,) if critic}
    assert all(torch.isfinite(x).all() for x in policy.publication.tensors.values())


def test_success_is_that_of_the_ended_episode(tmp_path) -> None:
    env = adapted(ManiSkill(), "theirs", "info:success")
    env.restart(0)
    env.step(torch.zeros(COUNT, dtype=torch.int64))
    out = env.step(torch.tensor([1, 0, 0]))
    assert out.terminated.tolist() == [True, False, False]
    assert out.success.tolist() == [True, False, False]
    made = make_vector_env(ManiSkill(), success="info:lost")
    made.restart([0] * COUNT, allocate_obs(made.spaces.observation, (COUNT,)))
    made.send(np.zeros(COUNT, np.int64))
    with pytest.raises(ConfigError, match=r"info\['lost'\] at every ending"):
        made.send(np.zeros(COUNT, np.int64))


@pytest.mark.parametrize("kind", [Rsl, Legged])
@pytest.mark.parametrize("always", [False, True])
def test_success_in_extras_of_rsl_rl(tmp_path: Path, kind: type, always: bool) -> None:
    """Also of shape [B, 1], and at endings alone."""

    class Winning(kind):
        def step(self, actions):
            *parts, done, extras = super().step(actions)
            if always or done.any():
                extras = extras | {"won": (actions[:, :1] > 0).float()}
            return *parts, done, extras

    env = adapted(Winning(), "theirs", "info:won")
    actions = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0]])
    won = [env.step(actions).success for _ in range(2)]
    assert won[1].tolist() == [1.0, 0.0, 1.0]
    assert (won[0] is None) != always
    own = {name: x for name, x in SMALL.items() if name != "env.num_streams"}
    own |= {"unroll_steps": 8, "minibatch_steps": 24, "env.success": "info:won"}
    with pytest.warns(UserWarning, match="no evaluation while training"):
        found = quintet.train("ppo", Winning(), 96, run_dir=tmp_path / "run", config=own)
    assert 0.0 < found.metrics["episode/success_rate"] < 1.0
    own["env.success"] = "info:lost"
    with pytest.raises(ConfigError, match=r"info\['lost'\] at every ending"):
        quintet.train("ppo", Winning(), 96, run_dir=tmp_path / "lost", config=own)


def test_a_step_of_another_number_of_values_is_refused() -> None:
    class Three(Rsl):
        def step(self, actions):
            return super().step(actions)[:3]

    made = make_vector_env(Three())
    made.restart([0] * COUNT, allocate_obs(made.spaces.observation, (COUNT,)))
    with pytest.raises(EnvironmentFault, match=r"four values .* or five .*, but returned 3"):
        made.send(np.zeros((COUNT, 2), np.float32))


def test_actions_of_whole_numbers_are_choices() -> None:
    class Whole(ManiSkill):
        def __init__(self) -> None:
            super().__init__()
            self.single_action_space = spaces.Box(5, 6, (1,), np.int32)
            self.given: list[Any] = []

        def step(self, action):
            self.given.append(action)
            return super().step(action[:, 0])

    whole = Whole()
    env = adapted(whole, "theirs", None)
    assert env.spaces.action == spaces.MultiDiscrete([2])
    env.restart(0)
    env.step(torch.tensor([[0], [1], [0]]))
    assert whole.given[0].tolist() == [[5], [6], [5]]


def test_a_success_that_is_missing_later_is_refused() -> None:
    class Forgets(ManiSkill):
        def step(self, action):
            *parts, infos = super().step(action)
            if "final_info" in infos:
                infos = infos | {"final_info": {}}
            return *parts, infos

    made = make_vector_env(Forgets(), success="info:success")
    row = allocate_row(made.spaces.observation, COUNT)
    made.restart([0] * COUNT, row.obs)
    made.send(np.zeros(COUNT, np.int64))
    made.recv(row)
    with pytest.raises(ConfigError, match=r"info\['success'\] at every ending"):
        made.send(np.array([1, 0, 0]))


class Far(ManiSkill):
    """Observes a time in seconds, and is paid, in float64."""

    OFFSET = 1_700_000_000.0

    def __init__(self, num_envs: int = COUNT) -> None:
        super().__init__(num_envs)
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def far(self, obs):
        return obs.double() + self.OFFSET

    def reset(self, *, seed=None, options=None):
        obs, infos = super().reset(seed=seed)
        return self.far(obs), infos

    def step(self, action):
        obs, reward, *flags, infos = super().step(action)
        if "final_observation" in infos:
            infos["final_observation"] = self.far(infos["final_observation"])
        return self.far(obs), reward.double() + 0.1, *flags, infos


class FarRsl(Rsl):
    def get_observations(self):
        return {"policy": self.obs["policy"].double() + Far.OFFSET}

    def step(self, actions):
        _, reward, *rest = super().step(actions)
        return self.get_observations(), reward.double() + 0.1, *rest


@pytest.mark.parametrize(
    ("given", "dtype"), [("float32", "float32"), ("float64", "float64"), ("auto", "float64")]
)
def test_float64_observations_are_stored_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, dtype: str
) -> None:
    """On the device and through the host alike."""
    env = make_vector_env(Far, COUNT, observation_dtype=given)
    obs = allocate_obs(env.spaces.observation, (COUNT,))
    env.restart([0] * COUNT, obs)
    assert obs["obs"].dtype == dtype
    exact = [Far.OFFSET, Far.OFFSET + 1, Far.OFFSET + 2]
    assert (obs["obs"][:, 0].tolist() == exact) == (dtype == "float64")
    own = SMALL | {"env.num_streams": COUNT, "unroll_steps": 8, "minibatch_steps": 24}
    own |= {"env.observation_dtype": given, "normalize_observations": True}
    found = quintet.train("ppo", Far, 96, run_dir=tmp_path / "device", config=own)
    assert found.metrics["episode/return_mean"] % 1.0 != 0.0
    lost = "float32, in which networks compute" in (tmp_path / "device" / "log.txt").read_text()
    assert lost == (dtype == "float32")
    monkeypatch.setattr("quintet.run.sampling.staying", lambda *_: None)
    again = quintet.train("ppo", Far, 96, run_dir=tmp_path / "host", config=own)
    theirs = again.policy.publication.tensors
    assert all(torch.equal(x, theirs[n]) for n, x in found.policy.publication.tensors.items())


def test_float64_groups_of_rsl_rl() -> None:
    env = make_vector_env(FarRsl(), observation_dtype="float64")
    obs = allocate_obs(env.spaces.observation, (COUNT,))
    env.restart([0] * COUNT, obs)
    assert obs["policy"][:, 0].tolist() == [Far.OFFSET, Far.OFFSET + 1, Far.OFFSET + 2]


def test_given_ones_stay_open_and_made_ones_are_closed() -> None:
    given = Isaac()
    make_vector_env(given).close()
    assert not given.closed
    found = []
    make_vector_env(lambda num_envs: found.append(Isaac(num_envs)) or found[0], 4).close()
    assert found[0].closed


def test_a_wrappers_spaces_come_first() -> None:
    env = adapted(Scaled(), "toy", None)
    assert env.spaces.action == spaces.Box(-1.0, 1.0, (2,), np.float32)


def test_numbers_of_another_kind_are_refused() -> None:
    def begin(kind: torch.dtype) -> None:
        env = make_vector_env(OtherKind(kind))
        env.restart([1] * COUNT, allocate_obs(env.spaces.observation, (COUNT,)))

    begin(torch.uint8)
    with pytest.raises(EnvironmentFault, match=r"'obs' as torch\.uint8, gave torch\.float32"):
        begin(torch.float32)


def test_observed_spaces() -> None:
    space = observed({"a": torch.zeros(2, 3), "b": {"c": torch.zeros(2, 4, 4, dtype=torch.uint8)}})
    assert space["a"] == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert space["b"]["c"] == spaces.Box(0, 255, (4, 4), np.uint8)


def test_what_can_not_be_used_is_refused() -> None:
    class Disabled(Isaac):
        metadata = {"autoreset_mode": "Disabled"}

    class Several(Isaac):
        def __init__(self) -> None:
            super().__init__()
            self.single_action_space = spaces.Tuple([spaces.Discrete(2)])

    class Lists(Isaac):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, reward.tolist(), *rest

    with pytest.raises(ConfigError, match="must reset itself"):
        make_vector_env(Disabled())
    with pytest.raises(ConfigError, match="one kind of actions"):
        make_vector_env(Several())
    made = make_vector_env(Lists())
    made.restart([0] * COUNT, allocate_obs(made.spaces.observation, (COUNT,)))
    with pytest.raises(EnvironmentFault, match=r"arrays with DLPack, gave a builtins\.list"):
        made.send(np.zeros((COUNT, 2), np.float32))


@pytest.mark.parametrize("kind", [Isaac, ManiSkill], ids=lambda kind: kind.__name__)
def test_tensors_that_others_step_are_refused_and_stay_open(kind):
    shared = kind()
    first = make_vector_env(lambda num_envs: shared, COUNT)
    with pytest.raises(ConfigError, match="other streams use"):
        make_vector_env(lambda num_envs: shared, COUNT)
    assert not shared.closed
    first.close()
    assert shared.closed
    make_vector_env(lambda num_envs: shared, COUNT)
