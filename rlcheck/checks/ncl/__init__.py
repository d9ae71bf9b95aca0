"""Checks of family NCL."""

from rlcheck.check import checks_in

CHECKS = checks_in()
