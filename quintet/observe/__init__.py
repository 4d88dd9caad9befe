"""What a run shows of itself: metrics, sinks, timing, progress, plots."""
