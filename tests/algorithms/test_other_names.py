"""Names of other libraries are answered with ours of the same meaning."""

import re

import pytest

import quintet
from quintet.algorithms.registry import LEARNERS, canonical
from quintet.commands.cli import main
from quintet.errors import ConfigError
from quintet.options.declaration import about
from quintet.options.layers import Layer, hint, named_here, options
from quintet.options.resolve import compose


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


SPLIT = {
    "actor_lr critic_lr",
    "model.policy_hidden model.value_hidden",
    "normalize_observations reward_normalizer",
}
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
        "optimizer step); theirs is the number of minibatches, ours the rows of one"
    )
    assert hint("ppo", "total_timesteps") == (
        "; here it is 'total_steps' (exact number of agent decisions over all streams)"
    )
    assert hint("ddpg", "lr").startswith("; here these are 'actor_lr' (")
    assert hint("impala", "n_epochs") == "; impala has no option for that"
    assert hint("ppo", "learning_rat") == "; did you mean 'learning_rate'?"
    assert hint("ppo", "nope") == "; `quintet train ppo --help all` lists the options"
    assert hint("ppo", "tau") == "; ppo has no option for that"


def test_arguments_of_train_that_it_does_not_have():
    with pytest.raises(ConfigError) as caught:
        quintet.train("PPO", "CartPole-v1", learning_rate=1e-3, n_envs=4, callback=print, zzz=0)
    assert str(caught.value).split("\n  - ") == [
        "4 faults:",
        "learning_rate is an option, not an argument of train; give config={'learning_rate': "
        "0.001}",
        "unknown argument 'n_envs'; here it is 'env.num_streams' (number of environments that "
        "step at the same time), an option of config",
        "unknown argument 'callback'; give callbacks, or on_report, a function of reports, to "
        "quintet.train",
        "unknown argument 'zzz'; `quintet train ppo --help all` lists the options",
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"total_timesteps": 100}, r"'total_steps' \(exact .*, an argument of train$"),
        ({"tb_log_name": "x"}, r"'run_dir' \(folder of the run\), an argument of train$"),
        ({"eval_env": "CartPole-v1"}, r"'eval.env' \(.*, an option of config$"),
        ({"reset_num_timesteps": False}, "the same call with a larger total_steps goes on"),
        ({"name_prefix": "x"}, "checkpoints are in RUN_DIR/checkpoints"),
        ({"policy": "MultiInputPolicy"}, "leave it out, or give model.encoder"),
        ({"use_sde_at_warmup": True}, "no state-dependent exploration"),
        ({"policy_delay": 2}, "quintet has no TD3; `ddpg` has one critic"),
        (
            {"learning_rate": lambda left: 1e-3 * left},
            "give its first value in config={'learning_rate': NUMBER}, and lr_schedule=FUNCTION",
        ),
        ({"clip_epsilon": len}, "give its first value in config={'clip_epsilon': NUMBER}$"),
    ],
)
def test_arguments_of_other_libraries_are_answered_with_what_works(given, says):
    with pytest.raises(ConfigError, match=says):
        quintet.train("ppo", "CartPole-v1", **given)


def test_widths_of_two_networks_are_two_options():
    config = {"policy_kwargs": {"net_arch": {"pi": [8], "vf": [9]}, "ortho_init": True}}
    with pytest.raises(ConfigError) as caught:
        quintet.train("ppo", "CartPole-v1", config=config)
    said = [
        line.partition("here it is ")[2].split()[0] for line in str(caught.value).split("\n")[1:]
    ]
    assert said == ["'model.policy_hidden'", "'model.value_hidden'", "'model.init'"]
    assert ours("ddpg", "policy_kwargs.net_arch.qf") == "model.value_hidden"
    assert ours("ppo", "features_dim") == "model.encoder_kwargs"
    assert ours("ddpg", "qf_lr") == "critic_lr"


@pytest.mark.parametrize(
    ("function", "name", "do"),
    [
        ("evaluate", "n_eval_episodes", "give episodes$"),
        ("evaluate", "kwargs", "give env_options="),
        ("evaluate", "zzz", "give one of policy, env, episodes, seed"),
        ("load", "device", "give it to quintet.evaluate$"),
        ("load", "zzz", "give one of path, which"),
        ("make_vector_env", "n_envs", "give num_streams$"),
        ("make_vector_env", "env_kwargs", "give kwargs$"),
    ],
)
def test_arguments_that_other_functions_do_not_have(function, name, do):
    with pytest.raises(ConfigError, match=f"{function} must .*, got '{name}'; {do}"):
        getattr(quintet, function)("CartPole-v1", **{name: 5})


def test_a_rate_that_is_a_schedule_is_told_how_schedules_are_given():
    with pytest.raises(ConfigError, match=r"^learning_rate: must be .* given as lr_schedule"):
        quintet.train("ppo", "CartPole-v1", config={"learning_rate": lambda left: 1e-3 * left})
    with pytest.raises(
        ConfigError, match=r"^actor_lr: must be a number; 1e-3 with lr_schedule=lin"
    ):
        quintet.train("ddpg", "Pendulum-v1", config={"actor_lr": "lin_1e-3"})
    for algo, name, schedule in (
        ("ppo", "clip_epsilon", "clip_schedule"),
        ("impala", "entropy_coef", "entropy_schedule"),
    ):
        says = (
            rf"^{name}: must be a number, the first value; {schedule} \(constant or linear\) says"
        )
        with pytest.raises(ConfigError, match=says):
            quintet.train(algo, "CartPole-v1", config={name: lambda left: 0.2 * left})
    with pytest.raises(ConfigError, match=r"^entropy_coef: input should be a valid number"):
        quintet.train("ppo", "CartPole-v1", config={"entropy_coef": lambda left: left})


@pytest.mark.parametrize(
    ("given", "name"), [("PPO", "ppo"), ("Impala", "impala"), ("acer", "acer")]
)
def test_learners_are_found_whatever_the_case(given, name):
    assert canonical(given) == name


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "A2C",
            "got 'A2C'; nearest is 'ppo', with num_epochs 1, minibatch_steps none.*; docs/c",
        ),
        (
            "TRPO",
            "got 'TRPO'; nearest is 'ppo', with --preset kl_penalty.*; docs/coming-from.md says",
        ),
        (
            "DQN",
            "got 'DQN'; nearest is 'acer', which learns discrete actions from replay.*; docs/c",
        ),
        ("A3C", "got 'A3C'; nearest is 'impala'; docs/coming-from.md says"),
        ("TD3", "got 'TD3'; nearest is 'ddpg'.*; docs/coming-from.md says"),
        ("HER", "got 'HER'; docs/coming-from.md says"),
        ("IMPALLA", r"did you mean 'impala'\?$"),
        ("alphazero", "got 'alphazero'; docs/coming-from.md says"),
        (None, "got None; docs/coming-from.md says"),
        (["ppo"], r"got \['ppo'\]; docs/coming-from.md says"),
    ],
)
def test_other_learners_are_answered_with_the_nearest(given, says):
    with pytest.raises(ConfigError, match=says):
        quintet.train(given, "CartPole-v1")


@pytest.mark.skipif("sac" in LEARNERS, reason="the package of SAC is installed")
def test_a_learner_whose_package_is_not_installed_is_named_with_it():
    with pytest.raises(ConfigError, match=r"got 'SAC'; sac is .* `pip install ./plugins/sac`.*sac"):
        quintet.train("SAC", "CartPole-v1")


FLAGS = """
zoo      --lr 1e-3                     learning_rate
zoo      --n-timesteps 9000            total_steps
zoo      -n 9000                       total_steps
zoo      --device cuda                 runtime.device
zoo      --track                       report.sinks
zoo      --wandb-project-name x        WANDB_PROJECT
zoo      --eval-freq 5000              eval.interval
zoo      --eval-episodes 5             eval.episodes
zoo      --save-freq 1000              checkpoint.interval_iterations
zoo      --save-replay-buffer          checkpoints
zoo      --env-kwargs size:4           env.kwargs
zoo      --eval-env-kwargs size:4      eval.env.kwargs
zoo      --hyperparams n_envs:4        --config
zoo      -params n_envs:4              --config
zoo      --conf-file x.yml             --config
zoo      --normalize true              normalize_observations reward_normalizer
zoo      --trained-agent x.zip         init_from
zoo      -i x.zip                      init_from
zoo      --frame-stack 4               env.frame_stack
zoo      --n-trials 100                quintet sweep
zoo      --optimize-hyperparameters    quintet sweep
zoo      --pruner median               quintet sweep
zoo      --vec-env subproc             env.num_processes
zoo      --env-wrapper x               docs/environments.md
zoo      --log-folder x                run_dir
zoo      --use-sde true                docs/ppo.md
zoo      --learning-rate lin_3e-4      lr_schedule=linear
zoo      --exploration-fraction 0.1    docs/coming-from.md
cleanrl  --exp-name x                  run_dir
cleanrl  --torch-deterministic true    runtime.deterministic
cleanrl  --no-cuda                     runtime.device
cleanrl  --capture-video               quintet eval RUN --video
cleanrl  --total-timesteps 9000        total_steps
cleanrl  --num-envs 4                  env.num_streams
cleanrl  --num-steps 128               unroll_steps
cleanrl  --anneal-lr true              lr_schedule
cleanrl  --num-minibatches 4           minibatch_steps
cleanrl  --update-epochs 4             num_epochs
cleanrl  --norm-adv true               normalize_advantage
cleanrl  --clip-coef 0.2               clip_epsilon
cleanrl  --clip-vloss true             value_clip
cleanrl  --ent-coef 0.01               entropy_coef
cleanrl  --vf-coef 0.5                 value_coef
cleanrl  --save-model true             policy/
rllib    --num-env-runners 2           runtime.num_workers
rllib    --rollout-fragment-length 50  unroll_steps
rllib    --train-batch-size 4000       unroll_steps
rllib    --minibatch-size 128          minibatch_steps
rllib    --num-sgd-iter 10             num_epochs
rllib    --grad-clip 0.5               max_grad_norm
rllib    --entropy-coeff 0.01          entropy_coef
rllib    --evaluation-interval 5       eval.interval
rllib    --evaluation-duration 10      eval.episodes
rllib    --checkpoint-freq 10          checkpoint.interval_iterations
rllib    --observation-filter x        normalize_observations
rllib    --fcnet-hiddens 64            model.policy_hidden model.value_hidden
rllib    --restore x                   same command
rllib    --run PPO                     first word
sf2      --experiment x                run_dir
sf2      --train-for-env-steps 9000    total_steps
sf2      --train-for-seconds 600       --minutes
sf2      --num-envs-per-worker 8       env.num_streams
sf2      --worker-num-splits 2         env.streams_per_group
sf2      --save-every-sec 60           checkpoint.interval_s
sf2      --use-rnn true                model.core
sf2      --ppo-clip-ratio 0.1          clip_epsilon
sf2      --with-wandb true             report.sinks
rsl_rl   --max-iterations 1500         total_steps
rsl_rl   --num-steps-per-env 24        unroll_steps
rsl_rl   --num-learning-epochs 5       num_epochs
rsl_rl   --num-mini-batches 4          minibatch_steps
rsl_rl   --init-noise-std 1.0          model.action_std_init
rsl_rl   --actor-hidden-dims 64        model.policy_hidden
rsl_rl   --empirical-normalization 1   normalize_observations
rsl_rl   --load-checkpoint x           init_from
rsl_rl   --load-run x                  same command
rsl_rl   --logger wandb                report.sinks
rsl_rl   --schedule adaptive           lr_schedule
rsl_rl   --desired-kl 0.01             kl_target
"""
"""Flags of SB3's zoo, CleanRL, RLlib, Sample Factory 2 and rsl_rl, and what the answer names."""


@pytest.mark.parametrize("line", FLAGS.strip().splitlines(), ids=lambda x: " ".join(x.split()[:2]))
def test_a_flag_of_another_library_leads_to_the_option_or_the_page(line, capsys):
    _, flag, wanted = re.split(r"\s{2,}", line)
    assert main(["config", "ppo", "--env", "CartPole-v1", *flag.split()]) == 2
    said = capsys.readouterr().err
    if {*wanted.split()} <= {*options("ppo"), "total_steps"}:  # these, and no others
        named = re.search(r"; (?:here (?:it is|these are) (.*)|did you mean ('\S+')\?)", said)
        assert named is not None, said
        found = re.findall(r"'([\w.]+)'(?= \(|$)", named[1] or named[2])
        assert found == wanted.split(), said
    else:
        assert wanted in said


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--n-eval-episodes 5", "give --episodes N"),
        ("--eval_episodes=5", "give --episodes N"),
        ("--deterministic", "--stochastic samples"),
        ("--load-best", "give --checkpoint best"),
        ("--no-render", "--video FILE"),
    ],
)
def test_a_flag_of_an_evaluation_elsewhere_leads_to_the_option(flag, says, capsys):
    assert main(["eval", "runs/x", *flag.split()]) == 2
    assert says in capsys.readouterr().err


def test_a_word_that_is_no_option_is_told_how_options_begin(capsys):
    assert main(["config", "ppo", "CartPole-v1"]) == 2
    said = capsys.readouterr().err
    assert "unknown option 'CartPole-v1' (command line); options begin with --, as in" in said


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint_kind",
        "normalize_actions",
        "headless",
        "optimize_it",
        "pruned",
        "start_e2",
        "noise_clip",
    ],
)
def test_a_name_that_resembles_none_is_not_led_to_another_option(name):
    assert hint("ppo", name) == "; `quintet train ppo --help all` lists the options"
