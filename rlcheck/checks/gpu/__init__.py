"""Checks of family GPU: drivers, GPUs and their health, NVIDIA and AMD."""

from rlcheck.check import checks_in
from rlcheck.checks.gpu import (
    clocks,
    cuda,
    driver,
    health,
    links,
    rocm,
    rocm_env,
    rocm_visible,
    sharing,
    visible,
)

CHECKS = checks_in(driver, cuda, visible, health, clocks, links, sharing, rocm, rocm_visible, rocm_env)
