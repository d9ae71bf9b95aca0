"""Checks of family RAY: this machine's Ray, the way to a head, and the machines of a cluster against each other."""
