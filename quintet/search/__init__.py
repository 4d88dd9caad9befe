"""Many runs: seed groups, times in minutes, sweeps and races, on one engine.

`trial` is the process of each run, `engine` runs several and hears how they ended, `placement` says
where they train.  The plans are `seed_group`, `minutes`, `sweep` and `race`.
"""
