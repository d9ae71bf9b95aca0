"""Checks of family ENV."""

from rlcheck.check import checks_in

CHECKS = checks_in()
