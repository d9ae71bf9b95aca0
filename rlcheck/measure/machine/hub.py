"""The Hugging Face cache: resolved here as huggingface_hub does, looked at in a child that may hang."""

from __future__ import annotations

import os
import re
from typing import Any, TypeVar

import msgspec

from rlcheck.facts.base import Fact, MissingKind, Struct, absent, known, missing
from rlcheck.facts.hub import CacheContents, Directory, HomeDirectory, HubFacts, PathSetting, TokenFile, WriteTest
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.mount_table import mount_of, read_mounts

T = TypeVar("T")

CHILD_TIMEOUT_S = 3.0
STALE_S = 3600.0
_VARIABLE = re.compile(r"\$(\w+|\{[^}]*\})", re.ASCII)
# What huggingface_hub expands (`~` and `$NAME`) and what is taken literally by the library that reads it.
_EXPANDED = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ASSETS_CACHE", "HF_TOKEN_PATH", "XDG_CACHE_HOME")
_LITERAL = ("HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HF_XET_CACHE", "TRANSFORMERS_CACHE")


def collect(ctx: ProbeContext) -> HubFacts:
    """Where the cache is, whether it can be written, and what a bounded walk finds in it."""
    home = _home(ctx)
    hf_home, hf_home_source = _hf_home(ctx, home)
    cache_dir, cache_source = _first(ctx, home, ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"))
    if not cache_source:
        cache_dir, cache_source = os.path.join(hf_home, "hub"), hf_home_source
    token_path, token_source = _first(ctx, home, ("HF_TOKEN_PATH",))
    token_path = token_path if token_source else os.path.join(hf_home, "token")
    datasets_dir, datasets_source = os.path.join(hf_home, "datasets"), hf_home_source
    if "HF_DATASETS_CACHE" in ctx.environ:
        datasets_dir, datasets_source = ctx.environ["HF_DATASETS_CACHE"], "HF_DATASETS_CACHE"
    tokens: list[dict[str, Any]] = [{"path": token_path}]
    if home.path:
        tokens.append({"path": os.path.join(home.path, ".huggingface", "token"), "read_by_library": False})
    facts = HubFacts(
        uid=os.getuid(),
        cache_dir=_text(cache_dir),
        cache_source=cache_source,
        datasets_dir=_text(datasets_dir),
        datasets_source=datasets_source,
        home_decides=cache_source == "default",
        settings=tuple(_setting(ctx, home, name) for name in (*_EXPANDED, *_LITERAL) if name in ctx.environ),
    )
    return _looked_at(ctx, facts, home, tokens)


def _looked_at(ctx: ProbeContext, facts: HubFacts, home: HomeDirectory, tokens: list[dict[str, Any]]) -> HubFacts:
    """`facts` with what the child found."""
    walk_s = 6.0 if ctx.deep else 0.15
    timeout_s = CHILD_TIMEOUT_S + (walk_s if ctx.deep else 0.0)
    payload = {
        "home": ctx.path(home.path) if home.path else "",
        "cache": _place(ctx, facts.cache_dir),
        "datasets": _place(ctx, facts.datasets_dir),
        "tokens": [{"read_by_library": True, **token, "path": _place(ctx, token["path"])} for token in tokens],
        "max_entries": 500_000 if ctx.deep else 20_000,
        "max_s": walk_s,
        "stale_s": STALE_S,
    }
    found = _by_item(ctx, ctx.child("hub_child.py", payload, timeout_s))
    cache = _part(found, "cache", Directory, timeout_s)
    home_fact = _part(found, "home", HomeDirectory, timeout_s) if home.path else absent("there is no home directory")
    if home_fact.value is not None:
        home_fact = known(
            msgspec.structs.replace(home_fact.value, path=home.path, source=home.source, passwd=home.passwd)
        )
    where = cache.value.real_path if cache.value is not None else facts.cache_dir
    mounts = read_mounts(ctx)
    mount = mount_of(mounts.value, where) if mounts.value is not None else None
    nowhere: Fact[str] = missing(MissingKind.ERROR, "the mount table does not say") if mounts.value else Fact()
    return msgspec.structs.replace(
        facts,
        home=home_fact,
        cache=cache,
        datasets=_part(found, "datasets", Directory, timeout_s),
        write_test=_write_test(found, cache, timeout_s),
        contents=_contents(found, cache, timeout_s),
        tokens=_part(found, "tokens", tuple[TokenFile, ...], timeout_s),
        fs_type=known(mount.fs_type) if mount else (nowhere if mounts.value else Fact(missing=mounts.missing)),
        fs_point=mount.point if mount else "",
        fs_is_network=mount is not None and mount.is_network,
    )


def _write_test(found: dict[str, Any], cache: Fact[Directory], timeout_s: float) -> Fact[WriteTest]:
    if cache.value is not None and not cache.value.is_directory:
        return known(WriteTest(directory=cache.value.nearest, failed_step="create", error="Not a directory"))
    return _part(found, "write_test", WriteTest, timeout_s)


def _contents(found: dict[str, Any], cache: Fact[Directory], timeout_s: float) -> Fact[CacheContents]:
    if cache.value is not None and not cache.value.exists:
        return absent(f"{cache.value.path} does not exist yet")
    return _part(found, "contents", CacheContents, timeout_s)


def _by_item(ctx: ProbeContext, lines: list[Any]) -> dict[str, Any]:
    """The child's lines by name, with the prefix of a fake root taken off again."""
    root = str(ctx.root).rstrip("/")
    found: dict[str, Any] = {}
    for line in lines:
        try:
            text = msgspec.json.encode(line)
            if root:
                text = text.replace(root.encode() + b"/", b"/")
            part = msgspec.json.decode(text, type=_Line)
        except ValueError:  # another shape, or text that no UTF-8 holds
            continue
        found[part.item] = part.value
    return found


class _Line(Struct, frozen=True):
    item: str
    value: Any = None


def _part(found: dict[str, Any], item: str, type_: type[T], timeout_s: float) -> Fact[T]:
    if item not in found:
        return missing(MissingKind.TIMEOUT, f"looking at the cache's file system did not end within {timeout_s:g} s")
    try:
        return known(msgspec.convert(found[item], type_))
    except ValueError as error:
        return missing(MissingKind.ERROR, f"looking at the cache: {error}")


def _home(ctx: ProbeContext) -> HomeDirectory:
    """The home directory as Python's `expanduser` finds it: `HOME`, else the account's."""
    account = _passwd_home(ctx, uid=os.getuid())
    if "HOME" in ctx.environ:
        return HomeDirectory(path=_text(ctx.environ["HOME"]).rstrip("/") or "/", source="HOME", passwd=account)
    return HomeDirectory(path=account, source="passwd" if account else "", passwd=account)


def _passwd_home(ctx: ProbeContext, uid: int | None = None, user: str = "") -> str:
    """The home directory in /etc/passwd; "" for an account that is kept elsewhere (LDAP)."""
    for line in (ctx.read_text("/etc/passwd").value or "").splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and (fields[0] == user if user else fields[2] == str(uid)):
            return fields[5]
    return ""


def _hf_home(ctx: ProbeContext, home: HomeDirectory) -> tuple[str, str]:
    if "HF_HOME" in ctx.environ:
        return _expand(ctx, home, ctx.environ["HF_HOME"]), "HF_HOME"
    if "XDG_CACHE_HOME" in ctx.environ:
        return _expand(ctx, home, os.path.join(ctx.environ["XDG_CACHE_HOME"], "huggingface")), "XDG_CACHE_HOME"
    return _expand(ctx, home, "~/.cache/huggingface"), "default"


def _first(ctx: ProbeContext, home: HomeDirectory, names: tuple[str, ...]) -> tuple[str, str]:
    """The path in the first of these variables that is set (an empty one counts), and its name."""
    for name in names:
        if name in ctx.environ:
            return _expand(ctx, home, ctx.environ[name]), name
    return "", ""


def _setting(ctx: ProbeContext, home: HomeDirectory, name: str) -> PathSetting:
    value = ctx.environ[name]
    resolved = _expand(ctx, home, value) if name in _EXPANDED else value
    return PathSetting(
        name=name,
        value=_text(value),
        resolved=_text(resolved),
        relative=not resolved.startswith("/"),
        has_tilde=value.startswith("~"),
        has_variable="$" in value,
    )


def _expand(ctx: ProbeContext, home: HomeDirectory, path: str) -> str:
    """`expanduser`, then `expandvars`, as huggingface_hub does, with the environment of the context."""
    if path.startswith("~"):
        user, _, rest = path[1:].partition("/")
        directory = _passwd_home(ctx, user=user) if user else home.path
        path = os.path.join(directory, rest).rstrip("/") or "/" if directory else path
    return _VARIABLE.sub(lambda match: ctx.environ.get(match.group(1).strip("{}"), match.group(0)), path)


def _place(ctx: ProbeContext, path: str) -> str:
    """Where `path` really is; a relative one stays relative to the working directory."""
    return ctx.path(path) if path.startswith("/") else _text(path)


def _text(value: str) -> str:
    """`value` without the lone surrogates that stand for bytes that are not UTF-8, and without NUL."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "")
