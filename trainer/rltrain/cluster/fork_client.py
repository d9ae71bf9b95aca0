"""What Ray starts in place of a worker: it has one forked (`rltrain.cluster.fork_server`), and waits for its end.

Run as a file, with nothing but the standard library: `python -I -S fork_client.py SOCKET SCRIPT [ARGUMENT …]`.
Without an answer of the server, it becomes the worker itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys

STANDARD = (0, 1, 2)
LONGEST = 150_000
"""Bytes of a request: what a socket takes at once."""
OF_SETUP = ("--language=", "--serialized-runtime-env-context=")
"""How options begin that are for Ray's script in front of a worker; none of our workers has such a context."""
TIMEOUT_S = 120.0
"""How long the server may take to import."""


def main(address: str, arguments: list[str]) -> None:
    """Have a worker forked that runs ARGUMENTS, a script and its arguments."""
    arguments = [word for word in arguments if not word.startswith(OF_SETUP)]
    if not _forked(address, arguments):
        os.execv(sys.executable, [sys.executable, *arguments])


def _forked(address: str, arguments: list[str]) -> bool:
    """Whether a worker was forked; it has ended by then."""
    call = {
        "arguments": arguments,
        "environ": dict(os.environ),
        "cwd": os.getcwd(),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
    }
    message = json.dumps(call).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.settimeout(TIMEOUT_S)
        try:
            server.connect(address)
            socket.send_fds(server, [message], STANDARD)
            if not server.recv(LONGEST):
                return False
        except OSError:
            return False
        server.settimeout(None)
        with contextlib.suppress(OSError):
            server.recv(LONGEST)  # the end of the worker, which closes its end
    return True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
