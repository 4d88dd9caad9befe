"""Replay: rings of rows, and draws from them."""
