"""Rollout: engines that generate, behind one protocol. An engine lives in a process of its own."""
