"""Rewards: rules and a user's function in child processes, a reward model, and how their scores are combined."""
