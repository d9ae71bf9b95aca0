"""Checks of family NET."""

from rlcheck.check import checks_in

CHECKS = checks_in()
