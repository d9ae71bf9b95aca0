"""Environment variables of Ray that weaken it, do nothing, or are written wrongly."""

from __future__ import annotations

from packaging.version import Version

from rlcheck.check import Verdict, check, evidence, info, passed, warn
from rlcheck.checks.cluster.common import is_on, ray_version, variable
from rlcheck.checks.cluster.variables import ALSO_UPPER_CASE, CXX_FLAGS
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.text import several

_THRESHOLD = (0.5, 0.98)
# What is said about each, and the first version of Ray of which it is known (None: every version).
_NOT_READ: dict[str, tuple[Version | None, str]] = {
    "RAY_BACKEND": (None, "Ray has no such setting; UCX is not a backend of it"),
    "RAY_DISABLE_MEMORY_MONITOR": (Version("2.60"), "only Ray's tests read it; use RAY_memory_monitor_refresh_ms=0"),
    "RAY_memory_monitor_interval_ms": (Version("2.60"), "its name is RAY_memory_monitor_refresh_ms"),
    "RAY_num_heartbeats_timeout": (Version("2.60"), "see RAY_health_check_failure_threshold"),
    "RAY_raylet_heartbeat_timeout_milliseconds": (Version("2.60"), "see RAY_health_check_period_ms"),
}
_BY_LOWER = {f"ray_{name}".lower(): f"RAY_{name}" for name in CXX_FLAGS}


@check("RAY022", "Ray's memory monitor is on and sensible", needs=("environ",), playbook="ray-memory-monitor")
def memory_monitor(facts: Facts) -> Verdict:
    """Reads the two settings of Ray's protection against running out of host memory.

    What it does:
        RAY_memory_monitor_refresh_ms=0 switches it off; RAY_memory_usage_threshold is a fraction, 0.95 by default.

    Why it matters:
        Without the monitor the kernel's OOM killer chooses the victim, often the raylet, and the node is lost with
        nothing in Ray's logs. A threshold near 1 is no protection, one far below kills healthy workers.
    """
    refresh, threshold = (variable(facts, f"RAY_memory_{name}") for name in ("monitor_refresh_ms", "usage_threshold"))
    if refresh is not None and refresh.strip() in ("0", "-0", "00"):
        return warn("the memory monitor on", f"RAY_memory_monitor_refresh_ms={refresh}, which switches it off",
                    params={"variable": "RAY_memory_monitor_refresh_ms"})  # fmt: skip
    if threshold is None:
        return passed("as by default")
    fraction = _fraction(threshold)
    if fraction is None or not _THRESHOLD[0] <= fraction <= _THRESHOLD[1]:
        return warn(
            f"RAY_memory_usage_threshold between {_THRESHOLD[0]} and {_THRESHOLD[1]}",
            threshold,
            evidence=(evidence("environ.RAY_memory_usage_threshold", threshold),),
            params={"variable": "RAY_memory_usage_threshold"},
        )
    return passed(f"RAY_memory_usage_threshold={threshold}")


def _fraction(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _unset(facts: Facts, name: str) -> Verdict:
    """Return the verdict on a switch that Ray takes for on whatever its text."""
    value = variable(facts, name)
    if not value:
        return passed("is not set")
    return warn(f"no {name}", f"{value!r} (any text counts as yes)", evidence=(evidence(f"environ.{name}", value),))


@check("RAY023", "The object store stays in memory", needs=("environ",), playbook="ray-object-store-shm",
       problem="Ray may put the object store on disk")  # fmt: skip
def slow_storage(facts: Facts) -> Verdict:
    """Notices the permission to put the object store on disk.

    What it does:
        Reports RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE when it is not empty; its value does not matter to Ray.

    Why it matters:
        When /dev/shm is too small, Ray then puts an object store of any size into its temporary directory without an
        error (else only one of up to 10 GB), and every batch that goes from rollout to training crosses the disk.
    """
    return _unset(facts, "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE")


@check("RAY024", "Ray reads the variables that are set", needs=("environ", "python"), playbook="ray-unread-variables",
       problem="Ray does not read a variable that is set")  # fmt: skip
def unread_variables(facts: Facts) -> Verdict:
    """Looks for variables from guides that Ray does not have.

    What it does:
        Checks a short list, each searched for in the sources and programs of Ray 2.60: RAY_BACKEND and names that were
        renamed or removed.

    Why it matters:
        A setting that no program reads looks like a solved problem, and the search goes on in the wrong place.
        RAY_BACKEND=ucx is copied from guide to guide and does nothing.
    """
    version = ray_version(facts)
    present = [
        name
        for name, (since, _) in _NOT_READ.items()
        if variable(facts, name) is not None and (since is None or (version is not None and version >= since))
    ]
    if not present:
        return passed("none that is known to do nothing")
    name = present[0]
    return warn(
        "settings that Ray reads",
        f"{name}={variable(facts, name)}: {_NOT_READ[name][1]}",
        details=tuple(f"{other}: {_NOT_READ[other][1]}" for other in present[1:]),
        evidence=tuple(evidence(f"environ.{other}", variable(facts, other)) for other in present),
        params={"names": several(present)},
    )


@check("RAY025", "Ray's flags are in the right case", needs=("environ",), playbook="ray-unread-variables",
       problem="A Ray flag is in the wrong case")  # fmt: skip
def flag_case(facts: Facts) -> Verdict:
    """Finds flags of Ray's C++ programs that are written in another case.

    What it does:
        Compares each RAY_ variable with the 247 flags of Ray 2.60, whose names are in lower case after RAY_.

    Why it matters:
        RAY_WORKER_REGISTER_TIMEOUT_SECONDS is another variable than RAY_worker_register_timeout_seconds, and nothing
        says so: the timeout that you believe to have raised is still the old one.
    """
    wrong = {
        name: right
        for name in need(facts.environ)
        if (right := _BY_LOWER.get(name.lower())) and right != name and name not in ALSO_UPPER_CASE
    }
    if not wrong:
        return passed("no flag in another case")
    name, right = next(iter(sorted(wrong.items())))
    value = variable(facts, name) or ""
    return warn(
        right,
        name + (f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""),
        details=tuple(f"{bad}: Ray reads {good}" for bad, good in sorted(wrong.items())),
        evidence=tuple(evidence(f"environ.{bad}", variable(facts, bad)) for bad in sorted(wrong)),
        params={"variable": name, "command": f"{right}={value}"},
    )


@check("RAY026", "Ray counts the CPUs of the container", needs=("environ",), playbook="cpus-fewer-than-seen",
       problem="Ray counts the CPUs of the host")  # fmt: skip
def cpu_count(facts: Facts) -> Verdict:
    """Notices the switch that makes Ray count the CPUs of the whole machine.

    What it does:
        Reports RAY_USE_MULTIPROCESSING_CPU_COUNT when it is not empty.

    Why it matters:
        Inside a container Ray then starts a worker for each CPU of the host instead of each CPU that it may use, so
        that start-up slows to a crawl and workers do not register in time.
    """
    return _unset(facts, "RAY_USE_MULTIPROCESSING_CPU_COUNT")


@check("RAY027", "Ray's own calls do not go through a proxy", needs=("environ",), playbook="ray-head-proxy",
       problem="Ray's calls between nodes go through a proxy")  # fmt: skip
def grpc_proxy(facts: Facts) -> Verdict:
    """Notices that Ray was allowed to use the HTTP proxy for its calls between nodes.

    What it does:
        RAY_grpc_enable_http_proxy is off by default. On, together with http_proxy or https_proxy, it is judged by
        whether no_proxy is there to spare the cluster's own addresses.

    Why it matters:
        Calls between the nodes of a cluster then go to a proxy that cannot reach them, and workers never join: the
        same timeout as with a blocked port.
    """
    if not is_on(variable(facts, "RAY_grpc_enable_http_proxy")):
        return passed("is off")
    names = ("https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY", "grpc_proxy")
    proxies = [name for name in names if variable(facts, name)]
    if not proxies:
        return passed("is on, but no proxy is set")
    spared = variable(facts, "no_proxy") or variable(facts, "NO_PROXY")
    if spared:
        return info(f"Ray's calls use {proxies[0]} except for no_proxy={spared}")
    return warn(
        "Ray's calls to go straight to the other nodes",
        f"RAY_grpc_enable_http_proxy is on with {proxies[0]}={variable(facts, proxies[0])} and no no_proxy",
        evidence=(evidence("environ.RAY_grpc_enable_http_proxy", "1"),),
    )
