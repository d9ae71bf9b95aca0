"""Checks of family CFG: keys, batches, parallelism and placement of a run; its models, data, training and logging."""
