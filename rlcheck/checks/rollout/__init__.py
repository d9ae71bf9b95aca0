"""Checks of the rollout engine: one that was started, or a server that was reached."""
