"""What a user gives beside ids: vector environments, pools, callables that make whole groups."""

import os
import warnings
from functools import partial

import envpool
import gymnasium
import numpy as np
import pytest
from envs_helpers import record
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers import TransformReward
from scripted_helpers import Scripted

import quintet
from quintet.checkpoints import checkpoint
from quintet.envs.public import make_vector_env
from quintet.envs.toy import Target
from quintet.errors import ConfigError, EnvironmentFault
from quintet.system.importing import name_of

ACTIONS = np.random.default_rng(0).integers(0, 2, (40, 3))
SMALL = {
    "unroll_steps": 8,
    "minibatch_steps": 8,
    "num_epochs": 1,
    "report.sinks": ["jsonl"],
    "report.progress": False,
}


def make_cartpoles(num_envs: int, **kwargs):
    return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="sync", **kwargs)


class Fake(gymnasium.vector.VectorEnv):
    """Two counters; whatever is given to it replaces its answers."""

    def __init__(self, mode: object = AutoresetMode.NEXT_STEP, **replaced) -> None:
        self.num_envs = 2
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.single_observation_space = spaces.Box(-9, 99, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.count = np.zeros((2, 1), np.float32)
        self.replaced = replaced
        self.closed_ = 0
        self.seeds: list[object] = []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        if "reset" in self.replaced:
            raise self.replaced["reset"]
        if "one_seed" in self.replaced and isinstance(seed, int):
            raise KeyError("the second")
        if "one_seed" in self.replaced:
            raise self.replaced["one_seed"]
        mask = (options or {}).get("reset_mask", np.ones(2, bool))
        if self.replaced.get("ignores_mask"):
            mask[:] = True
        self.count[mask] = 0
        return self.count.copy(), {}

    def step(self, actions):
        self.count += 1
        over = self.count[:, 0] >= [2, 3]
        got = {
            "obs": self.count.copy(),
            "reward": np.ones(2),
            "terminated": over,
            "truncated": np.zeros(2, bool),
            "infos": {"final_obs": self.count.copy()},
        } | self.replaced
        if self.metadata.get("autoreset_mode") == AutoresetMode.SAME_STEP:
            self.count[over] = 0
            got["obs"] = self.replaced.get("obs", self.count.copy())
        keys = ["obs", "reward", "terminated", "truncated", "infos"]
        return tuple(got[k] for k in (keys[:4] if "short" in got else keys))

    def close_extras(self):
        self.closed_ += 1


class CartPoles(VectorWrapper):
    """Made by its own class, as an import string names it."""

    def __init__(self, num_envs: int, **kwargs) -> None:
        super().__init__(make_cartpoles(num_envs, **kwargs))


def test_a_pool_stands_for_pools_like_it():
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=3, max_episode_steps=7, num_threads=1)
    env = make_vector_env(pool)
    assert env.description.id == "CartPole-v1"
    assert env.description.backend == "envpool"
    same = make_vector_env("CartPole-v1", 3, backend="envpool", kwargs={"max_episode_steps": 7})
    wanted = record(same, [4, 5, 6], ACTIONS)
    assert wanted.truncated.any()
    assert record(env, [4, 5, 6], ACTIONS).as_bytes() == wanted.as_bytes()
    pool.reset()  # it was only read
    with pytest.raises(
        ConfigError, match=r"num_streams must be what the given environment says, 3"
    ):
        make_vector_env(pool, 2)


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [("Pong-v5", {"stack_num": 2}), ("Hopper-v4", {}), ("Hopper-v5", {"max_episode_steps": 9})],
)
def test_pools_are_found_by_what_they_do(env_id, kwargs):
    pool = envpool.make_gymnasium(env_id, num_envs=2, **kwargs)
    says, source = quintet.envs.env_source.settle(pool)
    assert source is None
    assert says == {"id": env_id, "backend": "envpool", "kwargs": kwargs, "num_streams": 2}


def test_pools_that_cant_be_used_are_told():
    with pytest.raises(ConfigError, match=r"step all .* got batch_size 2 and num_envs 4"):
        make_vector_env(envpool.make_gymnasium("CartPole-v1", num_envs=4, batch_size=2))
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=2)
    if isinstance(pool, gymnasium.vector.VectorEnv):  # in EnvPool 1.2.0 it can't be wrapped
        with pytest.raises(ConfigError, match="wrapper around EnvPool can't be given new seeds"):
            make_vector_env(VectorWrapper(pool))
        with pytest.raises(ConfigError, match="EnvPool's can't; give the pool itself"):
            make_vector_env(
                lambda num_envs: envpool.make_gymnasium("CartPole-v1", num_envs=num_envs)
            )
        with pytest.raises(
            ConfigError, match=r"must make one gymnasium.Env at each call; .*num_envs"
        ):
            make_vector_env(lambda: envpool.make_gymnasium("CartPole-v1", num_envs=2))
    with pytest.raises(ConfigError, match=r"env must be an id, a callable .* got 3"):
        make_vector_env(3)


def test_an_instance_is_reset_and_stays_the_callers():
    fake = Fake()
    env = make_vector_env(fake, reward_clip="abs_one", frame_stack=2)
    assert (env.num_streams, env.spaces.observation.shape) == (2, (2, 1))
    record(env, [1, 2], ACTIONS[:9, :2])
    env.close()
    assert fake.closed_ == 0
    with pytest.raises(ConfigError, match="num_streams must be what the given"):
        make_vector_env(fake, 4)


def test_what_a_callable_made_is_closed_at_the_end():
    made: list[Fake] = []

    def make(num_envs: int) -> Fake:
        made.append(Fake())
        return made[-1]

    env = make_vector_env(make, 2)
    record(env, [1, 2], ACTIONS[:3, :2])
    record(env, [1, 2], ACTIONS[:3, :2])
    assert [fake.closed_ for fake in made] == [0], "a restart only resets it"
    env.close()
    assert [fake.closed_ for fake in made] == [1]
    with pytest.raises(ConfigError, match="asked for 3, got Fake"):
        make_vector_env(make, 3)
    with pytest.raises(ConfigError, match=r"asked for 2, got <.*Target"):
        make_vector_env(lambda num_envs: Target(), 2)


def test_callables_of_groups_get_their_arguments_also_by_import_string():
    wanted = record(make_vector_env("CartPole-v1", 3, backend="gymnasium"), [1, 2, 3], ACTIONS)
    for env in (make_cartpoles, CartPoles, "test_env_source:CartPoles"):
        got = record(make_vector_env(env, 3), [1, 2, 3], ACTIONS)
        assert got.as_bytes() == wanted.as_bytes()
    short = make_vector_env("test_env_source:CartPoles", 3, kwargs={"max_episode_steps": 4})
    assert record(short, [1, 2, 3], ACTIONS).truncated[3].all()


def test_one_seed_for_all_where_no_list_is_taken():
    """Gymnasium's own vectorised CartPole."""
    env = make_vector_env(gymnasium.make_vec("CartPole-v1", 3))
    first = record(env, [1, 2, 3], ACTIONS)
    assert record(env, [1, 7, 8], ACTIONS).as_bytes() == first.as_bytes()
    assert record(env, [2, 7, 8], ACTIONS).as_bytes() != first.as_bytes()
    np.testing.assert_array_equal(first.valid[1:], ~(first.terminated | first.truncated)[:-1])


def test_other_errors_of_a_reset_are_not_taken_for_a_refused_list():
    fake = Fake(reset=RuntimeError("no floor"))
    with pytest.raises(EnvironmentFault, match="RuntimeError: no floor"):
        record(make_vector_env(fake), [1, 2], ACTIONS[:, :2])
    assert fake.seeds == [[1, 2]]
    fake = Fake(one_seed=ValueError("the first"))
    with pytest.raises(EnvironmentFault, match="ValueError: the first"):
        record(make_vector_env(fake), [1, 2], ACTIONS[:, :2])
    assert fake.seeds == [[1, 2], 1]


class Failing(Target):
    """Fails at its second step, or at its first reset; remembers how often it was reset."""

    resets = 0

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.steps_ = how, 0

    def reset(self, **given):
        Failing.resets += 1
        if self.how == "reset":
            raise ValueError("no floor")
        return super().reset(**given)

    def step(self, action):
        self.steps_ += 1
        if self.steps_ == 2 and self.how == "step":
            raise ValueError("boom")
        if self.steps_ == 2 and self.how == "exit":
            os._exit(1)
        return super().step(action)


def end(workers: AsyncVectorEnv) -> None:
    for process in workers.processes:
        process.kill()
    workers.closed = True  # Gymnasium's own close would wait for those that are gone


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("step", "raised in step_wait ValueError: boom"),
        ("exit", r"lost a worker process in step_wait \((EOFError|ConnectionResetError)"),
    ],
)
def test_an_error_in_a_process_is_told_and_closing_does_not_hide_it(how, says):
    workers: list[AsyncVectorEnv] = []

    def make(num_envs: int) -> AsyncVectorEnv:
        workers.append(AsyncVectorEnv([partial(Failing, how)] * num_envs, context="fork"))
        return workers[-1]

    given = make(2)
    actions = np.zeros((3, 2, 1), np.float32)
    for env in (make_vector_env(given), make_vector_env(make, 2)):
        with pytest.raises(EnvironmentFault, match=says):
            record(env, [1, 2], actions)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            env.close()
    for each in workers:
        end(each)


def test_closing_never_raises_while_a_step_is_under_way():
    workers = AsyncVectorEnv([partial(Failing, "exit")] * 2, context="fork")
    env = make_vector_env(workers)
    record(env, [1, 2], np.zeros((1, 2, 1), np.float32))
    env.send(np.zeros((2, 1), np.float32))
    with pytest.warns(RuntimeWarning, match=r"closing failed: .*lost a worker process"):
        env.close()
    end(workers)


def test_a_failed_reset_is_not_tried_again_where_lists_are_known_to_be_taken(monkeypatch):
    monkeypatch.setattr(Failing, "resets", 0)
    env = make_vector_env(VectorWrapper(SyncVectorEnv([partial(Failing, "reset")] * 2)))
    with pytest.raises(EnvironmentFault, match="ValueError: no floor"):
        record(env, [1, 2], np.zeros((1, 2, 1), np.float32))
    assert Failing.resets == 1


class Declared(gymnasium.Env):
    """Observes what it is given, whatever its space says."""

    def __init__(self, space: spaces.Space, observation: object) -> None:
        self.observation_space, self.observation = space, observation
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation, {}

    def step(self, action):
        return self.observation, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "good", "bad"),
    [
        (spaces.MultiDiscrete([2, 3]), [1, 2], [2, 1]),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [0, -1]),
        (spaces.MultiDiscrete([2, 3], start=[5, 7]), [6, 9], [5, 10]),
        (spaces.MultiBinary(2), [0, 1], [0, 7]),
        (spaces.MultiBinary(2), [0, 1], [-1, 0]),
    ],
)
@pytest.mark.parametrize(
    "wrap", [lambda make: make, lambda make: VectorWrapper(SyncVectorEnv([make] * 2))]
)
def test_values_outside_of_discrete_spaces_are_refused(space, good, bad, wrap):
    good, bad = (np.array(x, space.dtype) for x in (good, bad))
    record(
        make_vector_env(wrap(partial(Declared, space, good)), 2), [1, 2], np.zeros((2, 2), np.int64)
    )
    env = make_vector_env(wrap(partial(Declared, space, bad)), 2)
    with pytest.raises(EnvironmentFault, match="must give observation 'obs' within Multi"):
        record(env, [1, 2], np.zeros((2, 2), np.int64))


def test_numbers_beyond_the_declared_type_are_refused():
    class Deep(gymnasium.Env):
        observation_space, action_space = spaces.Box(0, 255, (1,), np.uint8), spaces.Discrete(2)
        depth = 250

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.array([self.depth], np.uint16), {}

        def step(self, action):
            self.depth += 4
            return np.array([self.depth], np.uint16), 0.0, False, False, {}

    env = make_vector_env(Deep, 1, backend="gymnasium")
    assert record(env, [1], np.zeros((1, 1), np.int64)).obs["obs"].max() == 254
    with pytest.raises(
        EnvironmentFault, match=r"in numbers that uint8 can hold; gave numbers from 25[89] to"
    ):
        record(env, [1], np.zeros((4, 1), np.int64))


def test_an_environment_itself_makes_none():
    with pytest.raises(
        ConfigError,
        match=r"an environment itself; give its class, Target, or a function .* lambda: Target\(",
    ):
        make_vector_env(Target())
    wrapped = gymnasium.ObservationWrapper(gymnasium.make("CartPole-v1"))
    with pytest.raises(
        ConfigError, match=r"lambda: ObservationWrapper\(gymnasium.make\('CartPole-v1'\), ...\)"
    ):
        make_vector_env(wrapped)


def settled(env):
    return quintet.envs.env_source.settle(env)


def test_an_environment_of_gymnasium_stands_for_environments_like_it():
    plain = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    gym_backend = {"backend": "gymnasium", "kwargs": {}}
    assert settled(plain) == ({"id": "CartPole-v1", **gym_backend}, None)
    short = gymnasium.make("FrozenLake-v1", is_slippery=False, max_episode_steps=3)
    says, source = settled(short)
    assert source is None
    assert says["kwargs"] == {"is_slippery": False, "max_episode_steps": 3}
    rows = record(make_vector_env(short, 2), [1, 2], np.zeros((4, 2), np.int64))
    assert rows.truncated.any()
    endless, _ = settled(gymnasium.make("CartPole-v1", max_episode_steps=-1))
    assert endless["kwargs"] == {"max_episode_steps": -1}  # None would be the usual 500
    with pytest.raises(ConfigError, match="backend must be what the given environment says"):
        make_vector_env(plain, backend="envpool")


def test_its_wrappers_are_made_again():
    one = TransformReward(gymnasium.make("CartPole-v1", render_mode="rgb_array"), lambda r: 7 * r)
    says, source = settled(one)
    assert says == {"id": "gymnasium:<CartPole-v1>"}
    made = source()
    assert made.render_mode is None
    assert made.unwrapped is not one.unwrapped
    rows = record(make_vector_env(one, 2), [1, 2], np.zeros((1, 2), np.int64))
    assert rows.reward.tolist() == [[7.0, 7.0]]


def test_what_can_not_be_stored_and_games_of_ale_are_made_as_they_are():
    class Told(gymnasium.Env):
        def __init__(self, thing):
            self.observation_space = spaces.Box(0, 1, (thing.size,))
            self.action_space = spaces.Discrete(2)

    gymnasium.register("Told-v0", entry_point=Told)
    try:
        says, source = settled(gymnasium.make("Told-v0", thing=np.zeros(3)))
        assert says == {"id": "gymnasium:<Told-v0>"}
        assert source().observation_space.shape == (3,)
    finally:
        del gymnasium.registry["Told-v0"]
    pytest.importorskip("ale_py")
    says, source = settled(gymnasium.make("ale_py:ALE/Pong-v5"))
    assert source().observation_space.shape == (210, 160, 3)


def test_names_of_what_makes_environments():
    def local(): ...

    name = "test_names_of_what_makes_environments"
    assert name_of(Target) == "quintet.envs.toy:Target"
    assert name_of(partial(partial(Target, size=1), size=2)) == "quintet.envs.toy:<Target>"
    assert name_of(eval("lambda: 0")) == "test_env_source:<lambda>"
    assert name_of(local) == f"test_env_source:<{name}.<locals>.local>"
    assert name_of(Fake()) == "test_env_source:<Fake>"


def test_a_partial_is_named_in_its_run(tmp_path):
    make = partial(Target, size=1)
    with pytest.raises(ConfigError, match="run_dir must be given"):
        quintet.train("ppo", make, 64, config=SMALL)
    config = SMALL | {"eval.episodes": 0}
    quintet.train("ppo", make, 64, run_dir=tmp_path, config=config)
    assert "env.id: quintet.envs.toy:<Target>\n" in (tmp_path / "config.yaml").read_text()


def test_a_sync_vector_env_is_read_and_made_anew():
    sync = SyncVectorEnv([Scripted, partial(Scripted, (2,))])
    env = make_vector_env(sync)
    first = record(env, [1, 2], ACTIONS[:, :2])
    assert first.valid[:4].tolist() == [[1, 1], [1, 1], [1, 0], [0, 1]]  # each its own maker
    assert record(env, [1, 2], ACTIONS[:, :2]).as_bytes() == first.as_bytes()


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_what_ignores_the_mask_of_a_partial_reset_is_found_out(mode):
    env = make_vector_env(Fake(mode, ignores_mask=True))
    with pytest.raises(EnvironmentFault, match=r"reset only the streams .*NEXT_STEP"):
        record(env, [1, 2], ACTIONS[:, :2])
    record(make_vector_env(Fake(mode)), [1, 2], ACTIONS[:, :2])


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        ({"obs": np.zeros((2, 2), np.float32)}, r"for 2 streams; gave shape \(2, 2\)"),
        ({"obs": np.zeros((1, 1), np.float32)}, r"for 2 streams; gave shape \(1, 1\)"),
        ({"obs": {}}, "shape"),
        ({"reward": 1.0}, r"one reward, a number, for each of 2 streams; gave shape \(\)"),
        ({"terminated": np.zeros(3, bool)}, "one terminated, a number, for each"),
        ({"reward": np.array(["a", "b"])}, r"one reward, a number, .*dtype <U1"),
        ({"reward": np.array([1j, 2])}, r"one reward, a number, .*dtype complex128"),
        ({"reward": [[1.0], [1.0, 2.0]]}, "gave a reward that can't be an array"),
        (
            {"truncated": np.array([0.0, np.nan])},
            r"give truncated as true or false; gave \[ 0. nan",
        ),
        ({"short": True}, "the environment returned 4 values from step, as in the old API"),
        ({"mode": AutoresetMode.SAME_STEP, "infos": {}}, "must give infos\\['final_obs'\\]"),
        ({"mode": AutoresetMode.SAME_STEP, "infos": []}, "must give infos\\['final_obs'\\]"),
        (
            {"reset": ValueError("no floor")},
            r"raised in reset\(seed=\[1, 2\]\) ValueError: no floor",
        ),
    ],
)
def test_faults_name_the_streams(replaced, says):
    env = make_vector_env(Fake(**replaced))
    with pytest.raises(EnvironmentFault, match=rf"Fake.* streams 0 to 1: .*{says}"):
        record(env, [1, 2], ACTIONS[:, :2])


def test_vector_environments_that_cant_be_used_are_told():
    with pytest.raises(ConfigError, match=r"must say in metadata\['autoreset_mode'\]"):
        make_vector_env(Fake(None))
    masked = Fake(AutoresetMode.SAME_STEP)
    masked.single_observation_space = spaces.Dict(
        {"action_mask": spaces.MultiBinary(2), "x": spaces.Box(0, 1, (1,))}
    )
    with pytest.raises(ConfigError, match=r"with an action_mask .* SAME_STEP"):
        make_vector_env(masked)
    partly = Fake()
    partly.batch_size = 1
    with pytest.raises(ConfigError, match="batch_size 1 and 2 environments"):
        make_vector_env(partly)


def test_training_and_evaluating_with_a_vector_environment(tmp_path):
    """A pool and a SyncVectorEnv are evaluated on while they train, a wrapper can't be."""
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=4, max_episode_steps=20)
    result = quintet.train("ppo", pool, 256, run_dir=tmp_path / "pool", config=SMALL)
    assert result.metrics["eval/length_mean"] <= 20
    again = quintet.train("ppo", pool, 256, run_dir=tmp_path / "pool", config=SMALL)
    assert again.status == "finished"

    sync = make_cartpoles(3)
    result = quintet.train("ppo", sync, 240, run_dir=tmp_path / "sync", config=SMALL)
    assert "eval/return_mean" in result.metrics

    given = VectorWrapper(make_cartpoles(3))
    with pytest.warns(UserWarning, match="no evaluation while training"):
        result = quintet.train("ppo", given, 240, run_dir=tmp_path / "given", config=SMALL)
    assert "eval/return_mean" not in result.metrics
    assert result.metrics["env_steps"] == 240
    given.reset()
    for env in (given, pool, sync, make_cartpoles):
        scores = quintet.evaluate(result.policy, env, episodes=5)
        assert len(scores.returns) == 5
    by_id = quintet.evaluate(result.policy, "gymnasium:CartPole-v1", episodes=3)
    np.testing.assert_array_equal(
        quintet.evaluate(result.policy, given, episodes=3).returns, by_id.returns
    )


@pytest.mark.slow
def test_a_worker_makes_a_vector_environment_anew(tmp_path):
    sync, hashes = make_cartpoles(3), []
    kinds = {"serial": {}, "lockstep": {"runtime.lag": 0}}
    if not isinstance(sync.env_fns, list | tuple):  # Gymnasium 1.1's, which can't be sent
        del kinds["lockstep"]
    for name, options in kinds.items():
        config = SMALL | options | {"eval.episodes": 0, "runtime.kind": name}
        quintet.train("ppo", sync, 240, run_dir=tmp_path / name, config=config)
        hashes.append(checkpoint.tensor_hashes(checkpoint.read(tmp_path / name / "policy")))
    assert hashes[0] == hashes[-1]


def test_what_training_can_not_do_with_a_vector_environment(tmp_path):
    given = VectorWrapper(make_cartpoles(3))
    run_dir = tmp_path / "x"
    with pytest.raises(ConfigError, match="run_dir must be given"):
        quintet.train("ppo", given, 240, config=SMALL)
    with pytest.raises(ConfigError, match=r"eval.episodes must be 0 .* num_envs"):
        quintet.train("ppo", given, 240, run_dir=run_dir, config=SMALL | {"eval.episodes": 5})
    with pytest.raises(
        ConfigError, match=r"env.num_streams must be what the given env says, 3; got 6"
    ):
        quintet.train("ppo", given, 240, run_dir=run_dir, config=SMALL | {"env.num_streams": 6})
    assert not run_dir.exists()
