"""What the checks of this family share."""

from __future__ import annotations

from packaging.version import Version

from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.installed import version_of
from rlcheck.facts.ray import RayFacts

LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
ON = ("1", "true")
# From here on `ray.init` makes a token for a cluster of its own, and `ray start --head` uses one that it finds.
TOKENS_BY_THEMSELVES = Version("2.59.0")


def ray(facts: Facts) -> RayFacts:
    """The section."""
    return need(facts.ray)


def ray_version(facts: Facts) -> Version | None:
    """The installed Ray, None when there is none or it is not known."""
    return version_of(facts, "ray")


def variable(facts: Facts, name: str) -> str | None:
    """A recorded environment variable, or None when it is not set."""
    return (facts.environ.value or {}).get(name)


def token_by_itself(facts: Facts) -> str:
    """Where the token is on account of which Ray asks for tokens without having been told to; "" when it does not."""
    version = ray_version(facts)
    if variable(facts, "RAY_AUTH_MODE") is not None or version is None or version < TOKENS_BY_THEMSELVES:
        return ""
    if variable(facts, "RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    token = ray(facts).auth_token.value
    return token.path if token is not None and token.readable and token.num_bytes else ""


def is_on(value: str | None) -> bool:
    """Whether Ray's boolean variables take `value` as yes: nothing but 1 and true does."""
    return value is not None and value.lower() in ON


def is_alive(facts: Facts, address: str) -> bool:
    """Whether a Ray process of this machine belongs to the cluster at `address`, or may, unseen."""
    section = ray(facts)
    port = address.rpartition(":")[2]
    listening = any(str(listener.port) == port for listener in section.listeners.value or ())
    known_here = any(process.gcs_address == address for process in section.processes.value or ())
    return known_here or section.num_unseen_raylets > 0 or (listening and is_local(facts, host_of(address)))


def host_of(address: str) -> str:
    """The host of host:port, without the brackets of IPv6."""
    return address.rpartition(":")[0].strip("[]")


def is_local(facts: Facts, host: str) -> bool:
    """Whether `host` is this machine: a loopback name or one of its IPv4 addresses. A host name is not resolved."""
    return host.lower() in LOOPBACK or host in ray(facts).addresses


def days(seconds: float) -> str:
    """An age for a reader."""
    if seconds < 0:
        return "unknown age"
    return f"{seconds / 86400:.0f} days" if seconds >= 2 * 86400 else f"{seconds / 3600:.1f} h"
