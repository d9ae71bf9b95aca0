"""Rollout against training: how far the engine's log-probabilities are from those of the training stack."""
