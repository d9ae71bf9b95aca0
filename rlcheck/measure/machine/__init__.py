"""Collecting facts: the only code that touches the machine."""
