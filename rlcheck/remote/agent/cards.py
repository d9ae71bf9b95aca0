"""Network interfaces with an address, and RDMA ports."""

import json
import os
import re
import socket
import struct
import subprocess
from typing import Any, Dict, List, Tuple

SIOCGIFADDR = 0x8915
TIMEOUT_S = 1.0


def addresses() -> List[Dict[str, Any]]:
    """A card for each address that others could use; loopback and link-local ones are left out."""
    found = []
    for name, address in _from_ip() or _from_kernel():
        if address.startswith(("127.", "fe80:")) or address == "::1":
            continue
        where = "/sys/class/net/%s/" % name
        speed, mtu = _number(where + "speed"), _number(where + "mtu")
        found.append({"name": name, "address": address, "speed_mbps": max(0, speed), "mtu": max(0, mtu)})
    return found


def _from_ip() -> List[Tuple[str, str]]:
    try:
        done = subprocess.run(["ip", "-j", "addr"], capture_output=True, timeout=TIMEOUT_S, check=False)
        links = json.loads(done.stdout or b"[]")
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return []
    return [
        (str(link["ifname"]), str(entry["local"]))
        for link in links
        for entry in link.get("addr_info", [])
        if "local" in entry
    ]


def _from_kernel() -> List[Tuple[str, str]]:
    """The first IPv4 address of each interface, asked of the kernel: containers often lack `ip`."""
    import fcntl

    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found


def rdma() -> List[Dict[str, Any]]:
    """Ports of RDMA devices: `state` reads `4: ACTIVE`, `rate` `400 Gb/sec (4X NDR)`."""
    root = "/sys/class/infiniband"
    found = []
    for device in _names(root):
        for port in _names("%s/%s/ports" % (root, device)):
            where = "%s/%s/ports/%s/" % (root, device, port)
            rate = re.match(r"[\d.]+", _read(where + "rate"))
            found.append(
                {
                    "name": "%s:%s" % (device, port),
                    "state": _read(where + "state").rpartition(":")[2].strip(),
                    "link_layer": _read(where + "link_layer"),
                    "rate_gbps": float(rate.group()) if rate else 0.0,
                }
            )
    return found


def _names(path: str) -> List[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096).strip()
    except OSError:  # a link that is down has no speed to tell
        return ""


def _number(path: str) -> int:
    text = _read(path)
    return int(text) if text.lstrip("-").isdigit() else 0
