"""Checks of family GPU."""

from rlcheck.check import checks_in

CHECKS = checks_in()
