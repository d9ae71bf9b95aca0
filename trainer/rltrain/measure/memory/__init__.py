"""What the phases of a run really need in memory: run for real, with random weights, for `rlcheck --measure`."""
