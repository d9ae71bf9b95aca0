"""Checks of family RAY: what can be said of Ray without asking it."""

from rlcheck.check import checks_in
from rlcheck.checks.ray import address, debugging, devices, security, sessions, settings, versions

CHECKS = checks_in(versions, debugging, devices, sessions, address, settings, security)
