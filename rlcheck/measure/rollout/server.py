"""A running vLLM or SGLang server, asked what a trainer would ask of it; nothing on it is changed."""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from rlcheck.facts.base import MissingKind, absent, known, missing
from rlcheck.facts.rollout import Failure, RolloutFacts, ServerFacts, StageTime
from rlcheck.measure.cluster.proxies import caught_http
from rlcheck.measure.rollout.dialects import Dialect, OpenAi, Sglang, Vllm
from rlcheck.measure.rollout.http import Answer, Caller, CallFailed, UrlError, addresses, caller_of
from rlcheck.measure.rollout.purposes import NEEDED
from rlcheck.measure.rollout.questions import Questions

KEYS = ("RLCHECK_API_KEY", "VLLM_API_KEY", "SGLANG_API_KEY")
"""Where a key is looked for, in this order. Not OPENAI_API_KEY: it belongs to another server."""
_QUICK_S = 10.0
_TOO_MANY = 429
_TITLE = re.compile(rb"<title[^>]*>([^<]{1,120})</title>", re.I)

OnStage = Callable[[str], None]


class _Ended(Exception):
    """Why the examination cannot go on."""

    def __init__(self, kind: str, line: str) -> None:
        super().__init__(line)
        self.kind = kind


@dataclass
class _Visit:
    """One examination, as far as it has come."""

    caller: Caller
    facts: RolloutFacts
    server: ServerFacts
    on_stage: OnStage
    generate_s: float
    quick_s: float
    stage: str = ""
    stages: list[StageTime] = field(default_factory=list[StageTime])
    _since: float = 0.0

    def enter(self, stage: str) -> None:
        """A new stage begins, and the one before has ended."""
        now = time.monotonic()
        if self.stage:
            self.stages.append(StageTime(name=self.stage, seconds=round(now - self._since, 4)))
        self.stage, self._since = stage, now
        if stage:
            self.on_stage(stage)

    def note(self, **values: Any) -> None:
        """Facts of the engine."""
        self.facts = msgspec.structs.replace(self.facts, **values)

    def saw(self, **values: Any) -> None:
        """Facts of the server."""
        self.server = msgspec.structs.replace(self.server, **values)


def examine_server(url: str, environ: Mapping[str, str], on_stage: OnStage, generate_s: float = 120.0) -> RolloutFacts:
    """What the server at URL is and does.

    Args:
        url: http(s)://HOST[:PORT][/PREFIX]; what clients append (/v1) may be at its end.
        environ: for the API key and for proxies.
        on_stage: told what is asked, before it is.
        generate_s: longest time of one generation.

    Raises:
        UrlError: URL names no server, or the key is none.
    """
    name = next((name for name in KEYS if environ.get(name, "").strip()), "")
    key = environ.get(name, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UrlError(f"{name} holds a line end or another character that no header takes; set it to the key alone")
    caller, notes = caller_of(url, key)
    server = ServerFacts(scheme=caller.scheme, host=caller.host, port=caller.port, key_from=name,
                         proxies=_proxies(environ, caller))  # fmt: skip
    facts = RolloutFacts(target=caller.url, is_server=True, notes=notes)
    visit = _Visit(caller, facts, server, on_stage, generate_s, min(_QUICK_S, generate_s))
    try:
        dialect = _identified(visit)
        _endpoints(visit, dialect)
        _questioned(visit, dialect)
    except (CallFailed, _Ended) as ended:
        kind = ended.why if isinstance(ended, CallFailed) else ended.kind
        # One that said which models it has is an LLM server, whatever it answers later.
        kind = "refused" if kind == "foreign" and visit.server.models else kind
        visit.note(failure=Failure(stage=visit.stage, kind=kind, line=str(ended)))
    visit.enter("")
    visit.note(stages=tuple(visit.stages), server=known(visit.server))
    return _with_reasons(visit.facts)


def _proxies(environ: Mapping[str, str], caller: Caller) -> dict[str, str]:
    """The variables by which HTTP libraries would take this server for one behind a proxy."""
    own = f"{caller.scheme}_proxy"
    names = {name: value for name, value in environ.items() if name.lower() in (own, "all_proxy", "no_proxy")}
    # `caught_http` reads the variables of http:// addresses; those of https:// ones are read alike.
    as_http = {name.lower().replace(own, "http_proxy"): value for name, value in names.items()}
    caught = caught_http(as_http, (caller.host,))
    return {
        name: value
        for name, value in names.items()
        if name.lower().replace(own, "http_proxy") in caught and name.lower() != "no_proxy"
    }


def _identified(visit: _Visit) -> Dialect:
    """Find out what serves there.

    Raises:
        CallFailed: nothing answers.
        _Ended: it redirects, asks for a key, or is no LLM server.
    """
    caller = visit.caller
    visit.enter("name")
    found = addresses(caller.host, caller.port)
    visit.saw(addresses=found, loopback=all(ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in found))
    visit.enter("health")
    health = caller.call("GET", "/health", None, visit.quick_s)
    visit.saw(banner=_banner(health))
    _refuse_redirect(visit, health)
    visit.saw(health=known(health.status))
    visit.enter("model")
    models = caller.call("GET", "/v1/models", None, visit.quick_s)
    _refuse_redirect(visit, models)
    if models.status in (401, 403):
        visit.saw(needs_key=True)
        given = f"the key in {visit.server.key_from} is refused" if caller.key else "no key was sent"
        raise _Ended("key", f"GET /v1/models: HTTP {models.status}, {given}")
    if models.status == _TOO_MANY or models.status >= 500:
        wait = models.headers.get("retry-after", "")
        asks = f"; it asks to wait {wait[:40]} (Retry-After)" if wait else ""
        raise _Ended("busy", f"GET /v1/models: HTTP {models.status}, /health: HTTP {health.status}{asks}")
    listed: Any = models.data()
    cards = cast("list[Any]", listed.get("data")) if isinstance(listed, dict) else None  # type: ignore[union-attr]
    if models.status != 200 or not isinstance(cards, list) or not cards:
        raise _Ended("foreign", _foreign(models, health, visit.server.banner))
    return _dialect(visit, [cast("dict[str, Any]", card) for card in cards if isinstance(card, dict)])


def _dialect(visit: _Visit, cards: list[dict[str, Any]]) -> Dialect:
    """By whose models they are; newer and older versions of both say it there."""
    names = tuple(str(card.get("id")) for card in cards)
    visit.saw(models=names)
    visit.note(model=names[0] if names else "")
    limit = next((card["max_model_len"] for card in cards if isinstance(card.get("max_model_len"), int)), None)
    visit.saw(max_model_len=absent("the server does not say") if limit is None else known(int(limit)))
    owners = {str(card.get("owned_by")) for card in cards}
    dialect = next((kind for kind in (Vllm(), Sglang()) if kind.engine in owners), None) or OpenAi()
    visit.note(engine=dialect.engine, version=dialect.version(visit.caller, visit.quick_s))
    if not dialect.engine:
        owner = f"its models are owned by {', '.join(sorted(owners))}"
        visit.note(notes=(*visit.facts.notes, f"an OpenAI-compatible server, neither vLLM nor SGLang: {owner}"))
    return dialect


def _refuse_redirect(visit: _Visit, answer: Answer) -> None:
    if 300 <= answer.status < 400:
        place = answer.headers.get("location", "")
        visit.saw(redirect=place)
        raise _Ended("redirect", f"HTTP {answer.status}: it sends its callers to {place or 'another place'}")


def _banner(answer: Answer) -> str:
    title = _TITLE.search(answer.body[:65536])
    words = [answer.headers.get("server", ""), title[1].decode("utf-8", "replace").strip() if title else ""]
    return ", ".join(word for word in words if word)[:160]


def _foreign(models: Answer, health: Answer, banner: str) -> str:
    shown = f"; it calls itself {banner or _banner(models)}" if banner or _banner(models) else ""
    return f"GET /v1/models: HTTP {models.status}, /health: HTTP {health.status}: no LLM server{shown}"


def _endpoints(visit: _Visit, dialect: Dialect) -> None:
    """Which of the end points that a trainer needs are there, without calling one.

    A method that no end point takes is answered with 405 where there is one, with 404 where there is none.
    """
    wanted = [path for paths in NEEDED.get(dialect.engine, {}).values() for path in paths]
    if not wanted:
        visit.saw(endpoints=absent("neither vLLM nor SGLang"))
        return
    visit.enter("end points")
    listed: Any = visit.caller.call("GET", "/openapi.json", None, visit.quick_s).data()
    paths: Any = cast("dict[str, Any]", listed).get("paths") if isinstance(listed, dict) else None
    found = {path: isinstance(paths, dict) and path in paths for path in wanted}
    for path in [path for path, there in found.items() if not there]:
        found[path] = visit.caller.call("PROPFIND", path, None, visit.quick_s).status == 405
    visit.saw(endpoints=known(found))


def _questioned(visit: _Visit, dialect: Dialect) -> None:
    """Generate, unless it sleeps: a sleeping server would not answer.

    Raises:
        CallFailed: an answer did not come.
        _Ended: it sleeps, or refuses to generate.
    """
    visit.enter("generation")
    if dialect.engine == "vllm":
        for path, state in (("/is_sleeping", "asleep"), ("/is_paused", "paused")):
            answer = visit.caller.call("GET", path, None, visit.quick_s)
            if answer.status == 200 and b"true" in answer.body.lower():
                raise _Ended("refused", f"the server is {state}: GET {path} says so")
    questions = Questions(visit.caller, dialect, visit.facts.model, visit.generate_s)
    refused = questions.first()
    if refused:
        raise _Ended("refused", refused)
    for stage, question in questions.all(visit.server.max_model_len.value):
        visit.enter(stage)
        visit.note(**question())


def _with_reasons(facts: RolloutFacts) -> RolloutFacts:
    """Why what was not reached is not known."""
    failure = facts.failure
    why = missing(MissingKind.ERROR, f"not reached: {failure.line}") if failure else absent("the server does not say")
    server = facts.server.value
    if server is not None and server.endpoints.value is None and server.endpoints.missing is None:
        facts = msgspec.structs.replace(facts, server=known(msgspec.structs.replace(server, endpoints=why)))
    fresh = {
        name: why
        for name in ("speed", "log_probs", "stops", "lengths", "template")
        if getattr(facts, name).value is None and getattr(facts, name).missing is None
    }
    asleep = absent("a server's memory is not seen from here")
    return msgspec.structs.replace(facts, **fresh, sleep=asleep)
