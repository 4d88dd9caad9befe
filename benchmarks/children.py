"""Commands of the benchmarks' child processes."""

WITH_PARENT = ("setpriv", "--pdeathsig", "TERM")
"""Before a command: the process is asked to stop when the one that began it ends, however it ends,
so that nothing runs beside later measurements."""
