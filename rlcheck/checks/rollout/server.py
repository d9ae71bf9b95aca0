"""ROL010-ROL016: a server that runs already: that it is reached, is what it should be, and can be trained with."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import Failure, RolloutFacts, ServerFacts
from rlcheck.measure.rollout.purposes import NEEDED

_UNREACHED = {"name", "address", "silent", "tls", "plain"}
_BUFFERED_SHARE = 0.9
_BUFFERED_S = 0.5
"""Below it, the time of a whole answer says nothing about when its pieces came."""


def _server(facts: Facts) -> tuple[RolloutFacts, ServerFacts, Failure | None]:
    rollout = need(facts.rollout)
    return rollout, need(rollout.server), rollout.failure


@check("ROL010", "The rollout server can be reached", needs=("rollout.server",), playbook="rollout-server-refuses")
def server_is_reached(facts: Facts) -> Verdict:
    """The URL's name resolves, its port answers, and speaks what the URL says: TLS or not.

    What it does:
        Resolves the name, connects, and asks for /health, each with a deadline.

    Why it matters:
        A trainer waits for its rollout server for minutes before it says that it cannot reach it, and says only that.
    """
    rollout, server, failure = _server(facts)
    if failure is None or failure.kind not in _UNREACHED or server.health.value is not None:
        return passed(f"{rollout.target} answers ({', '.join(server.addresses)})")
    return fail(
        f"a server at {rollout.target}",
        failure.line,
        evidence=(evidence("rollout.failure.kind", failure.kind, rollout.target),),
        params=_remedy(failure, rollout, server),
    )


def _remedy(failure: Failure, rollout: RolloutFacts, server: ServerFacts) -> dict[str, str]:
    """What to look at, by the layer at which it ended."""
    if failure.kind == "name":
        return {"name": server.host}
    if failure.kind == "plain":
        return {"plain": rollout.target.replace("https:", "http:", 1)}
    if failure.kind == "tls":
        return {"certificate": rollout.target}
    return {"url": rollout.target, "host": server.host}


@check("ROL011", "The rollout server is an LLM server", needs=("rollout.server",), playbook="rollout-server-foreign",
       caused_by=("ROL010",))  # fmt: skip
def it_is_an_llm_server(facts: Facts) -> Verdict:
    """What answers is vLLM or SGLang, directly and without a redirect.

    What it does:
        Asks for /v1/models and reads whose models they are. A redirect is not followed: clients send prompts by POST,
        which a redirect turns into GET or drops.

    Why it matters:
        A dashboard, a notebook or a proxy's login page on that port answers HTTP 200 to much of what is asked.
    """
    rollout, server, failure = _server(facts)
    if failure is not None and failure.kind in _UNREACHED and server.health.value is None:
        return skip("it was not reached")
    if failure is not None and failure.kind in ("foreign", "redirect"):
        return fail(
            "vLLM or SGLang",
            failure.line,
            evidence=(evidence("rollout.server.banner", server.banner or "nothing", rollout.target),),
            params=_sent_to(server),
        )
    if failure is not None and failure.kind == "key":
        return unknown("it asks for a key first")
    if failure is not None and failure.kind == "busy":
        return unknown("it does not say which models it has")
    if not rollout.engine:
        return info("an OpenAI-compatible server, neither vLLM nor SGLang")
    return passed(f"{rollout.engine} {rollout.version} with {', '.join(server.models[:3])}")


def _sent_to(server: ServerFacts) -> dict[str, str]:
    """Where a redirect keeps what was asked for: the server itself. A login page is none."""
    place = urlsplit(server.redirect)
    kept = next((path for path in ("/health", "/v1/models") if place.path.endswith(path)), "")
    if not kept or not place.netloc or place.query:
        return {}
    return {"url": f"{place.scheme}://{place.netloc}{place.path[: -len(kept)]}"}


@check("ROL012", "The rollout server is ready", needs=("rollout.server",), playbook="rollout-server-busy",
       caused_by=("ROL010", "ROL011"),
       problem="The server is not ready, or wants a key")  # fmt: skip
def server_is_ready(facts: Facts) -> Verdict:
    """It says that it is healthy, and takes our key where it wants one.

    What it does:
        Reads the status of /health and whether /v1/models asks for a key. Keys come from the environment alone.

    Why it matters:
        A server that still loads its model, or whose engine has died behind a living front, answers 503.
    """
    rollout, server, failure = _server(facts)
    if failure is not None and failure.kind == "key":
        return fail("a key that the server takes", failure.line, params={"variable": "RLCHECK_API_KEY"},
                    evidence=(evidence("rollout.server.needs_key", "true", rollout.target),))  # fmt: skip
    status = server.health.value
    if status is None:
        return skip("it was not reached")
    if failure is not None and failure.kind in ("foreign", "redirect"):
        return skip("it is no LLM server")
    if status >= 500:
        return fail("/health to be HTTP 200", f"HTTP {status}: the server is starting, or its engine has died",
                    params={"url": rollout.target},
                    evidence=(evidence("rollout.server.health", status, rollout.target),))  # fmt: skip
    if failure is not None and failure.kind == "busy":
        return fail("an answer to GET /v1/models", failure.line, params={"url": rollout.target},
                    evidence=(evidence("rollout.failure.line", failure.line, rollout.target),))  # fmt: skip
    key = f", with the key in {server.key_from}" if server.key_from else ""
    return passed(f"/health is HTTP {status}{key}")


@check("ROL013", "The rollout server takes new weights", needs=("rollout.server.endpoints",),
       playbook="rollout-weight-endpoints", caused_by=("ROL010", "ROL011", "ROL012"))  # fmt: skip
def weights_can_be_given(facts: Facts) -> Verdict:
    """The end points by which a trainer updates weights, lets the server sleep, and pauses it are there.

    What it does:
        Reads the server's list of end points, and asks for those that are not in it with a method that none takes.
        None of them is called.

    Why it matters:
        A policy server without them answers with its first weights forever: training goes on, and drifts off-policy.
    """
    rollout, server, _ = _server(facts)
    there = need(server.endpoints)
    lacking = [purpose for purpose, paths in _needed(rollout.engine).items() if not any(map(there.get, paths))]
    listed = tuple(f"{purpose}: {' or '.join(_needed(rollout.engine)[purpose])}" for purpose in lacking)
    if lacking:
        return warn(
            "end points to take new weights, sleep, wake and pause",
            f"none to {', to '.join(lacking)}",
            details=listed,
            evidence=(evidence("rollout.server.endpoints", sorted(p for p, has in there.items() if has),
                               rollout.target),),
        )  # fmt: skip
    return passed(f"{', '.join(sorted(path for path, has in there.items() if has))}")


def _needed(engine: str) -> Mapping[str, tuple[str, ...]]:
    return NEEDED.get(engine, {})


@check("ROL014", "No proxy is between trainer and server", needs=("rollout.server",),
       playbook="rollout-server-proxy",
       problem="A proxy is between trainer and server")  # fmt: skip
def no_proxy_between(facts: Facts) -> Verdict:
    """HTTP libraries would call the server directly.

    What it does:
        Reads the proxy variables as Python's HTTP libraries do. The doctor itself calls the server directly.

    Why it matters:
        A proxy answers in place of a server in the cluster, with 403, 502 or its own page, and cuts long answers off.
    """
    server = need(need(facts.rollout).server)
    if not server.proxies:
        return passed(f"calls to {server.host} go directly")
    listed = ", ".join(f"{name}={value}" for name, value in sorted(server.proxies.items()))
    return warn(
        f"{server.host} in no_proxy",
        listed,
        evidence=(evidence("rollout.server.proxies", listed, "the environment"),),
        params={"host": server.host},
    )


@check(
    "ROL015",
    "Other machines can use the server's URL",
    needs=("rollout.server",),
    playbook="loopback-endpoint",
    problem="The URL of the server names this machine alone",
)
def others_can_use_it(facts: Facts) -> Verdict:
    """The URL does not name the machine that uses it.

    What it does:
        Looks whether all addresses of the URL are loopback.

    Why it matters:
        In a run on several machines, each takes 127.0.0.1 for itself, and all but one find nothing there.
    """
    rollout, server, _ = _server(facts)
    if server.loopback:
        return info(f"{server.host} is this machine: right for a run on it alone", params={"port": str(server.port)})
    return passed(f"{rollout.target} names another address than loopback")


@check("ROL016", "Streamed answers come piece by piece", needs=("rollout.speed",), playbook="rollout-server-proxy",
       caused_by=("ROL010", "ROL011", "ROL012"),
       problem="Streamed answers do not come piece by piece")  # fmt: skip
def streams_are_not_held_back(facts: Facts) -> Verdict:
    """The first piece of a streamed answer comes well before its last.

    What it does:
        Streams one answer, and compares when its first and its last piece came.

    Why it matters:
        A buffering proxy between trainer and server holds each answer back until it is whole: time to the first token
        cannot be seen, and a hung server looks like a slow one.
    """
    rollout = need(facts.rollout)
    speed = need(rollout.speed)
    if not rollout.is_server or speed.chunks < 2:
        return skip("nothing was streamed")
    if speed.stream_s > _BUFFERED_S and speed.first_token_s > _BUFFERED_SHARE * speed.stream_s:
        return warn(
            "pieces spread over the answer",
            f"the first of {speed.chunks} after {speed.first_token_s:.1f} s of {speed.stream_s:.1f} s",
            evidence=(evidence("rollout.speed.first_token_s", f"{speed.first_token_s:.2f}", rollout.target),),
            params={"host": rollout.server.value.host if rollout.server.value else ""},
        )
    return passed(f"{speed.chunks} pieces, the first after {speed.first_token_s * 1e3:.0f} ms")
