"""Checks of family SYS."""

from rlcheck.check import checks_in

CHECKS = checks_in()
