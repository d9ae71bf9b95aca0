"""Checks of drift: whether what the policy learns from is what it did."""

from rlcheck.check import checks_in
from rlcheck.checks.drf import equal, meaning, measured, reasons, sync, trend

CHECKS = checks_in(sync, meaning, trend, equal, reasons, measured)
