"""Names of other libraries are answered with ours of the same meaning."""

import pytest

import quintet
from quintet.algorithms.registry import LEARNERS, canonical
from quintet.config.layers import Layer, hint, named_here, options
from quintet.config.resolve import compose
from quintet.errors import ConfigError
from quintet.options import about


def ours(algo: str, name: str) -> str:
    return " ".join(named_here(algo, name) or [])


@pytest.mark.parametrize(
    ("name", "ppo", "impala", "ddpg", "acer"),
    [
        ("n_envs", *["env.num_streams"] * 4),
        ("num_envs", *["env.num_streams"] * 4),
        ("total_timesteps", *["total_env_steps"] * 4),
        ("n_steps", "unroll_steps", "unroll_steps", "n_step", "unroll_steps"),
        ("batch_size", "minibatch_steps", "batch_unrolls", "batch_size", ""),
        ("ent_coef", "entropy_coef", "entropy_coef", "", "entropy_coef"),
        ("vf_coef", "value_coef", "value_coef", "value_coef", "value_coef"),
        ("clip_range", "clip_epsilon", "", "", ""),
        ("lr", "learning_rate", "learning_rate", "actor_lr critic_lr", "learning_rate"),
        ("LR", "learning_rate", "learning_rate", "actor_lr critic_lr", "learning_rate"),
        ("lam", "gae_lambda", "vtrace_lambda", "", "retrace_lambda"),
        ("n_epochs", "num_epochs", "", "", ""),
        ("learning_starts", "", "", "replay_start_steps", "replay_start_steps_per_stream"),
        ("buffer_size", "", "", "replay_capacity_steps", "replay_capacity_steps_per_stream"),
        ("gradient_steps", "", "", "updates_per_env_step", ""),
        ("action_noise", "", "", "exploration", ""),
        ("polyak", "", "", "tau", "tau"),
        ("policy_kwargs.net_arch", *["model.policy_hidden model.value_hidden"] * 4),
        ("use_lstm", *["model.core"] * 4),
        ("verbose", *["report.progress"] * 4),
    ],
)
def test_the_name_of_each_learner(name, ppo, impala, ddpg, acer):
    found = [
        name if name in options(algo) else ours(algo, name)
        for algo in ("ppo", "impala", "ddpg", "acer")
    ]
    assert found == [ppo, impala, ddpg, acer]


@pytest.mark.parametrize(
    ("algo", "old", "new"),
    [
        ("ppo", "checkpoint.interval_updates", "checkpoint.interval_iterations"),
        ("ppo", "runtime.publish_interval_updates", "runtime.publish_interval_iterations"),
        ("ppo", "kl_beta_init", "kl_coef_init"),
        ("appo", "clip_ratio", "clip_epsilon"),
        ("appo", "lambda_", "vtrace_lambda"),
        ("impala", "lambda_", "vtrace_lambda"),
        ("acer", "lambda_", "retrace_lambda"),
        ("acer", "q_coef", "value_coef"),
        ("acer", "average_decay", "tau"),
        ("ddpg", "critic_loss_coef", "value_coef"),
    ],
)
def test_a_former_name_is_answered_with_todays(algo, old, new):
    assert ours(algo, old) == new


SPLIT = {"actor_lr critic_lr", "model.policy_hidden model.value_hidden"}
"""Options that are one in other libraries."""


@pytest.mark.parametrize("algo", LEARNERS.names())
def test_a_name_stands_for_one_option_of_a_learner_and_is_not_its_own(algo):
    known = options(algo)
    for name, info in known.items():
        also = about(info).also
        assert len(also) == len({*also}), name
        assert not {*also} & known.keys(), name
        for theirs in also:
            found = ours(algo, theirs)
            assert found == name or found in SPLIT, (theirs, found)


def test_the_message_names_the_option_and_its_meaning():
    with pytest.raises(ConfigError) as caught:
        compose("ppo", [Layer("command line", {"env.id": "CartPole-v1", "num_minibatches": 4})])
    assert str(caught.value) == (
        "unknown option 'num_minibatches' (command line); here it is 'minibatch_steps' (rows per "
        "optimizer step)"
    )
    assert hint("ppo", "total_timesteps") == (
        "; here it is 'total_steps' (exact number of agent decisions over all streams)"
    )
    assert hint("ddpg", "lr").startswith("; here these are 'actor_lr' (")
    assert hint("impala", "n_epochs") == "; impala has no option for that"
    assert hint("ppo", "learning_rat") == "; did you mean 'learning_rate'?"
    assert hint("ppo", "nope") == ""


def test_arguments_of_train_that_it_does_not_have():
    with pytest.raises(ConfigError) as caught:
        quintet.train("PPO", "CartPole-v1", learning_rate=1e-3, n_envs=4, callback=print, zzz=0)
    assert str(caught.value).split("; ") == [
        "learning_rate is an option, not an argument of train",
        "give config={'learning_rate': 0.001}",
        "unknown argument 'n_envs'",
        "here it is 'env.num_streams' (number of environments that step at the same time), an "
        "option of config",
        "unknown argument 'callback'",
        "give callbacks, or on_report, a function of reports",
        "unknown argument 'zzz'",
    ]


@pytest.mark.parametrize(
    ("given", "name"), [("PPO", "ppo"), ("Impala", "impala"), ("acer", "acer")]
)
def test_learners_are_found_whatever_the_case(given, name):
    assert canonical(given) == name


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("SAC", "got 'SAC'; nearest is 'ddpg'$"),
        ("A2C", "got 'A2C'; nearest is 'ppo'$"),
        ("DQN", "got 'DQN'; nearest is 'acer'$"),
        ("A3C", "got 'A3C'; nearest is 'impala'$"),
        ("IMPALLA", r"did you mean 'impala'\?$"),
        ("alphazero", "choose one of them$"),
        (None, "got None; choose one of them$"),
        (["ppo"], r"got \['ppo'\]; choose one of them$"),
    ],
)
def test_other_learners_are_answered_with_the_nearest(given, says):
    with pytest.raises(ConfigError, match=says):
        quintet.train(given, "CartPole-v1")
