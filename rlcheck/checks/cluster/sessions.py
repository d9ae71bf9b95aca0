"""What runs here, what ran here, and who holds Ray's ports."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, info, passed, skip, unknown, warn
from rlcheck.checks.cluster.common import LOOPBACK, days, is_alive, ray, ray_version, token_by_itself, variable
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.installed import is_absent
from rlcheck.facts.ray import WORKER_PORTS, Listener, is_reserved

_MANY = 20
_STALE_S = 3600.0
_RAY_NAMES = ("gcs_server", "raylet", "ray-dashboard")


@check("RAY013", "Old Ray sessions leave no load behind", needs=("ray.sessions", "ray.num_sessions"),
       playbook="ray-disk-full",
       problem="Sessions of earlier Rays fill the disk")  # fmt: skip
def stale_sessions(facts: Facts) -> Verdict:
    """Counts session directories that no process uses any more.

    What it does:
        A session is stale when it is older than an hour and nothing is bound to its sockets. Spilled objects left in
        one are a warning, many sessions are mentioned. Sizes are not added up: that can take minutes.

    Why it matters:
        Sessions that were killed leave logs and spilled objects, which can be hundreds of gigabytes, in the directory
        where the next session wants to spill. Ray warns at 95 % of the disk and then refuses to store objects.
    """
    section, sessions, total = ray(facts), need(ray(facts).sessions), need(ray(facts).num_sessions)
    stale = [s for s in sessions if not s.live and (s.age_s < 0 or s.age_s >= _STALE_S)]
    spilled = [s for s in stale if s.spilled]
    more = {
        "details": tuple(f"{s.name}: {days(s.age_s)} old, uid {s.owner_uid}" for s in (spilled or stale)[:5]),
        "evidence": (evidence("ray.num_sessions", total, section.temp_dir),),
        "params": {"temp_dir": section.temp_dir, "session": (spilled or stale)[0].name} if stale else {},
    }
    if spilled:
        found = f"{len(spilled)} of {total} sessions in {section.temp_dir} with spilled objects"
        return warn("no spilled objects of sessions that have ended", found, **more)
    if len(stale) >= _MANY:
        return info(f"{total} sessions in {section.temp_dir}, most of them ended", **more)
    return passed(f"{total} sessions in {section.temp_dir}, {len(stale)} of them ended")


@check("RAY014", "Ray's default address leads to a live cluster", needs=("ray.current_cluster", "ray.processes"),
       playbook="ray-address-dead",
       problem="Ray's default address points to a cluster that is gone")  # fmt: skip
def default_cluster(facts: Facts) -> Verdict:
    """Checks the address that `ray start` left for later `ray.init()` calls.

    What it does:
        Reads ray_current_cluster in Ray's temporary directory and looks for a Ray process here that belongs to it.
        Skipped when RAY_ADDRESS is set, which comes first.

    Why it matters:
        `ray.init()` without an address connects to what this file names, even when that cluster has crashed: the run
        stops after a timeout with "Failed to connect to the default Ray cluster address".
    """
    section, address = ray(facts), need(ray(facts).current_cluster)
    if not address:
        return passed("no address is left behind")
    if variable(facts, "RAY_ADDRESS"):
        return skip("RAY_ADDRESS is set and comes first")
    if is_alive(facts, address):
        return passed(f"{address} has a Ray process here")
    return warn(
        f"a Ray process of the cluster {address} on this machine",
        f"none, but {section.temp_dir}/ray_current_cluster names it",
        evidence=(evidence("ray.current_cluster", address, f"{section.temp_dir}/ray_current_cluster"),),
    )


@check("RAY015", "No other user's Ray runs here", needs=("ray.processes",), playbook="ray-already-running",
       problem="Another user's Ray runs on this machine")  # fmt: skip
def other_users(facts: Facts) -> Verdict:
    """Looks for Ray processes of other users.

    What it does:
        Compares the owners of raylet and gcs_server processes with the user that runs.

    Why it matters:
        Two Rays on one machine compete for the ports 6379, 8265 and 10002 – 19999 and both hand out all GPUs, since
        neither knows of the other. `ray.init(address="auto")` may even connect to the wrong one.
    """
    section, processes = ray(facts), need(ray(facts).processes)
    others = [p for p in processes if p.owner_uid >= 0 and section.uid >= 0 and p.owner_uid != section.uid]
    if not others:
        return passed("none")
    uids = sorted({process.owner_uid for process in others})
    return warn(
        f"Ray processes of uid {section.uid} only",
        f"{len(others)} of uid {', '.join(str(uid) for uid in uids[:5])}",
        details=tuple(f"{p.name} pid {p.pid}, uid {p.owner_uid}, {days(p.age_s)} old" for p in others[:5]),
        evidence=tuple(evidence("ray.processes", p.name, f"/proc/{p.pid}") for p in others[:5]),
    )


@check("RAY016", "No Ray is running here yet", needs=("ray.processes",), playbook="ray-already-running",
       problem="A Ray is running here already")  # fmt: skip
def already_running(facts: Facts) -> Verdict:
    """Reports which Ray is running on this machine.

    What it does:
        Lists this user's raylet and gcs_server processes and the cluster that they belong to, and raylets that run
        where they cannot be seen (in another container).

    Why it matters:
        A new `ray start` or `ray.init()` meets it: it joins the old cluster with its old environment variables and
        perhaps other packages, or finds its ports taken. After a crash that is rarely what was meant.
    """
    section = ray(facts)
    mine = [p for p in need(section.processes) if p.owner_uid in (section.uid, -1)]
    if mine:
        address = next((p.gcs_address for p in mine if p.name == "raylet" and p.gcs_address), "of unknown address")
        oldest = max(process.age_s for process in mine)
        return info(
            f"Ray is running here: cluster {address}, {len(mine)} processes, {days(oldest)} old",
            details=tuple(f"{p.name} pid {p.pid}: {p.gcs_address}" for p in mine[:8]),
        )
    if section.num_unseen_raylets and not need(section.processes):
        return info(f"{section.num_unseen_raylets} raylets run on this machine out of sight (another container)")
    return passed("none")


@check("RAY017", "Port 6379 is free for a head node", needs=("ray.listeners", "python"), playbook="ray-port-occupied",
       problem="Something else listens on port 6379")  # fmt: skip
def port_taken(facts: Facts) -> Verdict:
    """Looks for something else on the port that `ray start --head` takes.

    What it does:
        Names the process that listens on 6379 when it is not Ray's. Skipped where Ray is not installed.

    Why it matters:
        6379 is also the port of Redis. The head then does not start, or workers connect to the Redis server and report
        a timeout while getting the cluster ID.
    """
    if is_absent(facts, "ray"):
        return skip("Ray is not installed in the examined environment")
    strangers = [l for l in need(ray(facts).listeners) if l.port == 6379 and l.process not in _RAY_NAMES]  # noqa: E741
    if not strangers:
        return passed("nothing but Ray listens on 6379")
    ray_runs = bool(ray(facts).processes.value or ray(facts).num_unseen_raylets)
    if ray_runs and not any(listener.process for listener in strangers):
        return unknown("something listens on 6379 whose process cannot be seen; Ray is running here, too")
    listener = strangers[0]
    who = f"{listener.process} (pid {listener.pid})" if listener.process else "a process that cannot be seen"
    return warn(
        "port 6379 free, or held by Ray",
        f"{who} of uid {listener.owner_uid} on {listener.address}",
        evidence=(evidence("ray.listeners", f"{listener.address}:6379", "/proc/net/tcp"),),
    )


@check("RAY018", "The dashboard is not open to the network", needs=("ray.listeners", "environ"),
       playbook="ray-head-binding",
       problem="The Ray dashboard is open to the network")  # fmt: skip
def open_dashboard(facts: Facts) -> Verdict:
    """Looks at the address that Ray's dashboard listens on.

    What it does:
        Warns when the dashboard (8265) is bound to more than the loopback interface and Ray asks for no token: neither
        by RAY_AUTH_MODE=token nor, from Ray 2.59 on, because there is one.

    Why it matters:
        Anyone who reaches the dashboard can submit jobs, which is running any program as you. It has been used at scale
        to steal GPU time.
    """
    dashboards = [listener for listener in need(ray(facts).listeners) if listener.process == "ray-dashboard"]
    public = [listener for listener in dashboards if not _is_loopback(listener)]
    if not dashboards:
        return skip("no dashboard is running here")
    if not public:
        return passed(f"it listens on {dashboards[0].address} only")
    if (variable(facts, "RAY_AUTH_MODE") or "").lower() == "token":
        return passed("it asks for a token (RAY_AUTH_MODE)")
    if found := token_by_itself(facts):
        return passed(f"Ray {ray_version(facts)} asks for a token by itself, since there is one ({found})")
    return warn(
        "the dashboard on 127.0.0.1, or token authentication",
        f"{public[0].address}:{public[0].port} (pid {public[0].pid}) without it",
        evidence=(evidence("ray.listeners", f"{public[0].address}:{public[0].port}", "/proc/net/tcp"),),
    )


def _is_loopback(listener: Listener) -> bool:
    return listener.address in LOOPBACK[1:3] or listener.address.startswith(("127.", "::ffff:127."))


@check("RAY019", "Outgoing connections do not use Ray's worker ports", needs=("ray.local_port_range", "python"),
       playbook="ray-worker-ports",
       problem="Ephemeral ports overlap the ports of Ray's workers")  # fmt: skip
def worker_ports(facts: Facts) -> Verdict:
    """Compares the range of ephemeral ports with the ports that `ray start` gives its workers.

    What it does:
        Reads ip_local_port_range and ip_local_reserved_ports; `ray start` uses 10002 – 19999. The kernel's default,
        32768 – 60999, does not overlap.

    Why it matters:
        An outgoing connection can hold a port that Ray then gives to a worker: that worker fails to start with "address
        already in use", now and then, on busy nodes.
    """
    if ray_version(facts) is None:
        return skip("Ray is not installed in the examined environment")
    low, high = need(ray(facts).local_port_range)
    if low > WORKER_PORTS[1] or high < WORKER_PORTS[0]:
        return passed(f"{low} – {high} does not overlap 10002 – 19999")
    if is_reserved(ray(facts).reserved_ports):
        return passed("10002 – 19999 is reserved")
    return info(
        f"ephemeral ports {low} – {high} overlap the ports of Ray's workers, 10002 – 19999",
        evidence=(evidence("ray.local_port_range", f"{low} {high}", "/proc/sys/net/ipv4/ip_local_port_range"),),
    )
