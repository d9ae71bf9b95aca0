"""Mistakes that people make in RL training, each put into a real run of a toy recipe."""
