"""The examined Python environment: interpreter, distributions, compiled extensions, leftovers."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct


class Distribution(Struct, frozen=True):
    """One installed distribution, from the directory that records it.

    `name` is normalized (PEP 503). `requires` and what follows are read only for the RL stack and what it reaches;
    `requires_read` says whether they were. `broken` is why the record cannot be trusted, or "". `damaged` are lines
    `path: what is wrong` of its libraries that are not what RECORD says.
    """

    name: str
    version: str
    location: str
    installer: str = ""
    requires_read: bool = False
    requires_python: str = ""
    requires: tuple[str, ...] = ()
    wheel_tags: tuple[str, ...] = ()
    editable: str = ""
    direct_url: str = ""
    broken: str = ""
    damaged: tuple[str, ...] = ()


class Extension(Struct, frozen=True):
    """A compiled file of a distribution and what the dynamic linker will ask of it, read from the ELF file.

    `needed` are its NEEDED libraries, `unresolved_libs` those of them found nowhere the linker would look.
    `unresolved_symbols` are the mangled c10/at/torch symbols that no library of the installed torch defines (the first
    of them; `num_unresolved_symbols` counts all).
    `cxx11_abi` is "new", "old" or "" when no symbol shows it. `cuda_major` comes from NEEDED libcudart.so.N and the
    like, and is 0 when there is none.
    `uses_numpy_1` says that it was compiled against NumPy 1.x's C API.
    """

    distribution: str
    path: str
    needed: tuple[str, ...] = ()
    unresolved_libs: tuple[str, ...] = ()
    unresolved_symbols: tuple[str, ...] = ()
    num_unresolved_symbols: int = 0
    cxx11_abi: str = ""
    cuda_major: int = 0
    uses_numpy_1: bool = False
    error: str = ""


class TorchFacts(Struct, frozen=True):
    """What torch's files say of its build; torch is never imported. `version_file` is False when there is none."""

    version: str
    location: str = ""
    version_file: bool = True
    cuda: str = ""
    hip: str = ""
    git_version: str = ""
    cxx11_abi: str = ""
    arch_list: tuple[str, ...] = ()
    bundled_nccl: str = ""


class ImportTest(Struct, frozen=True):
    """The outcome of importing one module in a process of its own (`--deep`). `signal` is 0 unless it was killed.

    `last_line` is the last line of the traceback with the cause that the exception names, or what a crash left behind.
    """

    module: str
    seconds: float
    ok: bool
    signal: int = 0
    timed_out: bool = False
    last_line: str = ""


class PythonFacts(Struct, frozen=True):
    """One Python environment.

    `kind` is venv, conda, system or user. `shadowed` maps an import name to the places that provide it when the first
    on `sys.path` is not its distribution's. `owners` maps an import name to the distributions that install files
    below it, when there is more than one. `marker_environment` is what PEP 508 markers are evaluated in.
    `leftovers` are lines `path: what it is`. `pip_config` are lines `source: section.key = value`, credentials masked.
    `platform_tags_libc` is like "glibc 2.36", or "musl". `imports` is absent unless `--deep` was given.
    `shadowing_copies` are names in `shadowed` whose first place is that package again, a checkout in the working
    directory; `hidden_stdlib` maps modules of the standard library to what is imported instead when a program starts
    in the working directory. `unguarded` maps distributions that are required and not installed to `file:line` of an
    import that is made in any case. `moved_from` is where the scripts of a virtual environment look for their Python
    when that is elsewhere; `dead_scripts` are those that find none.
    `errors` maps a part of the examination that broke down to the reason, e.g. "extensions"; that part is then empty.
    """

    executable: str = ""
    version: str = ""
    implementation: str = "cpython"
    prefix: str = ""
    base_prefix: str = ""
    kind: str = ""
    is_doctors_own: bool = True
    externally_managed: bool = False
    platform_tags_libc: str = ""
    sys_path: tuple[str, ...] = ()
    user_site: str = ""
    user_site_enabled: bool = False
    pip_config: tuple[str, ...] = ()
    marker_environment: dict[str, str] = {}
    distributions: tuple[Distribution, ...] = ()
    owners: dict[str, tuple[str, ...]] = {}
    shadowed: dict[str, tuple[str, ...]] = {}
    leftovers: tuple[str, ...] = ()
    conda_packages: dict[str, str] = {}
    extensions: tuple[Extension, ...] = ()
    torch: Fact[TorchFacts] = Fact()
    imports: Fact[tuple[ImportTest, ...]] = Fact()
    shadowing_copies: tuple[str, ...] = ()
    hidden_stdlib: dict[str, str] = {}
    unguarded: dict[str, str] = {}
    moved_from: str = ""
    dead_scripts: tuple[str, ...] = ()
    errors: dict[str, str] = {}
