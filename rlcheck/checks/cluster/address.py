"""RAY_ADDRESS: a form that Ray understands, and something behind it."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, warn
from rlcheck.checks.cluster.common import host_of, is_alive, is_local, ray, variable
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts

_KEYWORDS = ("local", "auto")
_DASHBOARD, _CLIENT = 8265, 10001
_WANTED = "RAY_ADDRESS=host:6379, the address of the head's GCS"


@check("RAY020", "RAY_ADDRESS is an address of a cluster", needs=("environ",), playbook="ray-address-dead",
       problem="RAY_ADDRESS is not the address of a cluster")  # fmt: skip
def address_form(facts: Facts) -> Verdict:
    """Judges the form of RAY_ADDRESS and the port in it.

    What it does:
        ray.init wants host:port of the head's GCS (6379), ray://host:10001 for the Ray Client, auto or local. An
        http address is only for `ray job`. Reports an empty host, a port that is none, and the ports of other services.

    Why it matters:
        A driver that is sent to the dashboard or to the client port gets no answer that it understands and stops after
        a timeout with "Failed to connect to GCS". An empty host means that the variable for the head's address was
        unset in the job script.
    """
    value = variable(facts, "RAY_ADDRESS")
    if not value:
        return passed("is not set")
    proof = {"evidence": (evidence("environ.RAY_ADDRESS", value),)}
    if value in _KEYWORDS:
        return passed(f"RAY_ADDRESS={value}")
    scheme, has_scheme, rest = value.rpartition("://")
    if has_scheme and scheme == "ray":
        note = "the driver is a Ray Client and ends when its connection does" if _port(rest) else "no port in it"
        return info(f"RAY_ADDRESS={value}: {note}", **proof)
    if has_scheme and scheme in ("http", "https"):
        return warn(_WANTED, f"{value}, which only `ray job` understands", **proof)
    port = _port(value)
    if has_scheme or not port or not host_of(value):
        return fail(_WANTED, _fault(value, bool(has_scheme), port), **proof)
    if port == _DASHBOARD:
        return fail(_WANTED, f"{value}: {port} is the dashboard's port", **proof)
    if port == _CLIENT:
        return fail(_WANTED, f"{value}: {port} is the Ray Client's port; it needs ray:// in front", **proof)
    return passed(f"RAY_ADDRESS={value}")


def _port(address: str) -> int:
    """The port of host:port, 0 when it is none that Ray takes (1024 – 65535)."""
    text = address.rpartition(":")[2]
    port = int(text) if text.isdecimal() and len(text) <= 5 else 0
    return port if 1024 <= port <= 65535 else 0


def _fault(value: str, has_scheme: bool, port: int) -> str:
    if has_scheme:
        return f"{value}, a scheme that Ray does not know"
    return f"{value}, without a host" if port else f"{value}, without a port between 1024 and 65535"


@check("RAY021", "RAY_ADDRESS leads to a running Ray", needs=("environ", "ray.processes", "ray.listeners"),
       playbook="ray-address-dead", caused_by=("RAY020",),
       problem="RAY_ADDRESS leads to a Ray that is not running")  # fmt: skip
def address_alive(facts: Facts) -> Verdict:
    """Looks whether a RAY_ADDRESS on this machine has Ray behind it. Nothing is sent over the network.

    What it does:
        For a loopback or own address, looks for a listener on the port or a Ray process of that cluster; for auto, for
        any Ray here. Addresses of other machines are left to `rlcheck ray --head-ip`.

    Why it matters:
        A RAY_ADDRESS left in a shell profile from an earlier cluster makes every ray.init() connect to nothing, and the
        run stops after a timeout instead of starting a cluster of its own.
    """
    value = variable(facts, "RAY_ADDRESS")
    if not value or value == "local":
        return passed("is not set" if not value else "RAY_ADDRESS=local")
    section = ray(facts)
    proof = {"evidence": (evidence("environ.RAY_ADDRESS", value),)}
    if value == "auto":
        anything = need(section.processes) or section.num_unseen_raylets or section.current_cluster.value
        if anything:
            return passed("RAY_ADDRESS=auto, and Ray runs here")
        return warn("a running Ray for RAY_ADDRESS=auto", "none on this machine", **proof)
    address = value.rpartition("://")[2]
    if not _port(address):
        return passed(f"{value} has no port to look for")
    if not is_local(facts, host_of(address)):
        return passed(f"{value} is another machine's; nothing was sent to it")
    if is_alive(facts, address):
        return passed(f"{value} has Ray behind it")
    if need(section.processes):
        return warn(f"Ray on {value}", "a Ray that runs on another port of this machine", **proof)
    return warn(f"a running Ray on {value}", "none on this machine; start the head before the run", **proof)
