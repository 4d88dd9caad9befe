"""Names that other libraries have for our options."""

from collections.abc import Collection, Mapping

_SAME: Mapping[str, str] = {
    # target, or several that the other name stands for: names of Stable-Baselines3, CleanRL, Sample
    # Factory, TorchBeast, RLlib and OpenAI baselines
    "env.id": "env_id env_name gym_id",
    "env.kwargs": "env_kwargs env_config env_frameskip frame_skip max_episode_steps "
    "time_limit render_mode",
    "env.num_streams": "n_envs num_envs nenvs num_env num_environments num_envs_per_worker "
    "num_envs_per_env_runner",
    "env.streams_per_group": "worker_num_splits",
    "env.frame_stack": "n_stack num_stack env_framestack framestack",
    "env.reward_clip": "clip_rewards reward_clipping",
    "total_env_steps": "total_timesteps num_timesteps n_timesteps timesteps max_timesteps "
    "train_for_env_steps",
    "run_dir": "tensorboard_log log_dir save_path savedir train_dir experiment exp_name xpid "
    "monitor_dir",
    "resume": "restart_behavior",
    "init_from": "load_path pretrained pretrained_model checkpoint_path",
    "unroll_steps": "num_steps nsteps rollout unroll_length rollout_length n_rollout_steps "
    "rollout_fragment_length train_freq",
    "num_epochs": "n_epochs update_epochs noptepochs ppo_epochs num_sgd_iter",
    "minibatch_steps": "num_minibatches nminibatches n_minibatch minibatch_size mini_batch_size "
    "sgd_minibatch_size",
    "bptt_steps": "recurrence seq_length",
    "gamma": "discount discounting discount_factor",
    "value_clip": "clip_range_vf clip_vloss ppo_clip_value vf_clip_param",
    "entropy_coef": "ent_coef entropy_coeff entropy_cost entropy_weight exploration_loss_coeff",
    "normalize_advantage": "norm_adv",
    "normalize_observations": "norm_obs normalize_obs normalize_input obs_norm",
    "observation_clip": "clip_obs",
    "reward_normalizer": "norm_reward normalize_reward normalize_returns",
    "reward_norm_clip": "clip_reward",
    "rho_bar": "vtrace_rho clip_rho_threshold vtrace_clip_rho_threshold",
    "c_bar": "vtrace_c clip_c_threshold",
    "max_grad_norm": "grad_clip clip_grad grad_norm_clipping clip_norm gradient_clip_norm",
    "lr_schedule": "anneal_lr lr_decay lrschedule",
    "adam_epsilon": "adam_eps",
    "rmsprop_decay": "rprop_alpha",
    "importance_clip": "c importance_weight_truncation",
    "updates_per_env_step": "gradient_steps utd_ratio update_to_data_ratio",
    "exploration": "action_noise exploration_noise noise_type noise_std",
    "critic_l2_coef": "critic_l2_reg",
    "adapt_interval_updates": "param_noise_adaption_interval",
    "model.encoder": "policy encoder_type features_extractor_class policy_class network",
    "model.policy_hidden model.value_hidden": "net_arch policy_kwargs fcnet_hiddens hidden_sizes "
    "hidden_size hidden_dim encoder_mlp_layers num_hidden layer_sizes",
    "model.activation": "activation_fn nonlinearity activation_function",
    "model.init": "ortho_init policy_initialization",
    "model.action_std_init": "log_std_init initial_stddev",
    "model.shared_torso": "share_features_extractor actor_critic_share_weights vf_share_layers "
    "value_network",
    "model.core": "use_lstm use_rnn rnn_type",
    "model.core_size": "lstm_hidden_size rnn_size lstm_cell_size",
    "model.core_layers": "n_lstm_layers rnn_num_layers",
    "runtime.device": "cuda use_cuda gpu use_gpu num_gpus",
    "runtime.num_workers": "num_actors num_rollout_workers num_env_runners n_workers",
    "runtime.num_learners": "num_gpu_learners",
    "population.size": "num_policies with_pbt",
    "runtime.kind": "async_rl serial_mode",
    "runtime.compile": "torch_compile",
    "report.progress": "verbose progress_bar",
    "report.interval_s": "log_interval log_freq",
    "report.sinks": "track with_wandb",
    "eval.episodes": "n_eval_episodes num_eval_episodes evaluation_duration",
    "eval.interval": "eval_freq eval_every evaluation_interval",
    "checkpoint.interval_updates": "save_freq save_interval checkpoint_freq save_every_sec",
    "checkpoint.keep": "keep_checkpoints",
    "checkpoint.save_best": "best_model_save_path",
}

_DIFFERENT: Mapping[str, tuple[str, ...]] = {
    # learners have it in different options: the first that the learner has
    **dict.fromkeys(
        (
            "clip_range",
            "clip_coef",
            "cliprange",
            "clip_param",
            "clip_ratio",
            "ppo_clip_ratio",
            "eps_clip",
            "clip_epsilon",
        ),
        ("clip_epsilon", "clip_ratio"),
    ),
    **dict.fromkeys(("kl_coeff", "kl_loss_coeff", "init_kl_coeff"), ("kl_beta_init", "kl_coef")),
    "n_steps": ("n_step", "unroll_steps"),
    "batch_size": ("minibatch_steps", "batch_unrolls"),
    "train_batch_size": ("minibatch_steps", "batch_unrolls", "batch_size"),
    "buffer_size": ("replay_capacity_steps", "replay_capacity_steps_per_stream"),
    "replay_size": ("replay_capacity_steps", "replay_capacity_steps_per_stream"),
    "memory_size": ("replay_capacity_steps", "replay_capacity_steps_per_stream"),
    "learning_starts": ("replay_start_steps", "replay_start_steps_per_stream"),
    "start_steps": ("replay_start_steps", "replay_start_steps_per_stream"),
    "replay_start": ("replay_start_steps", "replay_start_steps_per_stream"),
    "warmup_steps": ("replay_start_steps", "replay_start_steps_per_stream"),
    "lr": ("learning_rate", "actor_lr critic_lr"),
    "learning_rate": ("actor_lr critic_lr",),
    "vf_coef": ("value_coef", "q_coef", "critic_loss_coef"),
    "value_loss_coef": ("value_coef", "q_coef", "critic_loss_coef"),
    "value_loss_coeff": ("value_coef", "q_coef", "critic_loss_coef"),
    "vf_loss_coeff": ("value_coef", "q_coef", "critic_loss_coef"),
    "baseline_cost": ("value_coef", "q_coef", "critic_loss_coef"),
    "gae_lambda": ("lambda_",),
    "lambda_": ("gae_lambda",),
    "lam": ("gae_lambda", "lambda_"),
    "lambda": ("gae_lambda", "lambda_"),
    "alpha": ("average_decay", "rmsprop_decay"),
    "tau": ("average_decay",),
    "polyak": ("tau", "average_decay"),
}

_OURS: Mapping[str, tuple[str, ...]] = {
    theirs: (ours,) for ours, names in _SAME.items() for theirs in names.split()
} | dict(_DIFFERENT)


def named_here(name: str, known: Collection[str]) -> list[str] | None:
    """The options among `known` that mean what `name` means in another library, which are several
    where it is split here; none if the learner has no such option; None for a name of no library.
    """
    last = name.lower().rpartition(".")[2]
    found = next((_OURS[each] for each in (name.lower(), last) if each in _OURS), None)
    if found is None:
        return None
    for names in found:
        if known_ones := [each for each in names.split() if each in known]:
            return known_ones
    return []
