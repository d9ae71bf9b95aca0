"""Which proxy variables would catch calls to the addresses of a cluster.

Two kinds of programs read them, in different ways. Python's HTTP libraries (the dashboard's clients, `ray job`,
engines, reward servers) take http_proxy and all_proxy for http:// addresses, in both spellings, and compare no_proxy as
text. gRPC's C core takes grpc_proxy, https_proxy and http_proxy in lower case; Ray tells it to use none of them unless
RAY_grpc_enable_http_proxy is on.

Sources: https://docs.python.org/3/library/urllib.request.html
https://grpc.github.io/grpc/core/md_doc_core_default_http_proxy_mapper.html
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import cast

_HTTP = ("http_proxy", "all_proxy")
_GRPC = ("grpc_proxy", "https_proxy", "http_proxy")
_ON = ("1", "true")


def caught_http(environ: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Variable name → the first of `hosts` that an HTTP call from Python would send to the proxy."""
    import urllib.request as urllib  # not on the path of other commands

    # Python's own reading of no_proxy; typeshed does not know the function, which all platforms have.
    is_spared = cast(Callable[[str, dict[str, str]], bool], getattr(urllib, "proxy_bypass_environment"))  # noqa: B009
    spared = {"no": environ.get("no_proxy", "") or environ.get("NO_PROXY", "")}
    caught = next((host for host in hosts if not is_spared(host, spared)), "")
    if not caught:
        return {}
    names = (lower if environ.get(lower) else lower.upper() for lower in _HTTP)
    return {name: caught for name in names if environ.get(name)}


def caught_grpc(environ: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Variable name → the first of `hosts` that Ray's own calls would send to the proxy; empty unless told to."""
    if environ.get("RAY_grpc_enable_http_proxy", "").lower() not in _ON:
        return {}
    name = next((name for name in _GRPC if environ.get(name)), "")
    spared = environ.get("no_grpc_proxy", "") or environ.get("no_proxy", "")
    caught = next((host for host in hosts if not _is_spared(host, spared)), "")
    return {name: caught} if name and caught else {}


def _is_spared(host: str, spared: str) -> bool:
    """As gRPC's C core reads no_proxy: ends of names, and ranges of addresses."""
    for entry in (entry.strip() for entry in spared.split(",")):
        if entry and (host.lower().endswith(entry.lower()) or _is_in_range(host, entry)):
            return True
    return False


def _is_in_range(host: str, entry: str) -> bool:
    try:
        return "/" in entry and ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
