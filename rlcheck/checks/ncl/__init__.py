"""Checks of family NCL."""

from rlcheck.check import checks_in
from rlcheck.checks.ncl import conf, debugging, devices, leftovers, library, names

CHECKS = checks_in(conf, debugging, devices, leftovers, library, names)
