"""Checks of family SYS: limits, memory, processors, disks, container, tool chain, environment."""

from rlcheck.check import checks_in
from rlcheck.checks.sys import container, cpu, disk, environment, kernel, limits, memory, shm, toolchain

CHECKS = checks_in(shm, limits, memory, cpu, kernel, disk, container, toolchain, environment)
