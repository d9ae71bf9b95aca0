"""The interface names in NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, each by the rules of its own reader."""

from __future__ import annotations

from collections.abc import Sequence

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.interfaces import describe, environ, has_address, nccl_setting, network, several_nodes, usable
from rlcheck.facts.network import Interface


def nccl_selection(pattern: str, interfaces: Sequence[Interface]) -> list[Interface]:
    """The interfaces that NCCL's syntax selects: `^` excludes, `=` asks for exact names, else prefixes."""
    exclude = pattern.startswith("^")
    body = pattern[1:] if exclude else pattern
    exact = body.startswith("=")
    tokens = [token for token in (body[1:] if exact else body).split(",") if token]
    return [i for i in interfaces if any(_matches(i.name, token, exact) for token in tokens) != exclude]


def _matches(name: str, token: str, exact: bool) -> bool:
    return name == token if exact else name.startswith(token)


def _candidates(interfaces: Sequence[Interface]) -> str:
    return ", ".join(describe(i) for i in interfaces if i.kind != "loopback" and usable(i)) or "none"


def _best(interfaces: Sequence[Interface]) -> str:
    physical = [i.name for i in interfaces if usable(i) and i.kind in ("ethernet", "bond", "vlan", "infiniband")]
    return physical[0] if physical else next((i.name for i in interfaces if usable(i) and i.kind != "loopback"), "eth0")


@check("NET012", "NCCL_SOCKET_IFNAME selects a working interface", needs=("network.interfaces", "environ"),
       playbook="socket-ifname",
       problem="NCCL_SOCKET_IFNAME selects no working interface")  # fmt: skip
def nccl_socket_ifname(facts: Facts) -> Verdict:
    """Applies NCCL_SOCKET_IFNAME to the interfaces of this machine, as NCCL does.

    What it does:
        Understands prefixes, `=exact` and `^excluded` lists, and looks whether what is left exists, is up and has an
        address.

    Why it matters:
        When nothing is left NCCL stops with "Bootstrap : no socket interface found". Names differ between hosts, so a
        value that is right on one node stops the run on another.
    """
    pattern = environ(facts).get("NCCL_SOCKET_IFNAME") or nccl_setting(facts, "NCCL_SOCKET_IFNAME")
    if not pattern.strip():
        return skip("NCCL_SOCKET_IFNAME is not set: NCCL chooses by itself")
    interfaces = need(network(facts).interfaces)
    selected = nccl_selection(pattern, interfaces)
    working = [interface for interface in selected if usable(interface)]
    where = (evidence("environ.NCCL_SOCKET_IFNAME", pattern, "environment"),)
    tight = "".join(pattern.split())
    params = {"nccl_interface": tight if any(map(usable, nccl_selection(tight, interfaces))) else _best(interfaces)}
    if tight != pattern:
        found = f"{pattern!r}: NCCL takes a space for a part of the name, and so for one that is not there"
        return (warn if working else fail)("NCCL_SOCKET_IFNAME without spaces", found, evidence=where, params=params)
    if not working:
        reason = (
            f"{', '.join(describe(i) for i in selected[:4])}, not up or without address" if selected else "no match"
        )
        return fail(
            f"NCCL_SOCKET_IFNAME={pattern} to select an interface that is up and has an address",
            f"{reason}; usable here: {_candidates(interfaces)}",
            evidence=where,
            params=params,
        )
    sign = several_nodes(facts)
    if sign and all(interface.kind == "loopback" for interface in working):
        return fail(
            f"an interface that other nodes can reach ({sign})",
            f"NCCL_SOCKET_IFNAME={pattern} selects the loopback interface only",
            evidence=where,
            params=params,
        )
    return passed(f"NCCL_SOCKET_IFNAME={pattern} selects {', '.join(describe(i) for i in working[:8])}")


@check("NET013", "GLOO_SOCKET_IFNAME names working interfaces", needs=("network.interfaces", "environ"),
       playbook="socket-ifname",
       problem="GLOO_SOCKET_IFNAME names an interface that does not work")  # fmt: skip
def gloo_socket_ifname(facts: Facts) -> Verdict:
    """Checks every name in GLOO_SOCKET_IFNAME.

    What it does:
        Gloo takes concrete names, separated by commas. It knows neither prefixes nor NCCL's `^` and `=`. Each name must
        be an interface here with an address.

    Why it matters:
        A name that is not there stops torch.distributed at start with "Unable to find address for". The usual cause
        is NCCL's syntax (`^lo,docker0`) copied into Gloo's variable.
    """
    text = environ(facts).get("GLOO_SOCKET_IFNAME", "")
    if not text.strip():
        return skip("GLOO_SOCKET_IFNAME is not set: Gloo asks for the address of this host's name")
    interfaces = need(network(facts).interfaces)
    by_name = {interface.name: interface for interface in interfaces}
    bad = [problem for name in text.split(",") if (problem := _gloo_problem(name, by_name))]
    where = (evidence("environ.GLOO_SOCKET_IFNAME", text, "environment"),)
    tight = "".join(text.split())
    params = {"gloo_interface": tight if all(name in by_name for name in tight.split(",")) else _best(interfaces)}
    if bad:
        found = f"{'; '.join(bad[:4])}; usable here: {_candidates(interfaces)}"
        return fail("names of interfaces with an address", found, evidence=where, params=params)
    sign = several_nodes(facts)
    if sign and all(by_name[name].kind == "loopback" for name in text.split(",")):
        return fail(f"an interface that other nodes can reach ({sign})", "loopback only", evidence=where, params=params)
    down = [name for name in text.split(",") if not usable(by_name[name])]
    if down:
        return warn("interfaces that are up", f"{', '.join(down)} down", evidence=where, params=params)
    return passed(f"GLOO_SOCKET_IFNAME={text} is {', '.join(describe(by_name[name]) for name in text.split(','))}")


def _gloo_problem(name: str, by_name: dict[str, Interface]) -> str:
    if name[:1] in ("^", "="):
        return f"{name!r} is NCCL's syntax, which Gloo does not know"
    if name not in by_name:
        space = " (Gloo takes the space for a part of the name)" if name.strip() in by_name else ""
        return f"no interface {name!r}{space}"
    return "" if has_address(by_name[name]) else f"{name} has no address"
