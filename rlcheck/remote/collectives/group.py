"""Forming a group: a store on an address of this machine alone, then torch's process group."""

from __future__ import annotations

import inspect
import socket
from datetime import timedelta
from typing import Any


def open_store(dist: Any, host: str, timeout: timedelta) -> Any:
    """A TCPStore that listens on `host` alone, on a free port.

    Where `host` is not an address of this machine's own (behind NAT), it listens on all of them.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind((host, 0))
    except OSError:
        listener.close()
        return dist.TCPStore(host, 0, None, True, timeout, wait_for_workers=False)
    listener.listen(1024)
    return dist.TCPStore(
        host,
        listener.getsockname()[1],
        None,
        True,
        timeout,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def reach_store(dist: Any, host: str, port: int, timeout: timedelta) -> Any:
    """The store of the group's leader."""
    return dist.TCPStore(host, port, None, False, timeout, wait_for_workers=False)


def join(dist: Any, message: dict[str, Any], store: Any, timeout: timedelta, device: Any) -> None:
    """`init_process_group` with what `message` says; on a GPU the communicator is made at once, where torch can."""
    options: dict[str, Any] = {}
    if device is not None and "device_id" in inspect.signature(dist.init_process_group).parameters:
        options["device_id"] = device
    dist.init_process_group(
        message["backend"],
        store=dist.PrefixStore(message["group"], store),
        rank=int(message["index"]),
        world_size=int(message["size"]),
        timeout=timeout,
        **options,
    )
