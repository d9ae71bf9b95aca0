"""Asks NCCL's RAS service (NCCL >= 2.24) how a running job is. Standard library only, Python >= 3.8.

The service of every process listens on localhost:28028 or NCCL_RAS_ADDR and speaks lines of text: a greeting, commands,
and an answer that ends with the connection. https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
From 2.31 on it also knows DIAGNOSTICS, which compares the state of all ranks.
"""

import os
import re
import socket
import time
from typing import Any, Dict, List, Optional, Tuple

DEFAULT_ADDRESS = "localhost:28028"
MAX_CHARS = 20000
DIAGNOSTICS_SINCE = (2, 31)
_GREETING = b"CLIENT PROTOCOL 2\n"
_HEADING = re.compile(r"(?:#\d+-\d+ \(\w+\) )?(INCOMPLETE|DEAD|ERROR|MISMATCH)\s*$")
_VERSION = re.compile(r"NCCL version (\d+)\.(\d+)\.(\d+)")
# Collectives outpace the query: counts that differ by one are what a healthy job looks like.
_HARMLESS = "different collective operation counts"


def ask(deadline_s: float = 5.0, address: str = "") -> Dict[str, Any]:
    """The status of the job on this machine: {"version", "text", "problems"} or {"error": one line}."""
    end = time.monotonic() + deadline_s
    where = address or os.environ.get("NCCL_RAS_ADDR") or DEFAULT_ADDRESS
    try:
        text = _command(where, "VERBOSE STATUS", end)
        version = _version(text)
        if version is not None and version[:2] >= DIAGNOSTICS_SINCE:
            text += "\n" + _optional(where, "DIAGNOSTICS", end)
    except (OSError, ValueError) as error:
        return {"error": "RAS at {}: {}".format(where, _why(error, deadline_s))}
    return {"version": ".".join(map(str, version or ())), "text": text[:MAX_CHARS], "problems": problems(text)}


def main(options: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """As an entry for a rank or an agent: `options` may hold deadline_s and address."""
    options = options or {}
    return ask(float(options.get("deadline_s", 5.0)), str(options.get("address", "")))


def problems(text: str) -> List[str]:
    """The lines of a report that name something wrong, each with the first line of what is said about it."""
    found = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if _HEADING.match(line.strip()):
            told = [part.strip() for part in lines[number + 1 : number + 3] if part.strip()]
            if not (told and _HARMLESS in told[0]):
                found.append(": ".join([line.strip(), *told])[:300])
        elif "[INFO]" in line or line.startswith("ERROR:"):
            found.append(line.strip()[:300])
    return found[:20]


def _version(text: str) -> Optional[Tuple[int, int, int]]:
    match = _VERSION.search(text)
    return (int(match.group(1)), int(match.group(2)), int(match.group(3))) if match else None


def _optional(where: str, command: str, end: float) -> str:
    """The answer to a command that may be left out: what came until the deadline counts."""
    try:
        return _command(where, command, end)
    except (OSError, ValueError):
        return ""


def _command(where: str, command: str, end: float) -> str:
    host, _, port = where.rpartition(":")
    with socket.create_connection((host.strip("[]") or "localhost", int(port)), timeout=_left(end)) as link:
        link.settimeout(_left(end))
        link.sendall(_GREETING)
        greeting = _line(link, end)
        if not greeting.upper().startswith("SERVER PROTOCOL"):
            raise ValueError("answered {!r}, which is not NCCL's".format(greeting[:40]))
        # The service waits for silent processes so long, then says who they are.
        link.sendall("TIMEOUT {:.0f}\n".format(max(1.0, _left(end) - 1.5)).encode())
        answer = _line(link, end)
        if answer.strip().upper() != "OK":
            raise ValueError("answered {!r} to a time limit".format(answer[:40]))
        link.sendall(command.encode() + b"\n")
        return _rest(link, end)


def _line(link: socket.socket, end: float) -> str:
    data = b""
    while not data.endswith(b"\n") and len(data) < 1024:
        link.settimeout(_left(end))
        byte = link.recv(1)
        if not byte:
            raise ValueError("closed the connection")
        data += byte
    return data.decode("utf-8", "replace").strip()


def _rest(link: socket.socket, end: float) -> str:
    data = b""
    while len(data) < 4 * MAX_CHARS:
        link.settimeout(_left(end))
        part = link.recv(65536)
        if not part:
            break
        data += part
    return data.decode("utf-8", "replace")


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise socket.timeout("timed out")
    return left


def _why(error: Exception, deadline_s: float) -> str:
    if isinstance(error, socket.timeout):
        return "no whole answer within {:g} s".format(deadline_s)
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "closed the connection"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens (NCCL before 2.24, NCCL_RAS_ENABLE=0, or no job)"
    return " ".join(str(error).split()) or type(error).__name__
