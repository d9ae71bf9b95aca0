"""Disks: temporary directories, caches, the home directory."""

from __future__ import annotations

from collections.abc import Iterable

from rlcheck.check import Evidence, Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.resources import distribution, num_gpus, places, system_of
from rlcheck.facts.system import Place, ProcessFacts
from rlcheck.text import GIB, MIB, size_text

# session_2026-11-21_02-41-07_123456_1234567/sockets/plasma_store, below Ray's temporary directory.
_RAY_SOCKET_BYTES = len("/session_2026-11-21_02-41-07_123456_1234567/sockets/plasma_store")
_SOCKET_PATH_BYTES = 107
_RAY_FULL = 0.95
_FEW_INODES = 10_000


def _proof(found: Iterable[Place], field: str) -> tuple[Evidence, ...]:
    return tuple(
        evidence(f"system.places[{place.purpose}].{field}", getattr(place, field).value, f"statvfs {place.path}")
        for place in found
    )


def _name(place: Place) -> str:
    chosen = f" (from {place.setting})" if place.setting else ""
    return f"{place.path}{chosen}"


@check("SYS025", "Temporary directories have room", needs=("system",), playbook="ray-disk-full",
       problem="A temporary directory has too little room")  # fmt: skip
def temp_space(facts: Facts) -> Verdict:
    """Looks at the free space of the temporary directory and of Ray's session directory.

    What it does:
        Fails below 256 MiB, warns below 10 GiB or when more than 95 % is in use, which is where Ray stops spilling.

    Why it matters:
        Ray keeps logs, sockets and spilled objects there. Once the disk is 95 % full it refuses to spill, object
        creation fails, and the run ends with OutOfDiskError; a really full disk ends everything.
    """
    looked_at = _measured(facts, "tmp", "ray")
    if not looked_at:
        return unknown("the temporary directories could not be measured")
    worst = min(looked_at, key=lambda place: need(place.free_bytes))
    fullest = max(looked_at, key=_used_share)
    proof = _proof(looked_at, "free_bytes")
    found = f"{size_text(need(worst.free_bytes))} in {_name(worst)}"
    if need(worst.free_bytes) < 256 * MIB:
        return fail("at least 10 GiB for temporary files", found, evidence=proof)
    if _used_share(fullest) > _RAY_FULL:
        share = f"{_used_share(fullest):.1%} in use, {size_text(need(fullest.free_bytes))} free, in {_name(fullest)}"
        return warn("a disk less than 95 % full", share, evidence=proof)
    if need(worst.free_bytes) < 10 * GIB:
        return warn("at least 10 GiB for temporary files", found, evidence=proof)
    return passed(f"temporary files have {found}", evidence=proof)


def _measured(facts: Facts, *purposes: str) -> list[Place]:
    """Those whose room is known. A file system of 0 bytes does not say (tmpfs without a limit, some FUSE ones)."""
    found = places(facts, *purposes)
    return [place for place in found if place.free_bytes.value is not None and place.total_bytes.value != 0]


def _used_share(place: Place) -> float:
    """As Ray counts: what is not available to it is in use."""
    total = value_or(place.total_bytes, 0)
    return 1 - value_or(place.free_bytes, 0) / total if total > 0 else 0.0


@check("SYS026", "File systems have inodes left", needs=("system",), playbook="ray-disk-full",
       problem="A file system is nearly out of inodes")  # fmt: skip
def inodes(facts: Facts) -> Verdict:
    """Looks at the number of files that may still be created where a run writes.

    What it does:
        Warns below 10,000 free inodes, fails below 100, in any directory that was measured.

    Why it matters:
        A file system without free inodes refuses new files with "No space left on device" while `df -h` shows plenty
        of space. Caches of compiled kernels and unpacked environments hold hundreds of thousands of small files.
    """
    # A read-only image (squashfs) has no free inodes, and nobody wants any there.
    counted = [p for p in system_of(facts).places if p.free_inodes.value is not None and p.writable.value is not False]
    if not counted:
        return skip("no file system here counts inodes")
    worst = min(counted, key=lambda place: need(place.free_inodes))
    left = need(worst.free_inodes)
    proof = _proof([worst], "free_inodes")
    if left < _FEW_INODES:
        problem = fail if left < 100 else warn
        return problem(f"at least {_FEW_INODES} free inodes", f"{left} on the disk of {_name(worst)}", evidence=proof,
                       params={"directory": worst.path})  # fmt: skip
    return passed(f"at least {left} more files may be created", evidence=proof)


@check("SYS027", "Ray's socket paths are short enough", needs=("system",), playbook="socket-path-too-long")
def socket_path(facts: Facts) -> Verdict:
    """Adds up the length of the path of Ray's sockets.

    What it does:
        The path of a Unix socket has at most 107 bytes. Ray's are `<temporary directory>/ray/session_…/sockets/
        plasma_store`; 64 of these bytes are Ray's own. Fails when `TMPDIR` or `RAY_TMPDIR` leaves too few.

    Why it matters:
        `ray.init` stops with "AF_UNIX path length cannot exceed 107 bytes". Batch systems and macOS set long
        temporary directories by themselves.
    """
    found = places(facts, "ray")
    if not found:
        return unknown("Ray's temporary directory is not known")
    if distribution(facts, "ray") == "":
        return skip("Ray is not installed")
    path = found[0].path
    length = len(path.encode("utf-8", "surrogatepass")) + _RAY_SOCKET_BYTES
    proof = (evidence("system.places[ray].path", path, found[0].setting or "default"),)
    room = _SOCKET_PATH_BYTES - _RAY_SOCKET_BYTES
    if length > _SOCKET_PATH_BYTES:
        expected = f"socket paths of at most {_SOCKET_PATH_BYTES} bytes, a Ray directory of at most {room}"
        return fail(expected, f"{length} bytes below {_name(found[0])}", evidence=proof)
    return passed(f"Ray's socket paths have {length} of {_SOCKET_PATH_BYTES} bytes", evidence=proof)


@check("SYS028", "Temporary and cache directories can be used", needs=("system",), playbook="temp-dir-unusable")
def temp_usable(facts: Facts) -> Verdict:
    """Looks at whether temporary and compile cache directories can be written, and run programs from.

    What it does:
        Fails when the temporary directory cannot be written, and when GPUs are there and the cache for compiled
        kernels is mounted `noexec`. Warns for a missing `TMPDIR`, a `noexec` temporary directory and a cache that
        cannot be written.

    Why it matters:
        Triton and torch.compile build shared libraries and load them from the cache. From a `noexec` directory the
        loader refuses: "failed to map segment from shared object".
    """
    found = [
        place for place in places(facts, "tmp", "ray", "triton", "inductor") if not _is_in_closed_home(facts, place)
    ]
    if not found:
        return unknown("the temporary directories could not be examined")
    failures, warnings = _unusable(found, num_gpus(facts) > 0)
    lines = tuple(failures + warnings)
    proof = _proof(found, "writable")
    if lines:
        problem = fail if failures else warn
        expected = "temporary and cache directories that can be written and hold programs"
        return problem(expected, lines[0], details=lines[1:], evidence=proof, params=_own_places(facts, found))
    return passed("temporary and cache directories can be written", evidence=proof)


def _own_places(facts: Facts, found: list[Place]) -> dict[str, str]:
    """Parameters for what is in trouble: a place for temporary files, one for the caches, or both."""
    own = _own_caches(facts)
    bad = {place.purpose for place in found if any(_unusable([place], with_gpus=True))}
    # /var/tmp, unless it is what does not work: both are on a local disk nearly everywhere.
    base = "/tmp" if any(p.purpose == "tmp" and p.path.startswith("/var/tmp") for p in found) else "/var/tmp"
    temporary = {"tmpdir": f"{base}/{own['own']}"} if own and bad & {"tmp", "ray"} else {}
    noexec = [place.path for place in found if place.purpose != "ray" and "noexec" in place.options]
    closed = [place.path for place in found if place.purpose in ("tmp", "ray") and place.writable.value is False]
    of_mounts = {name: ", ".join(paths) for name, paths in (("noexec", noexec), ("closed", closed)) if paths}
    return {**temporary, **(own if bad - {"tmp", "ray"} else {}), **of_mounts}


def _is_in_closed_home(facts: Facts, place: Place) -> bool:
    """Whether the place is only closed because the home directory is, which SYS031 reports."""
    home = next((place for place in places(facts, "home") if place.writable.value is False), None)
    return home is not None and not place.setting and place.path.startswith(home.path.rstrip("/") + "/.")


def _unusable(found: list[Place], with_gpus: bool) -> tuple[list[str], list[str]]:
    failures: list[str] = []
    warnings: list[str] = []
    for place in found:
        is_temp = place.purpose in ("tmp", "ray")
        if place.writable.value is False:
            (failures if is_temp else warnings).append(f"{_name(place)} cannot be written")
        elif place.purpose == "tmp" and not place.exists:
            warnings.append(f"{_name(place)} does not exist; Python falls back to /tmp, other programs do not")
        if "noexec" in place.options and place.purpose != "ray":
            (warnings if is_temp or not with_gpus else failures).append(f"{_name(place)} is mounted noexec")
    return failures, warnings


@check("SYS029", "Compile caches have room", needs=("system",), playbook="compile-cache-broken",
       caused_by=("SYS025",),
       problem="Compile caches are on a nearly full disk")  # fmt: skip
def cache_space(facts: Facts) -> Verdict:
    """Looks at the free space for compiled kernels: Triton's, torch.compile's and vLLM's caches.

    What it does:
        Warns below 2 GiB.

    Why it matters:
        A cache that cannot be written stops compilation with "No space left on device" in the middle of the first
        step, or leaves half a file that later runs trip over.
    """
    caches = [place for place in _measured(facts, "triton", "inductor", "vllm") if place.writable.value is not False]
    if not caches:
        return unknown("the cache directories could not be measured")
    tight = [place for place in caches if need(place.free_bytes) < 2 * GIB]
    lines = tuple(f"{size_text(need(place.free_bytes))} for {_name(place)}" for place in tight)
    if tight:
        return warn(
            "at least 2 GiB for compiled kernels",
            lines[0],
            details=lines[1:],
            evidence=_proof(tight, "free_bytes"),
            params=_own_caches(facts),
        )
    return passed("compile caches have room", evidence=_proof(caches, "free_bytes"))


@check("SYS030", "Compile caches are on a local disk", needs=("system",), playbook="compile-cache-broken",
       problem="Compile caches are on a network disk")  # fmt: skip
def cache_network(facts: Facts) -> Verdict:
    """Looks for caches of compiled kernels on a network file system.

    What it does:
        Warns when Triton's or torch.compile's cache is on NFS, Lustre, GPFS or the like, and there is a GPU.

    Why it matters:
        All ranks of all nodes then write and rename the same files at once. Compilation fails now and then with
        "Stale file handle", "Device or resource busy" or a FileNotFoundError for a file that was just written.
    """
    caches = places(facts, "triton", "inductor")
    if not caches:
        return unknown("the cache directories could not be examined")
    remote = [place for place in caches if place.network]
    proof = tuple(
        evidence(f"system.places[{place.purpose}].fs_type", place.fs_type, "/proc/self/mounts") for place in caches
    )
    if not remote:
        return passed("compile caches are on local disks", evidence=proof)
    lines = tuple(f"{_name(place)} on {place.fs_type}" for place in remote)
    if not num_gpus(facts):
        return info(f"{lines[0]}; that fails when several machines compile at once", evidence=proof)
    params = _own_caches(facts)
    return warn(
        "caches of compiled kernels on a local disk", lines[0], details=lines[1:], evidence=proof, params=params
    )


def _own_caches(facts: Facts) -> dict[str, str]:
    """A directory of this user's: a name that all users share belongs to whoever came first."""
    process = system_of(facts).process.value
    return {} if process is None else {"own": f"rl-{process.uid}"}


@check("SYS031", "The home directory can be used", needs=("system",), playbook="home-unusable")
def home(facts: Facts) -> Verdict:
    """Looks at HOME and at whether it can be written.

    What it does:
        Warns when HOME is not set, does not exist, or cannot be written.

    Why it matters:
        Hugging Face, Triton, vLLM, wandb and matplotlib all keep caches below it unless told otherwise; in a container
        started for another user it is often `/`, and the first of them stops with "Permission denied".
    """
    system = need(facts.system)
    found = places(facts, "home")
    is_set = value_or(system.process, ProcessFacts(home_set=True)).home_set
    if not found:
        return unknown("the home directory is not known")
    place = found[0]
    proof = _proof(found, "writable")
    process = value_or(system.process, ProcessFacts(home_set=True))
    params = {"home": f"/tmp/home-{process.uid}"}
    if place.writable.value is False:
        problem = "does not exist and cannot be created" if not place.exists else "cannot be written"
        return warn(
            "a home directory that can be written", f"{_name(place)}, which {problem}", evidence=proof, params=params
        )
    if not is_set:
        return warn("HOME to be set", f"no HOME; the user's is {place.path}", evidence=proof, params=params)
    if place.writable.value is None:
        return unknown(f"{place.path} could not be examined")
    return passed(f"{place.path} can be written", evidence=proof)
