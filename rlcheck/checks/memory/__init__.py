"""Checks of family MEM: whether the run's memory fits, whether the engine's share is right, whether to believe it."""
