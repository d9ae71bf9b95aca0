"""Checks of a training run: one step made for trial, and the health of a run from its metrics and samples."""
