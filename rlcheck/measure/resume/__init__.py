"""Checkpoints that are on disk: read without torch, and without running what is in them."""
