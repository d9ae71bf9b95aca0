"""Plug-ins that measure for the doctor (entry point group `rlcheck.measurements`): memory, rollout, smoke, drift."""
