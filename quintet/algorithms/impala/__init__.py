"""Importance-weighted actor-learner architecture, with V-trace."""
