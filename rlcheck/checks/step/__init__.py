"""Checks of training steps: recomputed from their capsules, and run again."""
