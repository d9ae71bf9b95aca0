"""Plug-ins that measure for the doctor (entry point group `rlcheck.probes`): the rollout engine, one training step."""
