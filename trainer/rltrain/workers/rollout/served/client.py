"""Calls of one server, on an event loop of their own that runs only while somebody waits for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from rltrain.core.errors import RunFailure

T = TypeVar("T")
CALL_S = 60.0
_SHOWN = 300


@dataclass(frozen=True)
class Reply:
    """An answer. `data`: its JSON; None where it is none."""

    status: int
    data: Any
    text: str

    @property
    def words(self) -> str:
        """What it says where something went wrong, in one line."""
        said: Any = self.data
        for key in ("error", "message", "detail"):
            if isinstance(said, dict) and said.get(key):  # pyright: ignore[reportUnknownMemberType]
                said = said[key]  # pyright: ignore[reportUnknownVariableType]
        return " ".join((said if isinstance(said, str) else self.text).split())[:_SHOWN] or "nothing"


class Client:
    """Of the server at URL. Nothing is shared with other threads.

    Args:
        url: without a path.
        key: sent as a bearer token, where there is one.
        read_s: longest wait for the next bytes of a stream.
    """

    def __init__(self, url: str, key: str = "", read_s: float = 1800.0) -> None:
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._read_s = read_s
        self._loop = asyncio.new_event_loop()
        self._session: aiohttp.ClientSession | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for WORK; what else was begun goes on meanwhile."""
        return self._loop.run_until_complete(work)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let WORK go on whenever the loop runs."""
        return self._loop.create_task(work)

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = CALL_S) -> Reply:
        """The answer to one call.

        Raises:
            RunFailure: there is none.
        """
        return self.run(self.ask(method, path, body, timeout_s))

    def must(self, method: str, path: str, body: Any = None, timeout_s: float = CALL_S) -> Any:
        """What a call that has to succeed answers: its JSON.

        Raises:
            RunFailure: there is no answer, or one that says no.
        """
        reply = self.call(method, path, body, timeout_s)
        if reply.status != 200:
            raise self.failed(method, path, f"HTTP {reply.status}: {reply.words}")
        return reply.data

    async def ask(self, method: str, path: str, body: Any = None, timeout_s: float = CALL_S) -> Reply:
        """As `call`."""
        limit = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._opened().request(method, self.url + path, json=body, timeout=limit) as answer:
                text = (await answer.read()).decode("utf-8", "replace")
                return Reply(answer.status, _json(text), text)
        except (OSError, asyncio.TimeoutError, aiohttp.ClientError) as error:
            raise self.failed(method, path, _why(error, timeout_s)) from error

    async def events(self, path: str, body: Any) -> AsyncGenerator[Any]:
        """The JSON of each server-sent event in the answer to a POST.

        Raises:
            RunFailure: the server says no, or falls silent.
        """
        limit = aiohttp.ClientTimeout(total=None, sock_connect=CALL_S, sock_read=self._read_s)
        try:
            async with self._opened().post(self.url + path, json=body, timeout=limit) as answer:
                if answer.status != 200:
                    text = await answer.text()
                    words = Reply(answer.status, _json(text), text).words
                    raise self.failed("POST", path, f"HTTP {answer.status}: {words}")
                left = b""
                async for piece in answer.content.iter_any():
                    *whole, left = (left + piece).split(b"\n\n")
                    for event in whole:
                        if event.startswith(b"data:") and event[5:].strip() != b"[DONE]":
                            yield json.loads(event[5:])
        except (OSError, asyncio.TimeoutError, aiohttp.ClientError) as error:
            raise self.failed("POST", path, _why(error, self._read_s)) from error

    def failed(self, method: str, path: str, why: str) -> RunFailure:
        """The error of a call, in one line."""
        return RunFailure(f"the server at {self.url}: {method} {path}: {why}")

    def close(self) -> None:
        """End what is under way, and the connections."""
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.run(_gathered(tasks))
        if self._session is not None:
            self.run(self._session.close())
        self._loop.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # One for each call: while nobody waits the loop rests, and does not see a server close an idle connection.
            connector = aiohttp.TCPConnector(limit=0, force_close=True, loop=self._loop)
            self._session = aiohttp.ClientSession(headers=self._headers, connector=connector)
        return self._session


async def _gathered(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def _why(error: BaseException, timeout_s: float) -> str:
    if isinstance(error, asyncio.TimeoutError):
        return f"no answer within {timeout_s:g} s"
    return " ".join(str(error).split()) or type(error).__name__


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
