"""The folder of a run on disk: checkpoints, records, locks and signatures."""
