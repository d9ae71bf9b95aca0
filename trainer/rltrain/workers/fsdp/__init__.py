"""Training ranks: models sharded by FSDP2, their forward passes, updates, weights and checkpoints."""
