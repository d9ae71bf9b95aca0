"""Checks of one training step that was made for trial."""

from rlcheck.check import checks_in
from rlcheck.checks.run import step

CHECKS = checks_in(step)
