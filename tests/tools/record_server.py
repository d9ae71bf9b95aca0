"""Between a client and a real server: passes calls on and keeps them with their answers, or answers from the record.

    python -m tests.tools.record_server OUT.json     on a GPU with SGLang: records `scenario.walk`

SGLANG_PYTHON and SGLANG_PYTHONPATH name SGLang's own environment, where it is not this one.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

_SECRET = re.compile(r"/tmp/[\w./-]+")
ABORT_S = 0.5
"""A player holds back what was aborted, so that there is time to do it."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Exchange:
    """One call and its answer. `body` and `answer` are text."""

    method: str
    path: str
    body: str
    status: int
    kind: str
    answer: str


@dataclass
class Middle:
    """A server on a port of its own, in a thread: a recorder if it has an UPSTREAM, else a player of EXCHANGES."""

    upstream: str = ""
    exchanges: list[Exchange] = field(default_factory=list)
    url: str = ""
    port: int = 0
    unexpected: list[str] = field(default_factory=list)
    heard: list[tuple[str, str, str]] = field(default_factory=list)
    """Of a player: method, path and body of each call."""

    def __enter__(self) -> Middle:
        self._loop, ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._open())
        ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())

    async def _open(self) -> None:
        application = web.Application(client_max_size=1 << 30)
        handler: Handler = self._record if self.upstream else self._play
        application.router.add_route("*", "/{path:.*}", handler)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _record(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        limit = aiohttp.ClientTimeout(total=600)
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.request(request.method, self.upstream + request.path_qs, data=body, headers={
                "Content-Type": request.content_type}) as answer,
        ):  # fmt: skip
            text = (await answer.read()).decode()
            self.exchanges.append(
                Exchange(request.method, request.path_qs, body.decode(), answer.status, answer.content_type, text)
            )
        return web.Response(status=answer.status, text=text, content_type=answer.content_type)

    async def _play(self, request: web.Request) -> web.StreamResponse:
        body = (await request.read()).decode()
        self.heard.append((request.method, request.path_qs, body))
        for place, one in enumerate(self.exchanges):
            if (one.method, one.path) == (request.method, request.path_qs):
                del self.exchanges[place]
                if '"type":"abort"' in one.answer:
                    await asyncio.sleep(ABORT_S)
                return web.Response(status=one.status, text=_renamed(one, body), content_type=one.kind)
        self.unexpected.append(f"{request.method} {request.path_qs}")
        return web.Response(status=404, text="not recorded")


def _renamed(one: Exchange, body: str) -> str:
    """The answer with the IDs of requests that are asked now in the place of those that were."""
    if one.path != "/generate":
        return one.answer
    text = one.answer
    for before, now in zip(json.loads(one.body)["rid"], json.loads(body)["rid"], strict=True):
        text = text.replace(f'"{before}"', f'"{now}"')
    return text


def save(file: Path, found: dict[str, Any], exchanges: list[Exchange]) -> None:
    """Write what was found and recorded; no path of this machine, and of the server's long description what is read."""
    kept: list[dict[str, Any]] = []
    for one in exchanges:
        answer = one.answer
        if one.path == "/server_info":
            said = json.loads(answer)
            names = ("version", "tp_size", "served_model_name", "context_length", "enable_memory_saver")
            answer = json.dumps({name: said.get(name) for name in names})
        body = "" if one.path == "/update_weights_from_tensor" else one.body
        kept.append(
            {**vars(one), "answer": _SECRET.sub("/models/tiny", answer), "body": _SECRET.sub("/models/tiny", body)}
        )
    file.write_text(json.dumps({"found": found, "exchanges": kept}, indent=0) + "\n")


def main(file: Path) -> None:
    """Record SGLang."""
    import torch
    from transformers import AutoModelForCausalLM

    from rltrain.workers.rollout.served.remote import RemoteEngine
    from rltrain.workers.rollout.sglang import arguments
    from rltrain.workers.rollout.sglang.server import Server
    from rltrain.workers.sync import Publisher, checksum
    from tests.trainer.workers.rollout.scenario import config_of, walk
    from tests.trainer.workers.rollout.tiny import make_model, named_weights

    directory = Path(tempfile.mkdtemp())
    make_model("qwen2", directory)
    config = config_of(directory, "http://127.0.0.1:1")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).to("cuda")
    environ = {"PYTHONPATH": os.environ["SGLANG_PYTHONPATH"]} if "SGLANG_PYTHONPATH" in os.environ else {}
    server = Server(os.environ.get("SGLANG_PYTHON", ""), environ)
    words = arguments.base(config, str(directory), saved_weights=False, sleeps=True)
    words |= {"skip_tokenizer_init": False, "mem_fraction_static": 0.2}
    print(f"SGLang {server.version()}", flush=True)
    try:
        server.start(arguments.command_line(words), 400.0, file.with_suffix(".log"))
        manifest = [(name, tuple(one.shape), one.dtype) for name, one in named_weights(model)]
        odd = [(f"{name}s", shape, dtype) for name, shape, dtype in manifest[:1]]
        with Middle(server.url) as middle:
            engine = RemoteEngine(config_of(directory, middle.url), str(directory))
            publisher = Publisher(config, 0, "cuda:0", "127.0.0.1", "", manifest, lambda: named_weights(model))
            wrong = Publisher(config, 0, "cuda:0", "127.0.0.1", "", odd, lambda: _named(odd, model))
            buckets, others = publisher.publish_bucket(0), wrong.publish_bucket(0)
            assert buckets is not None
            assert others is not None
            found = walk(engine, [buckets], others)
            engine.stop()
        wanted = {name: checksum(one) for name, one in named_weights(model)}
        print("checksums agree:", wanted == found["checksums"], "odd:", found.get("odd"))
        save(file, found, middle.exchanges)
    finally:
        print(server.last_words())
        server.stop()


def _named(odd: list[Any], model: Any) -> Any:
    return iter([(odd[0][0], next(iter(model.parameters())).detach())])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
