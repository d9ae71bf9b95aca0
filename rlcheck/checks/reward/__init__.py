"""Checks of a reward function that was called: what it returns, how it judges, where it breaks."""
