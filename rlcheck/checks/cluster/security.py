"""Passwords, tokens and certificates of Ray: whether what is asked for is really in force."""

from __future__ import annotations

from packaging.version import Version

from rlcheck.check import Verdict, check, evidence, fail, info, passed, warn
from rlcheck.checks.cluster.common import is_on, ray, ray_version, token_by_itself, variable
from rlcheck.facts.base import why_missing
from rlcheck.facts.document import Facts
from rlcheck.measure.cluster.start_help import TOKENS_SINCE

# From here on, by Ray's announcement, all nodes ask for tokens by default, so that they agree.
_TOKENS_EVERYWHERE = Version("2.61.0")
_TLS_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


@check("RAY028", "A Redis password is not mistaken for authentication", needs=("environ",),
       playbook="ray-unread-variables",
       problem="A Redis password protects nothing")  # fmt: skip
def redis_password(facts: Facts) -> Verdict:
    """Notices a Redis password where there is no Redis.

    What it does:
        Reports RAY_REDIS_PASSWORD without RAY_REDIS_ADDRESS. Only an external Redis for a fault-tolerant head uses it.

    Why it matters:
        Guides from the time when Ray kept its state in Redis set a password to protect the cluster. It protects nothing
        today: anyone who reaches the ports can still run any program in it.
    """
    if not variable(facts, "RAY_REDIS_PASSWORD") or variable(facts, "RAY_REDIS_ADDRESS"):
        return passed("is not set, or there is a Redis")
    return info("RAY_REDIS_PASSWORD is set without RAY_REDIS_ADDRESS: it protects nothing")


@check("RAY029", "Token authentication is complete", needs=("environ", "ray", "python"), playbook="ray-auth-token",
       problem="Token authentication is incomplete")  # fmt: skip
def auth_token(facts: Facts) -> Verdict:
    """Judges RAY_AUTH_MODE and whether there is a token to go with it. The token is never read.

    What it does:
        Compares the mode with the version of Ray (2.52 and later know it), and looks for the token in the order that
        Ray does: RAY_AUTH_TOKEN, the file in RAY_AUTH_TOKEN_PATH, ~/.ray/auth_token. Without a mode, notes a token that
        makes a head of Ray 2.59 or 2.60 ask for it.

    Why it matters:
        With the mode on and no token, `ray start` and every connection to a cluster stop with an AuthenticationError.
        An older Ray ignores the mode, and the cluster is open although it was meant to be closed. From 2.59 on a single
        `ray.init()` leaves a token behind; the next `ray start --head` then asks for it, and other nodes that were told
        nothing are refused.
    """
    mode = (variable(facts, "RAY_AUTH_MODE") or "").lower()
    version = ray_version(facts)
    found = token_by_itself(facts)
    if found and version is not None and version < _TOKENS_EVERYWHERE:
        return info(
            f"a head started here asks for the token in {found}, as Ray {version} does by itself; other nodes, and "
            "drivers with RAY_ADDRESS, need RAY_AUTH_MODE=token and the same token (or RAY_AUTH_MODE=disabled on all)"
        )
    if mode != "token":
        return passed(f"RAY_AUTH_MODE={mode}" if mode else "RAY_AUTH_MODE is not set")
    if version is not None and version < TOKENS_SINCE:
        return warn(f"Ray {TOKENS_SINCE} or later for RAY_AUTH_MODE=token", f"Ray {version}, which ignores it")
    if variable(facts, "RAY_AUTH_TOKEN"):
        return passed("RAY_AUTH_TOKEN is set")
    token = ray(facts).auth_token.value
    if token is None:
        reason = why_missing(ray(facts).auth_token)
        return Verdict(status="unknown", message=f"could not look: {reason.reason if reason else ''}")
    if token.readable and token.num_bytes:
        return passed(f"the token is in {token.path}")
    fault = "cannot be read" if token.exists and not token.readable else "is empty" if token.exists else "is missing"
    proof = (evidence("ray.auth_token", fault, token.path),)
    # Ray falls back to no other place when the path was given, and makes a token of its own only in the default one.
    verdict = fail if token.source == "RAY_AUTH_TOKEN_PATH" else warn
    return verdict("a token for RAY_AUTH_MODE=token", f"{token.path} {fault}", evidence=proof)


@check("RAY030", "TLS settings are complete", needs=("environ",), playbook="ray-tls")
def tls_files(facts: Facts) -> Verdict:
    """Checks that encryption was switched on together with its three files.

    What it does:
        With RAY_USE_TLS on, RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT must all be set. The files
        themselves are not opened.

    Why it matters:
        Without one of them the first connection raises an error on the missing variable, on whichever node lacks it,
        and the node does not join.
    """
    if not is_on(variable(facts, "RAY_USE_TLS")):
        return passed("TLS is off")
    lacking = [name for name in _TLS_FILES if not variable(facts, name)]
    if not lacking:
        return passed("all three files are named")
    return fail(
        "all of RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT with RAY_USE_TLS",
        f"no {', no '.join(lacking)}",
        evidence=tuple(evidence(f"environ.{name}", "not set") for name in lacking),
    )
