"""Checks of family RAY: this machine's Ray, the way to a head, and the machines of a cluster against each other."""

from rlcheck.check import checks_in
from rlcheck.checks.ray import (
    address,
    debugging,
    devices,
    environment,
    hardware,
    head,
    members,
    pairs,
    reach,
    resources,
    security,
    sessions,
    settings,
    versions,
    versions_across,
    workers,
)

CHECKS = checks_in(
    versions, debugging, devices, sessions, address, settings, security, reach, head, workers,
    members, versions_across, resources, environment, hardware, pairs,
)  # fmt: skip
