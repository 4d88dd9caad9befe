"""Observation of runs: metrics, sinks, timing, progress, plots."""
