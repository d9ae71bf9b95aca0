"""Tests of the controller's own pieces: what watches a run, what it leaves on the disk."""
