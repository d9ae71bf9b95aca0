"""NCCL as this machine has it: which libraries there are and which one torch loads, settings in files, plug-ins."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct


class NcclLibrary(Struct, frozen=True):
    """A libnccl.so or librccl.so that a process could load.

    `origin` says how it would be found: LD_PRELOAD, bundled (with the Python environment), LD_LIBRARY_PATH or system.
    `version` is read from the file name or, failing that, from the file; "" when neither tells.
    """

    path: str
    origin: str
    version: str = ""


class TorchLinkage(Struct, frozen=True):
    """How torch's CUDA library finds NCCL.

    `needs_nccl` is False when NCCL was linked into torch statically. `search` is rpath (wins over LD_LIBRARY_PATH),
    runpath (loses against it) or "". `loaded` is the path of the library that the dynamic linker takes, "" when none
    was found, and `loaded_by` the reason: LD_PRELOAD, rpath, LD_LIBRARY_PATH, runpath or system.
    """

    path: str
    needs_nccl: bool = True
    search: str = ""
    loaded: str = ""
    loaded_by: str = ""
    loaded_version: str = ""


class ConfSetting(Struct, frozen=True):
    """One `NAME=value` line of a configuration file. A name with spaces in it is kept as NCCL sees it."""

    name: str
    value: str
    line: int


class ConfFile(Struct, frozen=True):
    """A configuration file that NCCL (or RCCL) reads.

    `origin` is NCCL_CONF_FILE, home or system: earlier ones win, and the environment wins over all. `settings` are
    missing when the file cannot be read. `skipped` are the numbers of lines that are neither comment nor setting.
    """

    path: str
    origin: str
    settings: Fact[tuple[ConfSetting, ...]] = Fact()
    skipped: tuple[int, ...] = ()


class NamedFile(Struct, frozen=True):
    """A file that a variable names. `tilde` says that the path begins with `~`, which NCCL does not expand."""

    variable: str
    path: str
    exists: Fact[bool] = Fact()
    readable: bool = False
    tilde: bool = False


class DebugFile(Struct, frozen=True):
    """Where NCCL_DEBUG_FILE writes: the directory, whether it can be written to, and the room left there."""

    path: str
    directory: str
    writable: Fact[bool] = Fact()
    free_bytes: Fact[int] = Fact()


class NcclPlugin(Struct, frozen=True):
    """A plug-in library that NCCL would find. `kind` is net, tuner, profiler, env, gin or rma; `suffix` names one."""

    kind: str
    suffix: str
    path: str


class NcclFacts(Struct, frozen=True):
    """NCCL on one machine.

    `torch` is absent when the examined environment has no torch built with CUDA or ROCm. `imex_channel` says that a
    multi-node NVLink (IMEX) channel device is there, `topology_file` that the file NCCL loads unasked
    (/var/run/nvidia-topologyd/virtualTopology.xml) is.
    """

    libraries: tuple[NcclLibrary, ...] = ()
    torch: Fact[TorchLinkage] = Fact()
    conf_files: tuple[ConfFile, ...] = ()
    named_files: tuple[NamedFile, ...] = ()
    debug_file: Fact[DebugFile] = Fact()
    plugins: tuple[NcclPlugin, ...] = ()
    imex_channel: bool = False
    topology_file: bool = False
