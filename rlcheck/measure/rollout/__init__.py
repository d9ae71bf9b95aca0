"""Rollout engines, started or reached, and what they answer."""
