"""Checks of family HFC."""

from rlcheck.check import checks_in

CHECKS = checks_in()
