"""What a name means to this machine's resolver, with a deadline: the resolver itself has none to speak of."""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
import time

from rlcheck.facts.reach import Resolution

_MAX_ADDRESSES = 16


def resolve(name: str, timeout_s: float) -> Resolution:
    """The addresses of `name`, in the order in which programs try them.

    A resolver that does not answer in `timeout_s` is left behind in a thread of its own that ends with the process.
    """
    if is_literal(name):
        return Resolution(name=name, is_literal=True, addresses=(name,))
    started = time.perf_counter()
    answers: queue.SimpleQueue[tuple[tuple[str, ...], str]] = queue.SimpleQueue()
    threading.Thread(target=_look_up, args=(name, answers), daemon=True, name="resolver").start()
    try:
        addresses, error = answers.get(timeout=max(timeout_s, 0.01))
    except queue.Empty:
        addresses, error = (), f"the resolver did not answer within {timeout_s:.0f} s"
    return Resolution(name=name, addresses=addresses, seconds=time.perf_counter() - started, error=error)


def is_literal(name: str) -> bool:
    """Whether `name` is an address already; `fe80::1%eth0` counts."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _look_up(name: str, answers: queue.SimpleQueue[tuple[tuple[str, ...], str]]) -> None:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        answers.put(((), error.strerror or str(error)))
    except (UnicodeError, ValueError):  # a label of more than 63 characters, a NUL
        answers.put(((), "is no name that a resolver takes"))
    else:
        addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
        answers.put((addresses[:_MAX_ADDRESSES], "" if addresses else "has no address"))
