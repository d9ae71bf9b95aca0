"""Questions that several families ask of the examined Python environment."""

from __future__ import annotations

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from rlcheck.facts.document import Facts


def version_of(facts: Facts, name: str) -> Version | None:
    """The version of an installed distribution; None when it is not there, unreadable, or nobody looked."""
    python = facts.python.value
    wanted = canonicalize_name(name)
    for distribution in python.distributions if python is not None else ():
        if canonicalize_name(distribution.name) == wanted:
            try:
                return Version(distribution.version)
            except InvalidVersion:
                return None
    return None


def is_absent(facts: Facts, name: str) -> bool:
    """Whether the environment was looked at and has no such distribution."""
    python = facts.python.value
    wanted = canonicalize_name(name)
    return python is not None and all(canonicalize_name(d.name) != wanted for d in python.distributions)


def has_gpu(facts: Facts) -> bool:
    """Whether a GPU was seen, of either make."""
    nvidia, rocm = facts.nvidia.value, facts.rocm.value
    return bool((nvidia is not None and nvidia.devices.value) or (rocm is not None and rocm.devices.value))
