"""A run and its folder."""
