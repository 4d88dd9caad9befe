"""Schedules as plain functions of numbers; the learner multiplies its base rate by them."""

RATE_MIN = 1e-6
RATE_MAX = 1e-2


def linear(env_steps: int, total_env_steps: int) -> float:
    """Fraction left of a linear decay: ``1 - env_steps / total_env_steps``.

    Returns: 1 at step 0, exactly 0 at the total and after it.

    Raises:
        ValueError: the total is not positive.
    """
    if total_env_steps <= 0:
        raise ValueError(f"total_env_steps must be positive, got {total_env_steps}")
    return 1.0 - min(env_steps, total_env_steps) / total_env_steps


def double_linear_con(done: float) -> float:
    """``max(1 - 2 * done, 0.125)``: a linear decay to an eighth, at twice the speed."""
    return max(1.0 - 2.0 * done, 0.125)


def middle_drop(done: float) -> float:
    """``1 - done`` for a quarter of the run, then 0.075."""
    return 1.0 - done if 1.0 - done >= 0.75 else 0.075


def double_middle_drop(done: float) -> float:
    """``1 - done`` for a quarter of the run, then 0.075, and 0.125 in its last quarter.

    Source of the three, with its names: OpenAI baselines.
    """
    if 1.0 - done < 0.25:
        return 0.125
    return middle_drop(done)


OF_FRACTION = {
    "constant": lambda done: 1.0,  # noqa: ARG005
    "linear": lambda done: 1.0 - done,
    "double_linear_con": double_linear_con,
    "middle_drop": middle_drop,
    "double_middle_drop": double_middle_drop,
}
"""Schedules by name: the factor of a rate as a function of the fraction of the run that is done."""


def kl_adaptive_rate(rate: float, mean_kl: float, target: float) -> float:
    """Next learning rate, from the mean KL of the last update.

    ``rate / 1.5`` where ``mean_kl > 2 * target``, ``rate * 1.5`` where ``mean_kl < target / 2``,
    else ``rate``; kept in [1e-6, 1e-2].

    Args:
        mean_kl, target: nats.

    Returns: the new rate, in the units of the old one.

    Source: the adaptive schedule of rl_games and RSL-RL (arXiv 2109.11978).
    """
    if mean_kl > 2.0 * target:
        rate = rate / 1.5
    elif mean_kl < 0.5 * target:
        rate = rate * 1.5
    return within_bounds(rate)


def within_bounds(rate: float) -> float:
    """The nearest rate that `kl_adaptive_rate` can return."""
    return min(max(rate, RATE_MIN), RATE_MAX)
