"""Collects which NCCL torch will load, settings hidden in files, files that variables name, and plug-ins."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from rlcheck.facts.base import Fact, MissingKind, known, missing, value_or
from rlcheck.facts.nccl import ConfFile, ConfSetting, DebugFile, NamedFile, NcclFacts, NcclPlugin
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.nccl_library import (
    ld_library_path,
    libraries,
    site_directories,
    system_directories,
    torch_linkage,
)

_CONF_LIMIT = 1 << 18
_SETTING_LIMIT = 500
_NETWORK_FS = frozenset({
    "nfs", "nfs4", "lustre", "ceph", "cifs", "smb3", "smbfs", "gpfs", "beegfs", "afs", "glusterfs", "9p", "panfs",
    "wekafs", "fuse", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.goofys", "fuse.juicefs", "fuse.ceph", "orangefs",
})  # fmt: skip
_FILE_VARIABLES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG_PATH",
                   "NCCL_TUNER_CONFIG_FILE", "VLLM_NCCL_SO_PATH", "SGLANG_NCCL_SO_PATH")  # fmt: skip
_SECRETS = frozenset({"NCCL_PSK"})
_PLUGIN = re.compile(r"lib[nr]ccl-(net|tuner|profiler|env|gin|rma)(?:-([\w.-]+?))?\.so(?:\.\d+)*")
_PLUGIN_HOMES = ("/opt/amazon/ofi-nccl/lib", "/opt/amazon/ofi-nccl/lib64", "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
                 "/opt/aws-ofi-nccl/lib", "/opt/amazon/aws-ofi-nccl/lib", "/usr/local/gib/lib64",
                 "/usr/local/nvidia/lib64", "/opt/hpcx/nccl_rdma_sharp_plugin/lib")  # fmt: skip
_TOPOLOGY = "/var/run/nvidia-topologyd/virtualTopology.xml"
_IMEX = "/dev/nvidia-caps-imex-channels"


def collect(ctx: ProbeContext) -> NcclFacts:
    """The NCCL section of the facts."""
    sites = site_directories(ctx)
    found = libraries(ctx, sites)
    conf_files = _conf_files(ctx)
    environ = {setting.name: setting.value for file in reversed(conf_files) for setting in value_or(file.settings, ())}
    environ.update(ctx.environ)
    return NcclFacts(
        libraries=found,
        torch=torch_linkage(ctx, sites, found),
        conf_files=conf_files,
        named_files=_named_files(ctx, environ),
        debug_file=_debug_file(ctx, environ),
        plugins=_plugins(ctx),
        imex_channel=bool(ctx.list_dir(_IMEX).value),
        topology_file=ctx.exists(_TOPOLOGY),
    )


def _home(ctx: ProbeContext) -> str:
    """The home directory in the user database, which NCCL asks, or $HOME for users that are not in the file."""
    uid = str(os.getuid())
    for line in value_or(ctx.read_text("/etc/passwd"), "").splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and fields[2] == uid:
            return fields[5]
    return ctx.environ.get("HOME", "")


def _conf_files(ctx: ProbeContext) -> tuple[ConfFile, ...]:
    """The files of NCCL, then those of RCCL, in the order in which they are read; the first to name a variable wins."""
    named = ctx.environ.get("NCCL_CONF_FILE", "")
    home = _home(ctx)
    places = [(named, "NCCL_CONF_FILE")] if named else [(f"{home}/.nccl.conf", "home"), (f"{home}/.rccl.conf", "home")]
    places += [("/etc/nccl.conf", "system"), ("/etc/rccl.conf", "system")]
    return tuple(_conf_file(ctx, path, origin) for path, origin in places if _worth(ctx, path, origin))


def _worth(ctx: ProbeContext, path: str, origin: str) -> bool:
    return bool(path) and (origin == "NCCL_CONF_FILE" or ctx.exists(path))


def _conf_file(ctx: ProbeContext, path: str, origin: str) -> ConfFile:
    text = ctx.read_text(path, _CONF_LIMIT)
    if text.value is None:
        return ConfFile(path=path, origin=origin, settings=Fact(missing=text.missing))
    return parse_conf(path, origin, text.value)


def parse_conf(path: str, origin: str, text: str) -> ConfFile:
    """A configuration file as NCCL reads it: everything before the first `=` is the name, nothing is trimmed."""
    settings: list[ConfSetting] = []
    skipped: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.partition("=")
        if line.startswith("#") or not line.strip():
            continue
        if not equals:
            skipped.append(number)
        elif len(settings) < _SETTING_LIMIT:
            value = "***" if name.strip() in _SECRETS else value[:1023]
            settings.append(ConfSetting(name=name[:1023], value=value, line=number))
    return ConfFile(path=path, origin=origin, settings=known(tuple(settings)), skipped=tuple(skipped[:50]))


def _network_paths(ctx: ProbeContext, paths: Iterable[str]) -> set[str]:
    """Those of `paths` that lie on a file system that can hang, judged by the mount table alone."""
    mounts: list[tuple[str, str]] = []
    for line in value_or(ctx.read_text("/proc/self/mounts"), "").splitlines():
        words = line.split(" ")
        if len(words) >= 3:
            mounts.append((words[1].replace("\\040", " ").rstrip("/"), words[2]))
    slow: set[str] = set()
    for path in paths:
        holding = [(mount, kind) for mount, kind in mounts if path == mount or path.startswith(mount + "/")]
        if holding and max(holding, key=lambda item: len(item[0]))[1] in _NETWORK_FS:
            slow.add(path)
    return slow


def _look(ctx: ProbeContext, paths: list[str]) -> dict[str, dict[str, object]]:
    """Existence, access and free space of each path; those on network file systems through a child with a deadline."""
    slow = _network_paths(ctx, paths)
    looked = {path: _look_here(ctx, path) for path in paths if path not in slow}
    if slow:
        for line in ctx.child("path_facts.py", {"paths": sorted(slow)}, timeout_s=2.0):
            if isinstance(line, dict) and isinstance(line.get("path"), str):  # pyright: ignore[reportUnknownMemberType]
                looked[line["path"]] = line
    return looked


def _look_here(ctx: ProbeContext, path: str) -> dict[str, object]:
    real = ctx.path(path)
    facts: dict[str, object] = {"exists": os.path.exists(real) if "\0" not in real else False}
    facts["readable"] = ctx.access(path, os.R_OK)
    facts["writable"] = ctx.access(path, os.W_OK | os.X_OK)
    try:
        stat = os.statvfs(real)
        facts["free_bytes"] = stat.f_bavail * stat.f_frsize
    except (OSError, ValueError):
        facts["free_bytes"] = -1
    return facts


def _named_files(ctx: ProbeContext, environ: dict[str, str]) -> tuple[NamedFile, ...]:
    named = [(variable, environ[variable]) for variable in _FILE_VARIABLES if environ.get(variable)]
    looked = _look(ctx, [path for _, path in named if path.startswith("/")])
    return tuple(_named_file(variable, path, looked) for variable, path in named)


def _named_file(variable: str, path: str, looked: dict[str, dict[str, object]]) -> NamedFile:
    if not path.startswith(("/", "~")):
        exists = missing(MissingKind.UNSUPPORTED, f"{path}: relative, so it depends on where the run starts")
        return NamedFile(variable=variable, path=path, exists=exists)
    facts = looked.get(path)
    tilde = path.startswith("~")
    if tilde or facts is None:
        late = missing(MissingKind.TIMEOUT, f"{path}: its file system did not answer")
        return NamedFile(variable=variable, path=path, exists=known(False) if tilde else late, tilde=tilde)
    return NamedFile(
        variable=variable, path=path, exists=known(facts["exists"] is True), readable=facts["readable"] is True
    )


def _debug_file(ctx: ProbeContext, environ: dict[str, str]) -> Fact[DebugFile]:
    path = environ.get("NCCL_DEBUG_FILE", "")
    if not path:
        return missing(MissingKind.ABSENT, "NCCL_DEBUG_FILE is not set")
    directory = os.path.dirname(path)
    if not directory.startswith("/"):
        unknown = missing(MissingKind.UNSUPPORTED, f"{path}: relative, so it depends on where the run starts")
        return known(DebugFile(path=path, directory=directory, writable=unknown, free_bytes=unknown))
    facts = _look(ctx, [directory]).get(directory)
    if facts is None:
        late = missing(MissingKind.TIMEOUT, f"{directory}: its file system did not answer")
        return known(DebugFile(path=path, directory=directory, writable=late, free_bytes=late))
    free = facts["free_bytes"]
    known_free = known(free) if isinstance(free, int) and free >= 0 else missing(MissingKind.ERROR, "no statvfs")
    return known(
        DebugFile(path=path, directory=directory, writable=known(facts["writable"] is True), free_bytes=known_free)
    )


def _plugins(ctx: ProbeContext) -> tuple[NcclPlugin, ...]:
    """Plug-ins where the linker looks, and in the places where the clouds install them."""
    directories = dict.fromkeys((*ld_library_path(ctx), *system_directories(ctx), *_PLUGIN_HOMES))
    slow = _network_paths(ctx, directories)
    found: dict[tuple[str, str], NcclPlugin] = {}
    for directory in directories:
        for name in [] if directory in slow else value_or(ctx.list_dir(directory), []):
            match = _PLUGIN.fullmatch(name) if "ccl-" in name else None
            if match:
                plugin = NcclPlugin(kind=match[1], suffix=match[2] or "", path=f"{directory}/{name}")
                found.setdefault((plugin.kind, plugin.suffix), plugin)
    return tuple(found.values())
