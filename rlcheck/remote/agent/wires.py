"""Connections: listeners that others may try to reach, and trying to reach others."""

import errno
import os
import resource
import secrets
import select
import selectors
import socket
import struct
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

GREETING = b"rlcheck "
LARGE = bytes(9500)
"""Sent after the greeting: more than one packet, also where packets have 9000 bytes."""
LARGE_WAIT_S = 0.8
"""Without any byte of `LARGE` for so long after the greeting, large packets are lost on the way."""
LISTENER_LIFETIME_S = 120.0
"""A listener closes by itself after this time, should the doctor be cut off before it says so."""
MAX_IN_FLIGHT = 400
TCP_INFO_RTT_OFFSET = 68
"""Of `tcpi_rtt`, in microseconds, in Linux's struct tcp_info: 8 bytes of flags, then 15 numbers of 4 bytes."""
UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.EADDRNOTAVAIL)
FILTERED = (errno.ETIMEDOUT,)
BLOCKED = (errno.EACCES, errno.EPERM)


def clock(request: Dict[str, Any]) -> Dict[str, Any]:
    """This machine's clock, in seconds since the epoch."""
    return {"time": time.time()}


class Wires:
    """The listeners of this agent. Each greets whoever connects with one line, sends `LARGE` and hangs up."""

    def __init__(self) -> None:
        self.greeting = GREETING + secrets.token_hex(8).encode() + b"\n"
        self.lock = threading.Lock()
        self.servers: List[Tuple[threading.Thread, int]] = []

    def listen(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Listen on `address` alone; each of `ports` is a number (0: any), or a range [first, last] to choose from."""
        opened: List[Dict[str, Any]] = []
        sockets = []
        for asked in request["ports"]:
            try:
                sockets.append(_bound(str(request["address"]), asked))
                opened.append({"asked": asked, "port": sockets[-1].getsockname()[1]})
            except OSError as error:
                opened.append({"asked": asked, "error": error.strerror or str(error)})
        if sockets:
            reader, writer = os.pipe()
            thread = threading.Thread(target=self._serve, args=(sockets, reader), daemon=True)
            thread.start()
            with self.lock:
                self.servers.append((thread, writer))
        return {"ports": opened, "greeting": self.greeting.decode().strip()}

    def unlisten(self, request: Dict[str, Any]) -> Dict[str, Any]:
        """Close all listeners."""
        self.close()
        return {}

    def close(self) -> None:
        """Close all listeners; when this returns, nothing connects to them any more."""
        with self.lock:
            servers, self.servers = self.servers, []
        for _, writer in servers:
            os.close(writer)
        for thread, _ in servers:
            thread.join(1.0)

    def _serve(self, sockets: List[socket.socket], stop: int) -> None:
        """Greet until the writing end of `stop` is closed, or the lifetime of a listener is over."""
        deadline = time.monotonic() + LISTENER_LIFETIME_S
        while True:
            ready = select.select([stop, *sockets], [], [], max(0.0, deadline - time.monotonic()))[0]
            if stop in ready or not ready:
                break
            for listener in ready:
                self._greet(listener)
        for listener in sockets:
            listener.close()
        os.close(stop)

    def _greet(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            try:
                connection.setblocking(False)
                connection.send(self.greeting)
                connection.send(LARGE)
            except OSError:
                return


def _bound(address: str, asked: Any) -> socket.socket:
    """A listening socket on `address`, and on a port that `asked` allows."""
    first, last = (asked, asked) if isinstance(asked, int) else asked
    if not address or address in ("0.0.0.0", "::"):
        raise OSError(errno.EADDRNOTAVAIL, "this would listen on every address")
    num = last - first + 1
    start = secrets.randbelow(num)
    for step in range(min(num, 50)):
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, first + (start + step) % num))
            listener.listen(128)
            listener.setblocking(False)
            return listener
        except OSError as error:
            listener.close()
            failure = error
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
    raise failure


class Attempt:
    """One connection being tried."""

    def __init__(self, target: Dict[str, Any]) -> None:
        self.target = target
        self.started = time.monotonic()
        self.rtt_s = -1.0
        self.heard = b""
        self.greeted_at = 0.0
        family = socket.AF_INET6 if ":" in target["address"] else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.outcome = self._outcome(self.socket.connect_ex((target["address"], int(target["port"]))))

    def _outcome(self, code: int) -> Optional[Tuple[str, str]]:
        if code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
            return None
        if code:
            return outcome_of(code)
        self.rtt_s = _kernel_rtt_s(self.socket, time.monotonic() - self.started)
        # What the other machine's listener greets with tells it from a stranger with the same address or port.
        return None if self.target.get("greeting") else ("open", "")

    def connected(self) -> None:
        """The kernel has something to say of the connection."""
        self.outcome = self._outcome(self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def greeted(self) -> None:
        """Something arrived, or the other side hung up."""
        expected = self.target["greeting"].encode()
        try:
            chunk = self.socket.recv(256)
        except OSError:
            chunk = b""
        self.heard += chunk
        if self.heard.startswith(expected):
            self.greeted_at = self.greeted_at or time.monotonic()
            if len(self.heard) > len(expected) + 1 or not chunk:
                self.outcome = ("open", "")
        elif not chunk or not expected.startswith(self.heard):
            self.outcome = ("error", "something else than the other machine's listener answered")

    def contact(self) -> Dict[str, Any]:
        """The result, as a Contact of rlcheck/facts/reach.py."""
        loses_large = False
        if self.outcome is None and self.greeted_at:
            self.outcome = ("open", "")
            loses_large = time.monotonic() - self.greeted_at > LARGE_WAIT_S
        if self.outcome is None and self.rtt_s >= 0:
            # Connected; a greeting that has not come yet is no proof of a stranger on a busy machine.
            self.outcome = ("open", "the listener's greeting did not come in time")
        outcome, detail = self.outcome or ("filtered", "no answer")
        return {
            "address": self.target["address"],
            "port": self.target["port"],
            "what": self.target.get("what", ""),
            "outcome": outcome,
            "detail": detail,
            "rtt_s": self.rtt_s if outcome == "open" else -1.0,
            "loses_large": loses_large,
        }


def connect(request: Dict[str, Any]) -> Dict[str, Any]:
    """Try all targets side by side until one deadline; a Contact for each, in their order."""
    deadline = time.monotonic() + float(request["timeout_s"])
    waiting = list(enumerate(request["targets"]))[::-1]
    contacts: Dict[int, Dict[str, Any]] = {}
    most = min(MAX_IN_FLIGHT, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))
    with selectors.DefaultSelector() as selector:
        while (waiting or selector.get_map()) and time.monotonic() < deadline:
            while waiting and len(selector.get_map()) < most:
                _begin(*waiting.pop(), selector, contacts)
            for key, _ in selector.select(max(0.0, min(0.2, deadline - time.monotonic()))):
                _go_on(key, selector, contacts)
        for key in list(selector.get_map().values()):
            _finish(key.data[0], key.data[1], contacts)
    for index, target in waiting:
        contacts[index] = _failed(target, "not tried: the time was up")
    return {"contacts": [contacts[index] for index in range(len(request["targets"]))]}


def _begin(index: int, target: Dict[str, Any], selector: Any, contacts: Dict[int, Dict[str, Any]]) -> None:
    try:
        attempt = Attempt(target)
    except (OSError, ValueError, OverflowError) as error:
        contacts[index] = _failed(target, str(error))
        return
    if attempt.outcome is None:
        selector.register(attempt.socket, selectors.EVENT_WRITE, (index, attempt))
    else:
        _finish(index, attempt, contacts)


def _go_on(key: Any, selector: Any, contacts: Dict[int, Dict[str, Any]]) -> None:
    index, attempt = key.data
    if attempt.rtt_s < 0:
        attempt.connected()
    else:
        attempt.greeted()
    if attempt.outcome is None:
        selector.modify(attempt.socket, selectors.EVENT_READ, key.data)
        return
    selector.unregister(attempt.socket)
    _finish(index, attempt, contacts)


def _finish(index: int, attempt: Attempt, contacts: Dict[int, Dict[str, Any]]) -> None:
    contacts[index] = attempt.contact()
    attempt.socket.close()


def _failed(target: Dict[str, Any], why: str) -> Dict[str, Any]:
    known = {"address": target.get("address", ""), "port": target.get("port", 0), "what": target.get("what", "")}
    return dict(known, outcome="error", detail=why, rtt_s=-1.0)


def outcome_of(code: int) -> Tuple[str, str]:
    """The outcome and the system's words for an errno of connect()."""
    words = os.strerror(code)
    if code == errno.ECONNREFUSED:
        return "refused", words
    if code in FILTERED:
        return "filtered", words
    return ("unreachable" if code in UNREACHABLE + BLOCKED else "error"), words


def _kernel_rtt_s(connection: socket.socket, measured_s: float) -> float:
    """The round trip that the kernel measured; ours includes how long this process had to wait for a core."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        microseconds = struct.unpack_from("=I", info, TCP_INFO_RTT_OFFSET)[0]
    except (OSError, AttributeError, struct.error):
        return measured_s
    return microseconds / 1e6 if 0 < microseconds / 1e6 <= measured_s else measured_s
