"""Checks of family ENV: the Python environment and the packages in it."""

from rlcheck.check import checks_in
from rlcheck.checks.env import (
    binaries,
    builds,
    cuda,
    declared,
    engines,
    imports,
    interpreter,
    jit,
    layout,
    releases,
    surroundings,
    triton,
    variables,
)

CHECKS = checks_in(
    interpreter,
    engines,
    declared,
    builds,
    triton,
    cuda,
    binaries,
    layout,
    releases,
    surroundings,
    variables,
    jit,
    imports,
)
