"""Checks of family NET."""

from rlcheck.check import checks_in
from rlcheck.checks.net import cloud, gpudirect, links, rdma, roce, routes, sockets

CHECKS = checks_in(cloud, gpudirect, links, rdma, roce, routes, sockets)
