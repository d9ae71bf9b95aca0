"""Questions that several families ask of the examined Python environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcheck.facts.document import Facts

if TYPE_CHECKING:  # only an environment that was looked at needs it
    from packaging.version import Version


def version_of(facts: Facts, name: str) -> Version | None:
    """The version of an installed distribution; None when it is not there, unreadable, or nobody looked."""
    python = facts.python.value
    if python is None:
        return None
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    wanted = canonicalize_name(name)
    for distribution in python.distributions:
        if canonicalize_name(distribution.name) == wanted:
            try:
                return Version(distribution.version)
            except InvalidVersion:
                return None
    return None


def is_absent(facts: Facts, name: str) -> bool:
    """Whether the environment was looked at and has no such distribution."""
    python = facts.python.value
    if python is None:
        return False
    from packaging.utils import canonicalize_name

    wanted = canonicalize_name(name)
    return all(canonicalize_name(d.name) != wanted for d in python.distributions)


def has_gpu(facts: Facts) -> bool:
    """Whether a GPU was seen, of either make."""
    nvidia, rocm = facts.nvidia.value, facts.rocm.value
    return bool((nvidia is not None and nvidia.devices.value) or (rocm is not None and rocm.devices.value))
