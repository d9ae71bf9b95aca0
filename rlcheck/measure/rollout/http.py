"""HTTP calls to a server that may hang, redirect, speak TLS or be something else: an answer or a reason, in time."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from rlcheck.errors import UserError

_LIMIT_BYTES = 16 << 20
_CONNECT_S = 5.0
_NAME_S = 10.0

Why = Literal["name", "address", "silent", "tls", "plain", "foreign"]


class UrlError(UserError):
    """A URL that cannot be used. The message is one line for the user."""


class CallFailed(Exception):
    """No HTTP answer came. `why` says at which layer it ended."""

    def __init__(self, why: Why, line: str) -> None:
        super().__init__(line)
        self.why: Why = why


@dataclass(frozen=True)
class Answer:
    """What came back. `seconds` from the request to the last byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    def data(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def words(self) -> str:
        """What the server says of an error, in one line."""
        said: Any = self.data()
        for _ in range(3):
            if isinstance(said, dict):
                keys = cast("dict[str, Any]", said)
                said = keys.get("message") or keys.get("error") or keys.get("detail")
        text = str(said) if said else self.body[:400].decode("utf-8", "replace")
        return " ".join(text.split())[:300]


@dataclass
class Caller:
    """One server. `key` goes with every call; `prefix` is before every path."""

    scheme: str
    host: str
    port: int
    prefix: str = ""
    key: str = ""
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Where it is, without the key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = 10.0) -> Answer:
        """Ask, and read the whole answer.

        Raises:
            CallFailed: there is none.
        """
        begun = time.monotonic()
        pieces = list(self.stream(method, path, body, timeout_s))
        status, headers, _ = pieces[0]
        return Answer(status, headers, b"".join(chunk for _, _, chunk in pieces), time.monotonic() - begun)

    def stream(
        self, method: str, path: str, body: Any = None, timeout_s: float = 10.0
    ) -> Iterator[tuple[int, Mapping[str, str], bytes]]:
        """Status, headers and the body as it comes; one empty piece at least.

        Raises:
            CallFailed: there is no answer, or it did not end in time.
        """
        deadline = time.monotonic() + timeout_s
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "*/*", "User-Agent": "rlcheck", "Connection": "close"}
        headers |= {} if data is None else {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        connection = self._connection(min(_CONNECT_S, timeout_s))
        what = f"{method} {path}"
        try:
            connection.connect()
            _wait_until(connection, deadline)
            connection.request(method, self.prefix + path, body=data, headers=headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            yield response.status, found, b""
            size = 0
            while size < _LIMIT_BYTES:
                _wait_until(connection, deadline)
                chunk = response.read1(1 << 16)
                if not chunk:
                    return
                size += len(chunk)
                yield response.status, found, chunk
            raise CallFailed("foreign", f"{what}: an answer of more than {_LIMIT_BYTES >> 20} MiB")
        except (OSError, http.client.HTTPException) as error:
            raise _failed(error, self, what, timeout_s) from None
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.scheme == "https":
            context = self.tls or ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)


def _wait_until(connection: http.client.HTTPConnection, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    # Gone once the answer has begun and the server closes after it: the response has its own hold of the socket.
    if connection.sock is not None:
        connection.sock.settimeout(left)


def _failed(error: OSError | http.client.HTTPException, caller: Caller, what: str, timeout_s: float) -> CallFailed:
    if isinstance(error, ssl.SSLCertVerificationError):
        return CallFailed("tls", f"its certificate is not trusted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return CallFailed("plain", f"no TLS is spoken at {caller.url} ({error.reason or error})")
    if isinstance(error, TimeoutError):
        return CallFailed("silent", f"{what} was not answered within {timeout_s:g} s")
    if isinstance(error, socket.gaierror):
        return CallFailed("name", f"the name {caller.host} cannot be resolved: {error.strerror}")
    if isinstance(error, ConnectionResetError):  # so does a server that waits for TLS
        tls = "; does it speak TLS (https://)?" if caller.scheme == "http" else ""
        return CallFailed("address", f"{caller.host}:{caller.port} closed the connection, {what} unanswered{tls}")
    if isinstance(error, http.client.IncompleteRead):
        return CallFailed("foreign", f"the answer to {what} broke off, or its pieces are no HTTP")
    if isinstance(error, http.client.HTTPException):
        return CallFailed("foreign", f"{what} was answered by something that is no HTTP ({type(error).__name__})")
    return CallFailed("address", f"{caller.host}:{caller.port}: {error.strerror or type(error).__name__}")


def caller_of(url: str, key: str) -> tuple[Caller, tuple[str, ...]]:
    """The server that URL names, and what was read into it.

    Raises:
        UrlError: no http(s) URL, or one that holds a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UrlError(f"{url}: {error}; write it like http://HOST:PORT") from None
    if parts.username is not None or parts.password is not None:
        where = f"{parts.scheme}://{parts.hostname}"
        raise UrlError(
            f"{where}: a password in a URL is seen by everybody on this machine; set RLCHECK_API_KEY instead"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UrlError(f"{url}: no server is named; write it like http://HOST:PORT")
    prefix, notes = parts.path.rstrip("/"), list[str]()
    for known in ("/v1/chat/completions", "/v1/completions", "/v1", "/generate"):
        if prefix.endswith(known):
            prefix = prefix[: -len(known)]
            notes.append(f"{known} at the end of the URL was left out: every end point is looked for")
            break
    usual = 443 if parts.scheme == "https" else 80
    return Caller(parts.scheme, parts.hostname, port or usual, prefix, key), tuple(notes)


def addresses(host: str, port: int) -> tuple[str, ...]:
    """What the name resolves to.

    Raises:
        CallFailed: nothing, or no answer in time.
    """
    found: list[str] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            found.extend(str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            failed.append(error)

    # A resolver without its name server waits for half a minute, and cannot be asked not to.
    thread = Thread(target=ask, daemon=True, name="resolver")
    thread.start()
    thread.join(_NAME_S)
    if failed:
        raise CallFailed("name", f"the name {host} cannot be resolved: {failed[0].strerror or failed[0]}")
    if not found:
        raise CallFailed("name", f"the name {host} was not resolved within {_NAME_S:g} s")
    return tuple(dict.fromkeys(found))
