"""Measurements of environments and of runs, from which findings follow."""
