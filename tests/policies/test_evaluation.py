"""Evaluation: whole episodes by fixed quotas, raw rewards, the same seed the same scores."""

import json

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_run_helpers import SMALL, TOY

import quintet
from quintet.commands import cli
from quintet.envs.toy import FinitePay
from quintet.errors import ConfigError, EnvironmentFault, QuintetError
from quintet.policies.evaluation import MAX_STREAMS


class Numbered(gymnasium.Env):
    """Stream ``seed % 100``: its episodes have ``1 + stream`` steps, which pay 10 each.

    `made` is every environment in the order of making, with the episodes it ended.
    """

    made: list["Numbered"] = []

    def __init__(self, fault: str = "") -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.ended, self.closed, self.fault = 0, False, fault
        Numbered.made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.length = 1 + seed % 100
            self.noise = np.random.default_rng(seed)
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        over = self.steps >= self.length
        self.ended += over
        return self._obs(), 10.0, over and self.length % 2 == 0, over and self.length % 2 == 1, {}

    def _obs(self):
        if self.fault and getattr(self, "steps", 0) == 3:
            return np.full(2, np.nan, np.float32)
        return self.noise.uniform(-1, 1, 2).astype(np.float32)

    def close(self):
        self.closed = True


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    config = {**SMALL, "env.reward_clip": "abs_one"}
    folder = tmp_path_factory.mktemp("evaluation")
    return quintet.train("ppo", Numbered, 128, run_dir=folder / "a", config=config).policy


@pytest.fixture(scope="module")
def bandit(tmp_path_factory):
    """Its returns depend on the observations drawn and on the actions."""
    folder = tmp_path_factory.mktemp("evaluation")
    return quintet.train("ppo", TOY, 128, run_dir=folder / "b", config=SMALL).policy


@pytest.fixture(autouse=True)
def _forget():
    Numbered.made.clear()


@pytest.mark.parametrize("episodes", [1, 3, MAX_STREAMS, MAX_STREAMS + 7, 2 * MAX_STREAMS])
def test_every_stream_plays_its_fixed_share(policy, episodes):
    """Short episodes are over sooner, but count no more often than long ones."""
    scores = quintet.evaluate(policy, Numbered, episodes, seed=10_000)
    streams = min(episodes, MAX_STREAMS)
    assert len(Numbered.made) == streams
    quota = [episodes // streams + (i < episodes % streams) for i in range(streams)]
    wanted = [1 + i for i in range(streams) for _ in range(quota[i])]
    assert scores.lengths.tolist() == wanted
    assert scores.lengths.dtype == np.int64
    assert all(env.ended >= share for env, share in zip(Numbered.made, quota, strict=True))
    assert all(env.closed for env in Numbered.made)


def test_rewards_are_raw_whatever_training_saw(policy):
    assert policy.env.reward_clip == "abs_one"
    scores = quintet.evaluate(policy, Numbered, 5, seed=10_000)
    assert scores.returns.tolist() == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert scores.mean == 30.0
    assert scores.std == pytest.approx(np.std([10, 20, 30, 40, 50]))


def test_the_same_seed_gives_the_same_scores(bandit):
    def returns(**more):
        return quintet.evaluate(bandit, episodes=30, **more).returns.tolist()

    assert returns(seed=5) == returns(seed=5)
    assert returns(seed=5) != returns(seed=500)
    assert returns(seed=5, deterministic=False) == returns(seed=5, deterministic=False)
    assert returns(seed=5, deterministic=False) != returns(seed=5)


def test_seeds_are_consecutive(policy):
    scores = quintet.evaluate(policy, Numbered, 4, seed=10_042)
    assert scores.lengths.tolist() == [43, 44, 45, 46]


def test_other_environments_by_id_and_by_callable(bandit):
    class Fixed(gymnasium.Env):
        observation_space = spaces.Box(-9.0, 9.0, (3,), np.float32)  # other bounds are no matter
        action_space = spaces.Discrete(3)

        def reset(self, **_):
            return np.zeros(3, np.float32), {}

        def step(self, action):
            return np.zeros(3, np.float32), 4.0, True, False, {}

    assert quintet.evaluate(bandit, Fixed, 3).returns.tolist() == [4.0] * 3
    assert quintet.evaluate(bandit, lambda: Fixed(), 3).lengths.tolist() == [1] * 3
    scores = quintet.evaluate(bandit, TOY, 30, seed=5)
    assert scores.returns.tolist() == quintet.evaluate(bandit, None, 30, seed=5).returns.tolist()


def test_a_policy_of_a_callable_is_told_how_to_be_evaluated(tmp_path):
    def make() -> gymnasium.Env:
        return gymnasium.make("CartPole-v1")

    config = {**SMALL, "report.sinks": []}
    policy = quintet.train("ppo", make, 64, run_dir=tmp_path, config=config).policy
    with pytest.raises(ConfigError, match="give the function of the training as env="):
        quintet.evaluate(quintet.load(tmp_path), episodes=2)
    assert len(quintet.evaluate(policy, make, 2).returns) == 2


class Sized(gymnasium.Env):
    """An argument that another environment need not know."""

    def __init__(self, pay: float = 1.0) -> None:
        self.observation_space = spaces.Box(-9.0, 9.0, (3,), np.float32)
        self.action_space, self.pay = spaces.Discrete(3), pay

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), self.pay, True, False, {}


def test_another_environment_gets_none_of_the_arguments(tmp_path):
    config = {**SMALL, "env.kwargs": {"pay": 2.0}, "eval.episodes": 1}
    result = quintet.train("ppo", Sized, 64, run_dir=tmp_path, config=config)
    assert result.metrics["eval/return_mean"] == 2.0
    for env in (None, Sized, "test_evaluation:Sized"):
        assert quintet.evaluate(result.policy, env, 1).mean == 2.0
    scores = quintet.evaluate(result.policy, TOY, 1)
    assert scores.env.id == TOY
    assert quintet.evaluate(result.policy, lambda: Sized(3.0), 1).mean == 3.0


def test_wrong_spaces_are_refused(bandit, policy):
    with pytest.raises(ConfigError, match=r"policy's observation space .*CartPole-v1 has Box"):
        quintet.evaluate(bandit, "CartPole-v1", 1)

    def three_actions():
        env = Numbered()
        env.action_space = spaces.Discrete(3)
        return env

    with pytest.raises(ConfigError, match=r"policy's action space is Discrete\(2\)"):
        quintet.evaluate(policy, three_actions, 1)
    assert all(env.closed for env in Numbered.made)


@pytest.mark.parametrize(
    "given",
    [
        {"episodes": 0},
        {"episodes": 10**20},
        {"seed": -1},
        {"seed": 2**31},
        {"episodes": "a"},
        {"episodes": 2.5},
    ],
)
def test_numbers_out_of_range_are_refused(bandit, given):
    with pytest.raises(ConfigError, match=r"episodes must be in 1 \.\. \d+ and seed in 0 \.\. \d+"):
        quintet.evaluate(bandit, **given)
    quintet.evaluate(bandit, episodes=np.int64(1), seed=np.int64(2**31 - MAX_STREAMS - 1))
    with pytest.raises(
        ConfigError, match=r"a policy must be a quintet\.Policy, got 'runs/a'; give quintet\.load"
    ):
        quintet.evaluate("runs/a")


def test_nan_is_an_error_that_names_stream_and_step(policy):
    says = r"stream 0, step [23] after its reset with seed \d+: observation 'obs'\[0\] is nan"
    with pytest.raises(EnvironmentFault, match=says):
        quintet.evaluate(policy, lambda: Numbered("nan"), 1, seed=10_099)
    assert all(env.closed for env in Numbered.made)


def test_stop_ends_with_the_episodes_there_are(policy):
    calls = iter([False] * 5)
    scores = quintet.evaluate(policy, Numbered, 10, seed=10_000, stop=lambda: next(calls, True))
    assert scores.lengths.tolist() == [1, 2, 3, 4, 5]


def test_acting_does_not_change_the_policy(bandit):
    before = {name: x.clone() for name, x in bandit.publication.tensors.items()}
    quintet.evaluate(bandit, episodes=3, deterministic=False)
    assert all(x.equal(before[name]) for name, x in bandit.publication.tensors.items())


class Won(Numbered):
    """Streams with an even number win; the last step pays 1 or 0 and says so, every step before it
    pays 5 and says the contrary.
    """

    def step(self, action):
        obs, _, terminated, truncated, _ = super().step(action)
        wins = self.length % 2 == 1
        over = terminated or truncated
        said = wins if over else not wins
        return obs, float(wins) if over else 5.0, terminated, truncated, {"won": said}


@pytest.mark.parametrize("rule", ["info:won", "reward>0"])
def test_success_is_that_of_each_episode(policy, rule):
    won = replace_env(policy, success=rule)
    scores = quintet.evaluate(won, Won, 7, seed=10_000)
    if rule == "info:won":  # a key of info is the environment's that was trained on
        assert (scores.success, scores.success_rate, scores.env.success) == (None, None, None)
        won.env = won.env.model_copy(update={"id": "test_evaluation:Won"})
        scores = quintet.evaluate(won, Won, 7, seed=10_000)
        assert quintet.evaluate(won, None, 7, seed=10_000).success_rate == scores.success_rate
    assert scores.env.success == rule
    assert scores.success.dtype == np.bool_
    assert scores.success.tolist() == [True, False, True, False, True, False, True]
    assert scores.success_rate == 4 / 7
    assert scores.lengths.tolist() == [1, 2, 3, 4, 5, 6, 7]
    stopped = quintet.evaluate(won, Won, 7, seed=10_000, stop=lambda: True)
    assert (stopped.success.tolist(), stopped.success_rate) == ([], None)
    assert quintet.evaluate(policy, Won, 3).success is None


def replace_env(policy, **options):
    """The policy as if it had been trained with other options of its environment."""
    env = policy.env.model_copy(update=options)
    described = policy.description | {"env": env.model_dump(mode="json")}
    return quintet.Policy(described, policy.publication, policy.origin)


class Shown(Numbered):
    """Draws itself."""

    def render(self):
        return np.full((20, 20, 3), 10 * self.steps, np.uint8)


def test_a_video_is_one_more_episode_and_changes_no_score(policy, tmp_path):
    path = tmp_path / "v.mp4"
    plain = quintet.evaluate(policy, Shown, 4, seed=10_007)
    scores = quintet.evaluate(policy, Shown, 4, seed=10_007, video=path)
    assert plain.film is None
    assert scores.returns.tolist() == plain.returns.tolist()
    assert scores.film.path == path
    assert (scores.film.episode_return, scores.film.length, scores.film.seed) == (80.0, 8, 10_007)
    frames = list(imageio_ffmpeg.read_frames(str(path)))[1:]
    assert len(frames) == 1 + 8 + 30  # first observation, steps, and a second of the last one
    # Away from the caption: the true final picture, not that of the next episode.
    assert np.frombuffer(frames[-1], np.uint8)[-300:].mean() == pytest.approx(80, abs=3)
    assert all(env.closed for env in Numbered.made)


def test_a_video_changes_no_random_actions(policy, tmp_path):
    class Chance(Shown):
        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, float(action), *rest

    def returns(**video):
        scores = quintet.evaluate(policy, Chance, 4, seed=10_020, random=True, **video)
        return scores.returns.tolist()

    assert returns() == returns(video=tmp_path / "v.mp4") != [0.0] * 4


def test_a_film_needs_no_info(policy, tmp_path):
    """What is filmed may be a twin with another info; its one episode isn't counted."""
    asked = replace_env(policy, success="info:absent", id="test_evaluation:Shown")
    with pytest.raises(ConfigError, match="'info:absent' must have"):
        quintet.evaluate(asked, Shown, 2, seed=10_003, video=tmp_path / "v.mp4")
    filmed = list(imageio_ffmpeg.read_frames(str(tmp_path / "v.mp4")))[1:]
    assert len(filmed) == 1 + 4 + 30


def test_what_can_not_be_filmed_is_refused_before_anything_is_played(policy, tmp_path):
    with pytest.raises(
        ConfigError, match=r"the environment of a video must .*Numbered \(gymnasium\) can't be dr"
    ):
        quintet.evaluate(policy, Numbered, 4, video=tmp_path / "v.mp4")
    assert all(env.closed and not env.ended for env in Numbered.made)
    Numbered.made.clear()
    with pytest.raises(QuintetError, match=r"must end in \.mp4, got \S*\.avi"):
        quintet.evaluate(policy, Shown, 4, video="v.avi")
    assert Numbered.made == []
    stopped = quintet.evaluate(policy, Shown, 4, video=tmp_path / "v.mp4", stop=lambda: True)
    assert stopped.film is None
    assert list(tmp_path.iterdir()) == []


class Torn(Shown):
    """Can't be drawn any more after three steps."""

    def render(self):
        if self.steps == 3:
            raise RuntimeError("the display is gone")
        return super().render()


def test_a_film_that_fails_costs_no_scores(policy, tmp_path, capsys):
    plain = quintet.evaluate(policy, Shown, 4, seed=10_007)
    with pytest.warns(RuntimeWarning, match="there is no video: .*the display is gone"):
        scores = quintet.evaluate(policy, Torn, 4, seed=10_007, video=tmp_path / "v.mp4")
    assert scores.returns.tolist() == plain.returns.tolist()
    assert scores.film is None
    assert "the display is gone" in scores.film_fault
    folder = str(policy.save(tmp_path / "policy"))
    words = ["eval", folder, "--env=test_evaluation:Torn", "--episodes=2", "--seed=10007"]
    words += ["--video", str(tmp_path / "v.mp4")]
    assert cli.main(words) == 1
    out, err = capsys.readouterr()
    assert "over 2 episodes" in out
    assert "error: there is no video, but the scores are valid: " in err
    assert cli.main([*words, "--json"]) == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["episodes"] == 2
    assert "the display is gone" in told["video_error"]
    assert not (tmp_path / "v.mp4").exists()


def test_entropy_is_the_mean_over_the_steps_of_counted_episodes(policy):
    """Steps weigh alike, not episodes; the masked row of a reset counts nowhere."""
    scores = quintet.evaluate(policy, Numbered, 30, seed=10_000)
    family, seen = policy.player.family, []
    act = policy.player.act

    def spied(obs, state, is_first, noise):
        params, _, _ = policy.player._forward(obs, state, is_first)
        seen.append((family.entropy(params).double(), is_first.clone()))
        return act(obs, state, is_first, noise)

    policy.player.act = spied
    try:
        again = quintet.evaluate(policy, Numbered, 30, seed=10_000)
    finally:
        del policy.player.act
    assert again.entropy == scores.entropy
    # Stream i plays episodes of 1 + i steps and then a row that resets; the first five play two.
    total = steps = 0.0
    for stream in range(25):
        for episode in range(2 if stream < 5 else 1):
            begin = episode * (2 + stream)
            rows = [seen[row][0][stream] for row in range(begin, begin + 1 + stream)]
            total, steps = total + sum(rows).item(), steps + len(rows)
    assert steps == scores.lengths.sum()
    assert scores.entropy == pytest.approx(total / steps, rel=1e-6)
    assert 0 < scores.entropy <= np.log(2)
    stopped = quintet.evaluate(policy, Numbered, 3, stop=lambda: True)
    assert stopped.entropy is None


def test_entropy_is_that_of_the_allowed_actions(tmp_path):
    env = "quintet.envs.toy:MaskedDoors"
    policy = quintet.train("ppo", env, 128, run_dir=tmp_path, config=SMALL).policy
    assert quintet.evaluate(policy, episodes=50).entropy < np.log(5) - 0.2


def test_evaluations_while_training_report_the_entropy(tmp_path):
    config = {**SMALL, "eval.episodes": 3}
    result = quintet.train("impala", TOY, 160, 1, tmp_path, {
        "env.num_streams": 4, "unroll_steps": 10, "batch_unrolls": 4, "runtime.kind": "serial",
        "report.progress": False, "eval.episodes": config["eval.episodes"],
    })  # fmt: skip
    played = quintet.evaluate(result.policy, episodes=3, seed=20_000)
    assert result.metrics["eval/entropy"] == played.entropy


def test_random_actions_are_the_score_to_beat(tmp_path):
    class Guess(gymnasium.Env):
        observation_space = spaces.Box(-9.0, 9.0, (3,), np.float32)
        action_space = spaces.Discrete(4)

        def reset(self, **_):
            return np.zeros(3, np.float32), {}

        def step(self, action):
            return np.zeros(3, np.float32), float(action == 2), True, False, {}

    policy = quintet.train("ppo", Guess, 64, run_dir=tmp_path, config=SMALL).policy
    scores = quintet.evaluate(policy, Guess, 1000, random=True)
    assert abs(scores.mean - 0.25) < 0.07  # five standard errors
    assert scores.entropy is None
    again = quintet.evaluate(policy, Guess, 1000, random=True)
    assert again.returns.tolist() == scores.returns.tolist()
    assert quintet.evaluate(policy, Guess, 10).mean in (0.0, 1.0)


def test_options_of_its_own(bandit):
    """Arguments of a held-out split, say; the policy's other options stay."""
    lengths = quintet.evaluate(bandit, episodes=3, env_options={"kwargs": {"length": 5}}).lengths
    assert lengths.tolist() == [5, 5, 5]
    won = quintet.evaluate(bandit, episodes=3, env_options={"success": "reward>-1"})
    assert won.success_rate == 1.0
    with pytest.raises(ConfigError, match=r"some of kwargs, .*backend, .*, got num_streams"):
        quintet.evaluate(bandit, env_options={"num_streams": 3})
    for idle in ({"num_threads": 2}, {"backend": "gymnasium", "num_threads": 1}):
        with pytest.raises(ConfigError, match=r"env.num_threads=\d has no effect on quintet.envs"):
            quintet.evaluate(bandit, env_options=idle)
    with pytest.raises(ConfigError, match="'envpool' needs one of EnvPool's ids"):
        quintet.evaluate(bandit, FinitePay, env_options={"backend": "envpool"})
    with pytest.raises(ConfigError, match=r"valid options of a run: env.success: "):
        quintet.evaluate(bandit, env_options={"success": "sometimes"})
    with pytest.raises(
        ConfigError, match=r"must make an environment from the arguments \{'nonsense': 1\}"
    ):
        quintet.evaluate(bandit, env_options={"kwargs": {"nonsense": 1}})


def test_the_command_takes_them(bandit, tmp_path, capsys):
    bandit.save(tmp_path / "policy")
    words = ["eval", str(tmp_path / "policy"), "--episodes", "3"]
    assert cli.main([*words, "--env.kwargs", '{"length": 4}']) == 0
    assert "length 4.0, " in capsys.readouterr().out
    assert cli.main([*words, "--env.success", "reward>-1", "--env.num-processes", "2"]) == 0
    assert "success 100%" in capsys.readouterr().out
    assert cli.main([*words, "--env.kwargs", "[1]"]) == 2
    assert "--env.kwargs must be as in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("gpu", "device must be cpu, cuda or cuda:N, got 'gpu'"),
        ("cuda", "device=cuda must have 1 CUDA GPU that PyTorch sees, got 0"),
    ],
)
def test_a_device_that_is_not_there(
    device: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=says):
        quintet.policies.evaluation._check_device(device)
