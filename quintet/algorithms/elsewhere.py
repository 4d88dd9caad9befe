"""Names of other libraries that are no option here, and options that count differently there.

An option's own names elsewhere stand in its declaration: `also` of
`quintet.options.declaration.option`.
"""

_SWEEP = "`quintet sweep` searches for options (docs/sweep.md)"
_Q_LEARNING = "quintet has no Q-learning (docs/coming-from.md)"
_SAVED = "every run saves this: checkpoints with the optimizer and replay, and policy/ at its end"
_GOES_ON = "the same command goes on with the run in its folder; --init-from starts a new one"

_INSTEAD = {
    "hyperparams": "give its names as options, or in a file: --config FILE.yaml",
    "conf_file config_file cfg yaml_file": "give --config FILE.yaml (config=... in Python)",
    "capture_video record_video save_video video": "after training, "
    "`quintet eval RUN --video FILE.mp4`",
    "save_model save_replay_buffer checkpoint_at_end": _SAVED,
    "upload_model hf_entity hf_repository push_to_hub": "quintet uploads nothing; the folder "
    "policy/ of a run is a whole policy",
    "optimize optimize_hyperparameters n_trials max_total_trials n_startup_trials n_evaluations "
    "n_jobs sampler pruner storage study_name trial_id optimization_log_path": _SWEEP,
    "wandb_project wandb_project_name wandb_entity wandb_user wandb_group wandb_tags": "set "
    "WANDB_PROJECT, WANDB_ENTITY, WANDB_RUN_GROUP or WANDB_TAGS, and add wandb to --report.sinks",
    "train_for_seconds time_budget_s max_time": "give --minutes NUMBER",
    "env_wrapper vec_env_wrapper wrapper_class": "give --env MODULE:FUNCTION, which makes the "
    "wrapped environment (docs/environments.md)",
    "gym_packages": "give --env MODULE:FUNCTION, a function that makes the environment",
    "callback": "give callbacks, or on_report, a function of reports, to quintet.train",
    "use_sde sde_sample_freq use_sde_at_warmup": "quintet has no state-dependent exploration; PPO "
    "and SAC have noise_correlation (docs/ppo.md)",
    "exploration_fraction exploration_final_eps exploration_initial_eps start_e end_e": _Q_LEARNING,
    "replay_buffer_class replay_buffer_kwargs goal_selection_strategy n_sampled_goal": "quintet "
    "has one kind of replay, without hindsight (docs/coming-from.md)",
    "n_eval_envs": "an evaluation steps as many environments as it has episodes",
    "restore load_run resume_from continue_training": _GOES_ON,
    "algo algorithm run": "the algorithm is the first word: quintet train ppo",
    "monitor_kwargs info_keywords": "env.metrics KEY, ... reports numbers in info",
    "norm_obs_keys normalize_input_keys": "normalize_observations is for all leaves of floats",
    "vf_clip_param": "it bounds the squared error; value_clip bounds the change of the value",
    "framework": "quintet trains with PyTorch",
    "target_update_interval target_network_frequency": "targets move by tau in every update",
    "policy_delay policy_frequency target_policy_noise target_noise_clip": (
        "quintet has no TD3; `ddpg` has one critic and updates its policy each time, and the "
        "package `sac` has two critics"
    ),
    "reset_num_timesteps": "the same call with a larger total_steps goes on with the run in its "
    "folder; another run_dir starts a new one",
    "name_prefix": "checkpoints are in RUN_DIR/checkpoints, named by their numbers",
    "policy policy_class": "the network follows from the observations, with pictures and Dicts: "
    "leave it out, or give model.encoder a network of quintet or of your own",
    "num_runs n_seeds num_seeds": "give --seeds 1,2,3",
}

INSTEAD = {name: said for names, said in _INSTEAD.items() for name in names.split()}
"""Advice by names that stand for no option."""

LEARNERS_ELSEWHERE = {
    "a2c": "with num_epochs 1, minibatch_steps none, normalize_advantage none and gae_lambda 1",
    "trpo": "with --preset kl_penalty if the KL divergence is to be bounded",
    "td3": "with one critic and no delayed policy; the package sac has two critics",
    **dict.fromkeys(
        ("dqn", "qrdqn", "rainbow"),
        "which learns discrete actions from replay, with a stochastic policy: no Q-learning",
    ),
}
"""Advice by learners of other libraries, after the name of the nearest learner."""

_PER_CALL = "Stable-Baselines3's callback counts calls of `step`: "
_TWICE = "twice theirs, whose squared error has no factor 0.5"
_THEIR_COUNT = "theirs is the number of minibatches, ours the rows of one"

_FACTORS = {
    "vf_coef": "twice Stable-Baselines3's, whose squared error has no factor 0.5; CleanRL's has it",
    "vf_loss_coeff value_loss_coef value_loss_coeff": _TWICE,
    "num_minibatches nminibatches n_minibatch num_mini_batches": _THEIR_COUNT,
    "train_batch_size train_batch_size_per_learner": "theirs counts env_steps of all environments",
    "eval_freq": f"{_PER_CALL}times env.num_streams",
    "save_freq": f"{_PER_CALL}divided by unroll_steps",
    "train_for_env_steps": "theirs counts frames: divide by the frame skip",
    "num_envs_per_worker num_envs_per_env_runner": "theirs times the number of workers",
    "max_iterations num_iterations": "theirs times env.num_streams times unroll_steps",
    "gradient_steps": "theirs divided by train_freq and the number of environments",
    "clip_vloss use_clipped_value_loss": "theirs is a switch, ours the bound: clip_epsilon's value",
    "log_std_init": "exp(theirs) divided by half the action range",
    "polyak": "1 - theirs, in Spinning Up",
    "log_interval log_freq": "ours is in seconds",
}

FACTORS = {name: said for names, said in _FACTORS.items() for name in names.split()}
"""Differences of an option's values, by its name elsewhere."""

SHORT = {
    "n": "n_timesteps",
    "i": "trained_agent",
    "f": "log_folder",
    "tb": "tensorboard_log",
    "P": "progress",
    "params": "hyperparams",
    "conf": "conf_file",
    "optimize": "optimize",
    "tags": "wandb_tags",
}
"""Flags with one dash of Stable-Baselines3's zoo, by their letters."""

OF_EVALUATIONS = {
    **dict.fromkeys(("n-eval-episodes", "eval-episodes", "n-episodes"), "give --episodes N"),
    **dict.fromkeys(("render", "no-render", "record-video", "save-video"), "give --video FILE.mp4"),
    "deterministic": "actions are the likeliest ones, --stochastic samples them",
    "load-best": "give --checkpoint best",
    "load-checkpoint": "give --checkpoint NAME",
    "env-kwargs": "give --env.kwargs JSON",
}
"""Advice by options of other libraries' commands that play a trained policy."""
