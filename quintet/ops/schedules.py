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
    return min(max(rate, RATE_MIN), RATE_MAX)
