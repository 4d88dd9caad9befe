"""The machine: processes, signals, locks, cores, memory, files and trust in them."""
