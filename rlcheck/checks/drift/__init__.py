"""Checks of drift: whether what the policy learns from is what it did."""
