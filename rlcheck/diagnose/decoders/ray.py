"""Addresses, versions, sizes and states in what Ray says, in words."""

from __future__ import annotations

from collections.abc import Mapping

from rlcheck.diagnose.decode import Decoder

_PORTS = {
    "8265": "8265 is the port of the dashboard, not of the GCS (6379).",
    "10001": "10001 is the port of Ray Client (ray://), not of the GCS (6379).",
}


def versions_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """Which of the two versions differ: of the cluster and of the process that joins it; what to install if Ray's."""
    pairs = (("Ray", "cluster_ray", "own_ray"), ("Python", "cluster_python", "own_python"))
    differ = [
        f"{name} {groups[theirs]} in the cluster, {groups[own]} here"
        for name, theirs, own in pairs
        if theirs in groups and own in groups and groups[theirs] != groups[own]
    ]
    if not differ:
        return {}
    only_ray = len(differ) == 1 and differ[0].startswith("Ray ")
    return {"versions_apart": "; ".join(differ)} | (
        {"package": "ray", "version": groups["cluster_ray"]} if only_ray else {}
    )


def gcs_address_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """What is odd about a head's address: no host, this machine itself, docker's bridge, another service's port."""
    host, _, port = groups["gcs_address"].rstrip("/").rpartition(":")
    host = host.removeprefix("http://").strip("[]")
    if not host and port.isdigit():
        return {"gcs_reading": "The host is empty: the variable that should hold the head's IP is not set."}
    if port in _PORTS:
        return {"gcs_reading": _PORTS[port]}
    if host == "0.0.0.0":
        return {"gcs_reading": "0.0.0.0 is no address to connect to: give the head's own IP (--node-ip-address, too)."}
    if host in ("localhost", "::1") or host.startswith("127."):
        return {"gcs_reading": "That is this machine itself: from other nodes and from containers it leads nowhere."}
    if host.startswith("172.17."):
        return {"gcs_reading": "That is the default bridge of docker, which other machines do not reach."}
    return {}


def size_in_words(group: str, name: str) -> Decoder:
    """A decoder for a number of bytes: MiB or GiB under `name`."""

    def decode(groups: Mapping[str, str]) -> dict[str, str]:
        size = int(groups[group]) / 2**20 if groups[group].isdigit() else -1.0
        if size < 0:
            return {}
        return {name: f"{size / 1024:.1f} GiB" if size >= 1024 else f"{size:.0f} MiB"}

    return decode


def start_state_in_words(groups: Mapping[str, str]) -> dict[str, str]:
    """Whether workers that did not register hang or have died."""
    dead = groups["start_state"].startswith("dead")
    return {"start_reading": "they crashed while starting" if dead else "they still run, but are slow or hang"}


DECODERS: dict[str, Decoder] = {
    "cluster_ray": versions_in_words,
    "gcs_address": gcs_address_in_words,
    "object_bytes": size_in_words("object_bytes", "object_size"),
    "shm_bytes": size_in_words("shm_bytes", "shm_size"),
    "disk_bytes": size_in_words("disk_bytes", "disk_free"),
    "start_state": start_state_in_words,
}
