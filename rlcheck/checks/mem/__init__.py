"""Checks of family MEM: whether the run's memory fits, whether the engine's share is right, whether to believe it."""

from rlcheck.check import checks_in
from rlcheck.checks.mem import engine, fit, model

CHECKS = checks_in(fit, engine, model)
