"""Servers made of `http.server`: vLLM's and SGLang's protocols, and whatever else may answer at a port."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any]
Handle = Callable[[str, str, dict[str, Any], dict[str, str]], Any]


@dataclass
class Fake:
    """Answers `(method, path)` with what is in `routes`: (status, JSON or bytes), or a function of the body.

    `calls` are those that came. A stream is a list: its items are sent as events, `pause_s` apart.
    """

    routes: dict[tuple[str, str], Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    seen: list[dict[str, str]] = field(default_factory=list)
    key: str = ""
    pause_s: float = 0.0

    def reply(self, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        self.calls.append((method, path))
        self.seen.append(headers)
        if self.key and path.startswith("/v1") and headers.get("authorization") != f"Bearer {self.key}":
            return 401, {"error": "Unauthorized"}
        found = self.routes.get((method, path))
        if found is None:
            return (405 if path in {p for _, p in self.routes} else 404), {"detail": "Not Found"}
        return found(body) if callable(found) else found


@contextmanager
def serving(fake: Fake, wrap: Callable[[Any], Any] = lambda socket: socket) -> Iterator[str]:
    """The URL at which `fake` answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            return

        def answer(self) -> None:
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size) or b"{}")
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, data = fake.reply(self.command, self.path, body, headers)
            self.send_response(status)
            for name, value in fake.headers.items():
                self.send_header(name, value)
            if isinstance(data, list):
                self.send_header("Connection", "close")
                self.end_headers()
                for event in data:
                    self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                    self.wfile.flush()
                    time.sleep(fake.pause_s)
                self.wfile.write(b"data: [DONE]\n\n")
                self.close_connection = True
                return
            payload = data if isinstance(data, bytes) else json.dumps(data).encode()
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = do_PROPFIND = answer

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            return  # a client that hangs up is what some tests are about

    server = Server(("127.0.0.1", 0), Handler)
    server.socket = wrap(server.socket)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def completion(text: str, count: int, reason: str, log_probs: list[Any] | None = None) -> dict[str, Any]:
    """An answer of /v1/completions."""
    values = [-1.0] * count if log_probs is None else log_probs
    choice = {"text": text, "finish_reason": reason, "logprobs": {"token_logprobs": values}}
    return {"choices": [choice], "usage": {"completion_tokens": count}}


def vllm(max_model_len: int = 64, **changes: Any) -> Fake:
    """A vLLM server in its development mode."""

    def complete(body: dict[str, Any]) -> Reply:
        prompt, asked = body["prompt"], body["max_tokens"]
        if isinstance(prompt, list) and len(prompt) + asked > max_model_len:
            return 400, {"error": {"message": f"This model's maximum context length is {max_model_len} tokens."}}
        if body.get("stream"):
            return 200, [{"choices": [{"text": "w "}]} for _ in range(asked)]
        if body.get("stop"):
            return 200, completion("one two ", 2, "stop")
        return 200, completion("one two three", asked, "length")

    def tokenize(body: dict[str, Any]) -> Reply:
        return 200, {"count": 3, "token_strs": ["<|user|>", body["messages"][0]["content"], "<|assistant|>"]}

    card = {"id": "tiny", "owned_by": "vllm", "max_model_len": max_model_len}
    routes: dict[tuple[str, str], Any] = {
        ("GET", "/health"): (200, b""),
        ("GET", "/version"): (200, {"version": "0.32.0"}),
        ("GET", "/v1/models"): (200, {"object": "list", "data": [card]}),
        ("GET", "/is_sleeping"): (200, {"is_sleeping": False}),
        ("POST", "/v1/completions"): complete,
        ("POST", "/tokenize"): tokenize,
    }
    for path in ("/update_weights", "/sleep", "/wake_up", "/pause", "/reset_prefix_cache"):
        routes["POST", path] = (500, {"error": "this must not be called"})
    return Fake(routes, **changes)


def sglang() -> Fake:
    """An SGLang server, without its list of end points."""

    def generate(body: dict[str, Any]) -> Reply:
        asked = body["sampling_params"]["max_new_tokens"]
        if len(body.get("input_ids", ())) + asked > 64:
            return 400, {"error": {"message": "Input length exceeds the maximum allowed length"}}
        if body["stream"]:
            return 200, [{"text": "w " * (n + 1), "meta_info": {}} for n in range(asked)]
        stopped = bool(body["sampling_params"].get("stop"))
        count = 2 if stopped else asked
        meta = {
            "completion_tokens": count,
            "finish_reason": {"type": "stop" if stopped else "length"},
            "output_token_logprobs": [[-0.5, 7, None]] * count,
        }
        return 200, {"text": "one two" if stopped else "one two three", "meta_info": meta}

    card = {"id": "tiny", "owned_by": "sglang", "max_model_len": 64}
    routes: dict[tuple[str, str], Any] = {
        ("GET", "/health"): (200, b""),
        ("GET", "/get_server_info"): (200, {"version": "0.5.4", "api_key": "secret"}),
        ("GET", "/v1/models"): (200, {"data": [card]}),
        ("POST", "/generate"): generate,
        ("POST", "/v1/chat/completions"): (200, {"choices": [{"message": {"content": "5"}}]}),
    }
    for path in ("/update_weights_from_tensor", "/pause_generation"):
        routes["POST", path] = (500, {"error": "this must not be called"})
    for path in ("/release_memory_occupation", "/resume_memory_occupation", "/flush_cache"):
        routes["GET", path] = routes["POST", path] = (500, {"error": "this must not be called"})
    return Fake(routes)
