"""What the machine gives: processes, signals, locks, cores, memory, files and who made them."""
