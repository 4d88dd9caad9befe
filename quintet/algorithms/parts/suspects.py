"""Options that may explain why a run does not learn, for `quintet doctor`."""

HARMLESS = ("check_numerics", "log_", "lr_schedule", "normalize_pictures", "model.activation")
"""Options that seldom explain why nothing is learned, or beginnings of their names."""

WORDS = {
    "update_normalizers": 0.75,
    "normalize_observations": 0.6,
    "reward_normalizer": 0.5,
    "truncation_as_termination": 0.6,
    "model.core": 0.7,
    "exploration": 0.6,
}
"""Weights of options that are words or switches."""

SYMPTOMS: dict[tuple[str, str], frozenset[str]] = {
    ("learning_rate", "above"): frozenset(
        {"health-policy", "health-value-function", "entropy-gone", "gradient-spikes",
         "best-long-ago", "evaluation-differs"}),
    ("learning_rate", "below"): frozenset(
        {"health-policy", "policy-still", "entropy-stuck", "values-scale",
         "health-value-function"}),
    ("ent_coef", "above"): frozenset({"entropy-stuck"}),
    ("ent_coef", "below"): frozenset({"entropy-gone"}),
    ("gamma", "below"): frozenset({"not-learning"}),
    ("gamma", "above"): frozenset({"health-value-function"}),
    ("clip_ratio", "below"): frozenset({"policy-still", "health-policy", "entropy-stuck"}),
    ("clip_ratio", "above"): frozenset({"health-policy", "entropy-gone"}),
    ("grad_clip", "below"): frozenset({"gradient-clipped", "entropy-stuck"}),
    ("buffer_size", "below"): frozenset({"replay-small", "health-value-function"}),
    ("learning_starts", "above"): frozenset({"few-updates", "not-learning"}),
    ("rollout", "below"): frozenset({"not-learning", "health-value-function"}),
    ("n_epochs", "above"): frozenset({"health-policy"}),
}  # fmt: skip
"""Findings that an option explains, by its usual name and the direction of its difference."""


HARMLESS_WAYS = {
    ("adam_eps", "below"), ("buffer_size", "above"), ("clip_obs", "above"),
    ("clip_reward", "above"), ("grad_clip", "above"), ("learning_starts", "below"),
    ("batch_size", "above"),
}  # fmt: skip
"""Directions in which an option seldom does harm."""
