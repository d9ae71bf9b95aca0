"""Servers that are what they should be, and all that may answer in their place."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.rollout import Failure, RolloutFacts
from rlcheck.measure.rollout.http import UrlError
from rlcheck.measure.rollout.server import examine_server
from tests.conftest import rlcheck
from tests.measure.rollout.fake import Fake, completion, serving, sglang, vllm


def examine(url: str, environ: Mapping[str, str] | None = None, generate_s: float = 5.0) -> RolloutFacts:
    return examine_server(url, environ or {}, lambda _: None, generate_s)


def examined(
    fake: Fake, environ: Mapping[str, str] | None = None, path: str = "", limit_s: float = 5.0
) -> RolloutFacts:
    with serving(fake) as url:
        return examine(url + path, environ, limit_s)


def failure(facts: RolloutFacts) -> Failure:
    assert facts.failure is not None
    return facts.failure


def value(fact: Any) -> Any:
    assert fact.value is not None, fact.missing
    return fact.value


def test_vllm_in_its_development_mode() -> None:
    fake = vllm()
    facts = examined(fake, path="/v1")
    assert facts.failure is None
    assert (facts.engine, facts.version, facts.model) == ("vllm", "0.32.0", "tiny")
    assert all(value(value(facts.server).endpoints)[path] for path in ("/update_weights", "/sleep", "/pause"))
    assert value(facts.template).rendered.startswith("<|user|>What is")
    log_probs = value(facts.log_probs)
    assert log_probs.num_tokens == log_probs.num_log_probs > 20
    assert [case.ok for case in (*value(facts.stops), *value(facts.lengths))] == [True] * 4
    assert value(facts.speed).chunks == 32
    called = {path for method, path in fake.calls if method == "POST"}
    assert called == {"/v1/completions", "/tokenize"}


def test_sglang_by_its_own_protocol() -> None:
    fake = sglang()
    facts = examined(fake)
    assert facts.failure is None
    assert (facts.engine, facts.version) == ("sglang", "0.5.4")
    endpoints = value(value(facts.server).endpoints)
    assert endpoints["/release_memory_occupation"]
    assert endpoints["/update_weights_from_tensor"]
    assert not endpoints["/update_weights_from_disk"]
    assert [case.ok for case in (*value(facts.stops), *value(facts.lengths))] == [True] * 4
    assert value(facts.log_probs).num_log_probs == value(facts.log_probs).num_tokens > 20
    assert value(facts.template).present
    harmless = ("/generate", "/v1/chat/completions", "/health", "/v1/models", "/get_server_info", "/server_info")
    assert {path for method, path in fake.calls if method != "PROPFIND"} <= {*harmless, "/openapi.json"}


def test_vllm_without_development_mode_has_no_end_points_for_training() -> None:
    fake = vllm()
    for path in ("/update_weights", "/sleep", "/wake_up", "/pause", "/reset_prefix_cache"):
        del fake.routes["POST", path]
    assert not any(value(value(examined(fake).server).endpoints).values())


def test_the_list_of_end_points_is_believed() -> None:
    fake = Fake({key: reply for key, reply in vllm().routes.items() if key[1] != "/sleep"})
    fake.routes["GET", "/openapi.json"] = (200, {"paths": {"/sleep": {}}})
    assert value(value(examined(fake).server).endpoints)["/sleep"]


@pytest.mark.parametrize(
    ("log_probs", "field"),
    [([-1.0] * 3, "num_log_probs"), ([float("nan")] * 16, "num_not_finite"), ([None] * 16, "num_not_finite"),
     ([0.5] * 16, "num_positive")],
    ids=["too few", "NaN", "null", "above 0"],
)  # fmt: skip
def test_log_probs_that_are_none(log_probs: list[Any], field: str) -> None:
    fake = vllm()
    whole = fake.routes["POST", "/v1/completions"]

    def answer(body: dict[str, Any]) -> Any:
        if body.get("stream") or body["max_tokens"] != 16 or isinstance(body["prompt"], list) or "stop" in body:
            return whole(body)
        return 200, completion("one two three", 16, "length", log_probs)

    fake.routes["POST", "/v1/completions"] = answer
    found = value(examined(fake).log_probs)
    if field == "num_log_probs":
        assert found.num_log_probs < found.num_tokens
    else:
        assert getattr(found, field) == 32  # the first answer, and the greedy one
    assert found.worst.startswith("answer 0")


def test_a_server_that_cuts_prompts_is_found_out() -> None:
    fake = vllm()
    fake.routes["POST", "/v1/completions"] = lambda body: (
        (200, [{"choices": [{"text": "w"}]}]) if body.get("stream") else (200, completion("w", 1, "length"))
    )
    cases = {case.name: case for case in value(examined(fake).lengths)}
    assert not cases["prompt of max_model_len"].ok


def test_a_model_too_short_for_the_message_is_asked_with_fewer_tokens() -> None:
    fake = vllm(max_model_len=24)
    whole = fake.routes["POST", "/v1/completions"]
    fake.routes["POST", "/v1/completions"] = lambda body: (
        whole(body) if isinstance(body["prompt"], list) else (400, {"error": {"message": "too long"}})
    )
    assert examined(fake).failure is None


def test_a_sleeping_server_is_not_asked_to_generate() -> None:
    fake = vllm()
    fake.routes["GET", "/is_sleeping"] = (200, {"is_sleeping": True})
    assert "asleep" in failure(examined(fake)).line
    assert ("POST", "/v1/completions") not in fake.calls


def test_a_generation_that_is_refused_or_hangs() -> None:
    fake = vllm()
    fake.routes["POST", "/v1/completions"] = (500, {"error": {"message": "EngineCore encountered an issue."}})
    assert "HTTP 500, EngineCore encountered" in failure(examined(fake)).line
    fake.routes["POST", "/v1/completions"] = lambda body: time.sleep(1.5) or (200, {})
    hung = failure(examined(fake, limit_s=0.4))
    assert (hung.stage, hung.kind) == ("generation", "silent")
    assert hung.line == "POST /v1/completions was not answered within 0.4 s"


def test_a_server_that_is_busy_or_starts_is_no_foreign_one() -> None:
    fake = vllm(headers={"Retry-After": "7"})
    for status in (429, 503):
        fake.routes["GET", "/v1/models"] = (status, b"<html>later</html>")
        facts = examined(fake)
        assert failure(facts).kind == "busy"
        assert f"HTTP {status}" in failure(facts).line
        assert "wait 7" in failure(facts).line


def test_a_server_that_breaks_off_is_still_an_llm_server() -> None:
    """Its answer is no HTTP any more: the generation failed, not the address."""
    fake = vllm()

    def junk(_: dict[str, Any]) -> Any:
        fake.headers["Transfer-Encoding"] = "chunked"
        return 200, b"zzz no chunk"

    fake.routes["POST", "/v1/completions"] = junk
    facts = examined(fake)
    assert (failure(facts).kind, facts.model) == ("refused", "tiny")
    assert "broke off" in failure(facts).line


def test_a_server_that_goes_while_it_generates_fails_that_check() -> None:
    from rlcheck import judging
    from rlcheck.checks import family_checks

    CHECKS = family_checks("ROL")
    from rlcheck.facts.base import known
    from rlcheck.facts.document import Facts
    from rlcheck.playbook import Library

    def go(_: dict[str, Any]) -> Any:
        raise ConnectionError  # the thread of the request ends, and with it the connection

    fake = vllm()
    fake.routes["POST", "/v1/completions"] = go
    facts = examined(fake)
    assert "closed the connection" in failure(facts).line
    findings = {finding.id: finding for finding in judging.judge(Facts(rollout=known(facts)), CHECKS, Library())}
    assert findings["ROL002"].status == "fail"
    assert "the log of http://127.0.0.1" in findings["ROL002"].fixes[0].title
    assert findings["ROL013"].status == "pass"


def test_an_answer_without_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcheck.measure.rollout.http._LIMIT_BYTES", 1 << 20)
    fake = vllm()
    fake.routes["POST", "/v1/completions"] = (200, b"x" * (3 << 20))
    assert "more than 1 MiB" in failure(examined(fake)).line


def test_deadlines_of_small_questions_are_no_longer_than_asked() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        facts = examine(f"http://127.0.0.1:{silent.getsockname()[1]}", generate_s=0.2)
    assert (failure(facts).kind, failure(facts).stage) == ("silent", "health")
    assert "0.2 s" in failure(facts).line


@pytest.mark.parametrize("key", ["secret\nX-Other: 1", "schlüssel"])
def test_a_key_that_no_header_takes_is_the_users_to_mend(key: str) -> None:
    with pytest.raises(UrlError, match="VLLM_API_KEY") as refused:
        examine("http://127.0.0.1:1", {"VLLM_API_KEY": key})
    assert key[:5] not in str(refused.value)


def test_keys_come_from_the_environment_and_are_not_kept() -> None:
    fake = vllm(key="k-123456789")
    lacking = examined(fake)
    assert failure(lacking).kind == "key"
    assert "no key was sent" in failure(lacking).line
    assert "the key in VLLM_API_KEY is refused" in failure(examined(fake, {"VLLM_API_KEY": "wrong-key"})).line
    facts = examined(fake, {"RLCHECK_API_KEY": "k-123456789"})
    assert facts.failure is None
    assert value(facts.server).key_from == "RLCHECK_API_KEY"
    assert "k-123456789" not in repr(facts)


def test_a_redirect_is_named_and_no_key_follows_it() -> None:
    fake = vllm(headers={"Location": "https://elsewhere.example/"})
    fake.routes["GET", "/health"] = (302, b"")
    facts = examined(fake, {"RLCHECK_API_KEY": "k-123456789"})
    assert failure(facts).kind == "redirect"
    assert value(facts.server).redirect == "https://elsewhere.example/"
    assert fake.calls == [("GET", "/health")]


def test_what_is_no_llm_server_is_named() -> None:
    page = Fake({("GET", "/health"): (200, b"<html><title>Ray Dashboard</title></html>")})
    facts = examined(page)
    assert failure(facts).kind == "foreign"
    assert "Ray Dashboard" in failure(facts).line


def test_another_openai_server_is_asked_what_it_can_answer() -> None:
    fake = vllm()
    fake.routes["GET", "/v1/models"] = (200, {"data": [{"id": "m", "owned_by": "somebody"}]})
    facts = examined(fake)
    assert facts.engine == ""
    assert facts.log_probs.value is not None
    assert "owned by somebody" in facts.notes[-1]


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'{"data": [1]}', b'{"data": "x"}', b"\xff\xfe", b"[" * 100_000])
def test_any_list_of_models_ends_in_words(body: bytes) -> None:
    fake = vllm()
    fake.routes["GET", "/v1/models"] = (200, body)
    facts = examined(fake)
    assert facts.failure is None or facts.failure.kind == "foreign"


def test_nothing_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    facts = examine(f"http://127.0.0.1:{port}")
    assert failure(facts).kind == "address"
    assert "refused" in failure(facts).line
    assert value(facts.server).loopback
    assert facts.log_probs.missing is not None


def test_a_name_that_nobody_knows() -> None:
    facts = examine("http://no-such-host.invalid:8000")
    assert failure(facts).kind == "name"


def _listen(answer: bytes) -> tuple[socket.socket, int]:
    """A port that says `answer` to whoever connects, and nothing more."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            peer.sendall(answer)
            peer.settimeout(2)
            try:
                peer.recv(65536)
            except OSError:
                pass
            finally:
                peer.close()

    threading.Thread(target=serve, daemon=True).start()
    return listener, listener.getsockname()[1]


def test_something_that_speaks_no_http() -> None:
    listener, port = _listen(b"SSH-2.0-OpenSSH_9.6\r\n")
    try:
        assert failure(examine(f"http://127.0.0.1:{port}")).kind == "foreign"
        assert failure(examine(f"https://127.0.0.1:{port}")).kind == "plain"
    finally:
        listener.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_a_certificate_of_its_own(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(words, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with serving(vllm(), lambda bare: context.wrap_socket(bare, server_side=True)) as url:
        secure = url.replace("http://", "https://")
        assert failure(examine(secure)).kind == "tls"
        done = rlcheck("rollout", secure, "-f", "json", env={"SSL_CERT_FILE": str(cert)})
        assert done.code == 0, done.out + done.err


@pytest.mark.parametrize(
    ("environ", "caught"),
    [({"http_proxy": "http://p:1"}, ["http_proxy"]), ({"HTTP_PROXY": "http://p:1"}, ["HTTP_PROXY"]),
     ({"all_proxy": "http://p:1"}, ["all_proxy"]), ({"https_proxy": "http://p:1"}, []),
     ({"http_proxy": "http://p:1", "no_proxy": "127.0.0.1"}, [])],
    ids=["lower", "upper", "all", "https only", "spared"],
)  # fmt: skip
def test_proxies_that_libraries_would_use(environ: dict[str, str], caught: list[str]) -> None:
    facts = examined(vllm(), environ)
    assert facts.failure is None
    assert sorted(value(facts.server).proxies) == caught


@pytest.mark.parametrize("url", ["http://", "http://host:99999", "ftp://host", "http://[::1"])
def test_a_url_that_names_no_server(url: str) -> None:
    with pytest.raises(UrlError):
        examine(url)


@pytest.mark.row("F21")
def test_the_command_on_a_server() -> None:
    with serving(vllm()) as url:
        done = rlcheck("rollout", url, "-f", "json")
        shown = rlcheck("rollout", url)
    report = json.loads(done.out)
    assert done.code == 0, done.err
    statuses = {check["id"]: check["status"] for check in report["checks"]}
    assert (statuses["ROL003"], statuses["ROL013"], statuses["ROL015"]) == ("pass", "pass", "info")
    assert "Where answers end" in shown.out
    tables = shown.out.partition("Time by stage")[2]
    assert max(map(len, tables.splitlines())) <= 80


def test_the_record_of_a_server_is_judged_again(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    fake = vllm()
    fake.routes["POST", "/v1/completions"] = (200, completion("w", 4, "length", [0.5] * 4))
    with serving(fake) as url:
        first = rlcheck("rollout", url, "-f", "json", "--record", record)
    again = rlcheck("rollout", "--facts", record, "-f", "json")
    assert (first.code, again.code) == (1, 1)
    messages = [[(c["id"], c["status"], c["message"]) for c in json.loads(d.out)["checks"]] for d in (first, again)]
    assert sorted(messages[0]) == sorted(messages[1])


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "give a CONFIG"), (("http://u:p@h:1",), "RLCHECK_API_KEY"), (("node7:8000",), "http://node7:8000"),
     (("http://h:1", "a=b"), "overrides change a CONFIG"), (("no-such-file.yaml",), "no-such-file.yaml")],
    ids=["nothing", "password", "no scheme", "override", "no file"],
)  # fmt: skip
def test_wrong_calls_are_one_line(words: tuple[str, ...], said: str) -> None:
    done = rlcheck("rollout", *words)
    assert done.code == 2
    assert said in done.error_line
    assert "u:p" not in done.err
