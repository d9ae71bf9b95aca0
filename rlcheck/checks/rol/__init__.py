"""Checks of the rollout engine: one that was started, or a server that was reached."""

from rlcheck.check import checks_in
from rlcheck.checks.rol import answers, server, start

CHECKS = checks_in(start, answers, server)
