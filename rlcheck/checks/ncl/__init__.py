"""Checks of family NCL."""

from rlcheck.check import checks_in
from rlcheck.checks.ncl import (
    collectives_agree,
    collectives_run,
    collectives_speed,
    collectives_transport,
    conf,
    debugging,
    devices,
    leftovers,
    library,
    names,
)

CHECKS = checks_in(
    conf,
    debugging,
    devices,
    leftovers,
    library,
    names,
    collectives_run,
    collectives_speed,
    collectives_transport,
    collectives_agree,
)
