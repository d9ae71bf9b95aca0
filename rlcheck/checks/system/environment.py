"""Environment of the process: proxies, text encoding, file mode."""

from __future__ import annotations

import re
from ipaddress import ip_address

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.resources import system_of
from rlcheck.facts.system import ProcessFacts

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LOOPBACK = ("localhost", "127.0.0.1")
# Where a run says which hosts it talks to.
_HOSTS_OF_A_RUN = ("MASTER_ADDR", "RAY_ADDRESS", "VLLM_HOST_IP", "HEAD_IP")
_UTF8 = frozenset(("utf8", "utf-8", "utf_8"))


def _either(variables: dict[str, str], name: str) -> str:
    """As Python reads it: lower case first, and an empty one counts as unset."""
    return variables.get(name, "") or variables.get(name.upper(), "")


def _entries(variables: dict[str, str]) -> list[str]:
    return _listed(_either(variables, "no_proxy"))


def _listed(value: str) -> list[str]:
    return [entry.strip().lower() for entry in value.split(",") if entry.strip()]


def _bypassed(host: str, entries: list[str]) -> bool:
    """Whether Python's urllib goes straight to `host`."""
    names = [entry.lstrip(".") for entry in entries]
    return entries == ["*"] or any(host == name or host.endswith("." + name) for name in names if name)


def _own_hosts(facts: Facts) -> list[str]:
    """This machine's addresses, without those of bridges for containers and virtual machines (docker0, virbr0)."""
    network = facts.network.value
    routes = {route.interface for route in network.default_routes.value or ()} if network else set[str]()
    found = (network.interfaces.value or ()) if network else ()
    inner = {item.ipv4 for item in found if item.kind == "bridge" and item.name not in routes}
    return [address for address in system_of(facts).own_addresses if address not in inner]


def _run_hosts(facts: Facts, variables: dict[str, str]) -> list[str]:
    """Hosts that processes of a run call: this machine by its addresses, and the head."""
    hosts = _own_hosts(facts)[:4]
    for name in _HOSTS_OF_A_RUN:
        host = re.sub(r"^\w+://(?:[^/@]*@)?", "", variables.get(name, "")).rsplit(":", 1)[0]
        hosts += [host.lower()] if host not in ("", "auto", "local") else []
    return list(dict.fromkeys(hosts))


def _repaired(facts: Facts, variables: dict[str, str]) -> str:
    """A value for `no_proxy` that covers a run. Address ranges stay in it, for the programs that understand them."""
    given = _listed(f"{variables.get('no_proxy', '')},{variables.get('NO_PROXY', '')}")
    kept = [entry for entry in given if not _odd(entry) or _is_range(entry) or entry.startswith("*.")]
    plain = [re.sub(r"^\*+", "", entry) for entry in kept]
    return ",".join(dict.fromkeys([*plain, *_LOOPBACK, *_run_hosts(facts, variables)]))


@check("SYS040", "The proxy is not used for local services", needs=("environ",), playbook="proxy-without-no-proxy",
       caused_by=("SYS041",))  # fmt: skip
def proxy(facts: Facts) -> Verdict:
    """Looks at whether calls to this machine and to the head would go to the proxy.

    What it does:
        With `http_proxy`, `https_proxy` or `all_proxy` set, warns when `no_proxy` does not cover localhost and
        127.0.0.1, or this machine's own addresses and the head that the environment names (MASTER_ADDR, RAY_ADDRESS,
        VLLM_HOST_IP). Judged as Python's urllib does, which understands names and suffixes only.

    Why it matters:
        Trainers reach rollout engines, reward servers and Ray's dashboard over HTTP. With a proxy in between these
        calls end in 403, 502 or 503 from the proxy, which looks as if the engine were broken.
    """
    variables = need(facts.environ)
    used = [name for name in _PROXIES if _either(variables, name)]
    if not used:
        return skip("no proxy is set")
    entries = _entries(variables)
    proof = (
        evidence(f"environ.{used[0]}", "set", "environment"),
        evidence("environ.no_proxy", ",".join(entries) or "not set", "environment"),
    )
    open_hosts = [host for host in _LOOPBACK if not _bypassed(host, entries)]
    others = [host for host in _run_hosts(facts, variables) if not _bypassed(host, entries)]
    params = {"no_proxy": _repaired(facts, variables)}
    if open_hosts or others:
        missing = ", ".join([*open_hosts, *others])
        found = f"{', '.join(used)} set and {missing} not in no_proxy"
        return warn("local services outside the proxy", found, evidence=proof, params=params)
    return passed("no_proxy covers the local services", evidence=proof)


@check("SYS041", "no_proxy is written so that Python understands it", needs=("environ",),
       playbook="proxy-without-no-proxy",
       problem="no_proxy has entries that Python does not understand")  # fmt: skip
def no_proxy_form(facts: Facts) -> Verdict:
    """Looks for entries of `no_proxy` that some programs understand and Python's HTTP libraries do not.

    What it does:
        Warns about address ranges (`10.0.0.0/8`: requests and curl know them, urllib, aiohttp and httpx do not),
        wildcards (`*.example.com`, `10.*`), entries with a scheme, and about `no_proxy` and `NO_PROXY` that differ.
        A range is only noted where localhost, this machine and the head that the environment names are listed, too.

    Why it matters:
        The same address is then reached directly by one library and through the proxy by another, so that a check by
        hand with curl works and the run does not.
    """
    variables = need(facts.environ)
    if not any(_either(variables, name) for name in _PROXIES):
        return skip("no proxy is set")
    entries = _entries(variables)
    if not entries:
        return skip("no_proxy is not set")
    lower, upper = variables.get("no_proxy", ""), variables.get("NO_PROXY", "")
    lines = [f"{entry!r}: {_odd(entry)}" for entry in entries if _odd(entry) and entries != ["*"]]
    if lower and upper and _set(lower) != _set(upper):
        lines.append("no_proxy and NO_PROXY differ; Python takes the first, Go programs may take the second")
    proof = (evidence("environ.no_proxy", ",".join(entries), "environment"),)
    hosts = [*_LOOPBACK, *_run_hosts(facts, variables)]
    ranges = [entry for entry in entries if _is_range(entry)]
    if lines and len(lines) == len(ranges) and all(_bypassed(host, entries) for host in hosts):
        return info(f"urllib, aiohttp and httpx do not understand the ranges in no_proxy: {', '.join(ranges)}",
                    evidence=proof)  # fmt: skip
    if lines:
        params = {"no_proxy": _repaired(facts, variables)}
        rest = tuple(lines[1:])
        return warn("plain names and addresses in no_proxy", lines[0], details=rest, evidence=proof, params=params)
    return passed("no_proxy holds plain names and addresses", evidence=proof)


def _set(value: str) -> set[str]:
    return {entry.strip().lower() for entry in value.split(",") if entry.strip()}


def _odd(entry: str) -> str:
    """What is unusual about an entry, or nothing."""
    if "://" in entry:
        return "an entry with a scheme matches nothing"
    if "*" in entry:
        return "a wildcard is not understood; write the suffix"
    if _is_range(entry):
        return "an address range is not understood by urllib, aiohttp and httpx"
    if " " in entry or ";" in entry:
        return "entries are separated by commas"
    return ""


def _is_range(entry: str) -> bool:
    address, slash, _ = entry.partition("/")
    try:
        ip_address(address)
    except ValueError:
        return False
    return bool(slash)


@check("SYS042", "Python reads and writes UTF-8", needs=("system",), playbook="locale-not-utf8")
def locale(facts: Facts) -> Verdict:
    """Looks at the variables that choose Python's text encoding.

    What it does:
        Python uses UTF-8 in the locale C or POSIX by itself. Warns when another locale names another encoding, when
        PYTHONUTF8=0 takes UTF-8 away from the C locale, or when PYTHONIOENCODING is not UTF-8.

    Why it matters:
        Prompts and answers hold characters that other encodings lack: reading a data set or logging a sample stops with
        UnicodeDecodeError or UnicodeEncodeError, on some nodes only.
    """
    setting = need(facts.system).locale
    chosen = setting.lc_all or setting.lc_ctype or setting.lang
    io = setting.pythonioencoding.split(":")[0].lower()
    codeset = re.sub(r"@.*", "", chosen.partition(".")[2]).lower()
    proof = (evidence("system.locale", chosen or "not set", "environment"),)
    if io and io not in _UTF8:
        return warn("PYTHONIOENCODING utf-8", setting.pythonioencoding, evidence=proof)
    if setting.pythonutf8 == "1":
        return passed("Python uses UTF-8 (PYTHONUTF8=1)", evidence=proof)
    if codeset and codeset not in _UTF8 and chosen not in ("C", "POSIX"):
        return warn("a UTF-8 locale", f"{chosen}, whose encoding is {codeset}", evidence=proof)
    if setting.pythonutf8 == "0" and chosen in ("", "C", "POSIX"):
        return warn("UTF-8 in the C locale", f"PYTHONUTF8=0 with {chosen or 'no locale'}", evidence=proof)
    return passed(f"Python uses UTF-8 ({chosen or 'no locale set'})", evidence=proof)


@check(
    "SYS034",
    "Files that are made here can be read by those who share them",
    needs=("system.process.umask",),
    playbook="umask-private",
    problem="New files cannot be read by those who share them",
)
def umask(facts: Facts) -> Verdict:
    """Reads the file mode creation mask.

    What it does:
        Notes a mask that takes the group's right to read away, on a machine where the user is not root.

    Why it matters:
        Checkpoints, caches and logs of a shared project then belong to one person: colleagues, and services that run
        under another name, get "Permission denied" later.
    """
    process = value_or(need(facts.system).process, ProcessFacts())
    mask = need(process.umask)
    proof = (evidence("system.process.umask", f"{mask:03o}", "/proc/self/status"),)
    if mask & 0o040 and process.uid != 0:
        return info(f"umask {mask:03o}: files of this run can be read by this user only", evidence=proof)
    return passed(f"umask {mask:03o}", evidence=proof)
