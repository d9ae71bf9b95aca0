"""Checks of family RAY."""

from rlcheck.check import checks_in

CHECKS = checks_in()
