"""Deep deterministic policy gradient."""
