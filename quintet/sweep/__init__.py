"""Search for good options: every trial is a run, and the best ones are trained again."""
