"""What earlier runs left in the cache, and the space it is on."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.hub.common import age, hub, is_offline, num_models, size
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.hub import CacheContents
from rlcheck.facts.installed import has_gpu
from rlcheck.text import GIB

# The one answer of flock on which the client falls back to soft locks.
_ENOSYS = 38
_STALE_LOCK_S = 3600.0
_INCOMPLETE_WARN_BYTES = 20 * GIB
_FREE_FAIL_BYTES = 2 * GIB
_FREE_WARN_BYTES = 10 * GIB
_FREE_WARN_GPU_BYTES = 50 * GIB
_MIN_INODES = 2000


def _cut(contents: CacheContents) -> tuple[str, ...]:
    """The reservation that goes with every number of a walk that was cut off."""
    return () if contents.complete else (f"only a part of the cache was looked at: {contents.cut_reason}",)


@check(
    "HFC006",
    "No lock file in the cache belongs to another user",
    needs=("hub.contents",),
    playbook="hf-foreign-locks",
    problem="Lock files in the cache belong to others",
)
def foreign_locks(facts: Facts) -> Verdict:
    """Looks for lock files in the cache that this user cannot open for writing.

    What it does:
        Walks .locks in the cache, within limits, and tries the access that a download needs: lock files are opened for
        writing, even to wait for them.

    Why it matters:
        A lock file made by another user stops the download of just that file, with a PermissionError on .locks or with
        a misleading "does not appear to have a file named". In a shared cache it depends on who came first.
    """
    contents = need(hub(facts).contents)
    found = contents.foreign_locks
    if not found.num:
        return passed(f"{contents.locks.num} lock files, all usable", details=_cut(contents))
    if is_offline(facts):
        return skip("offline mode is on: nothing is locked")
    owners = ", ".join(f"uid {uid}" for uid in contents.foreign_lock_uids[:5]) or "unknown owners"
    return warn(
        "lock files that this user can write",
        f"{found.num} of {owners}, e.g. {found.first[0] if found.first else '.locks'}",
        details=(*found.first, *_cut(contents)),
        evidence=(evidence("hub.contents.foreign_locks.num", found.num, hub(facts).cache_dir),),
    )


@check(
    "HFC007",
    "No stale lock file is in the cache",
    needs=("hub.contents", "hub.write_test"),
    playbook="hf-cache-no-locks",
    problem="Lock files of killed jobs block downloads",
)
def stale_soft_locks(facts: Facts) -> Verdict:
    """Counts old lock files in a cache whose file system has no flock.

    What it does:
        With flock, left-over lock files mean nothing and are left alone. Without it a lock file means "held", so
        old ones were left by jobs that were killed.

    Why it matters:
        Each such file makes the next download of the same file wait without end, printing "Still waiting to acquire
        lock" at most. The job looks hung before it has loaded a model.
    """
    contents, test = need(hub(facts).contents), need(hub(facts).write_test)
    if test.lock_errno != _ENOSYS:
        return skip("no soft locks are used here, so a leftover lock file holds nothing")
    if not contents.locks.num or contents.locks.oldest_s < _STALE_LOCK_S:
        return passed("no old lock file", details=_cut(contents))
    return warn(
        "no lock file older than an hour",
        f"{contents.locks.num}, the oldest {age(contents.locks.oldest_s)} old",
        details=(*contents.locks.first, *_cut(contents)),
        evidence=(evidence("hub.contents.locks.num", contents.locks.num, hub(facts).cache_dir),),
        params={"cache_dir": hub(facts).cache_dir},
    )


@check("HFC008", "No abandoned downloads are in the cache", needs=("hub.contents",), playbook="hf-cache-full",
       problem="Abandoned downloads fill the cache")  # fmt: skip
def incomplete(facts: Facts) -> Verdict:
    """Adds up *.incomplete files that were not written to for an hour.

    What it does:
        Counts them and their bytes. Younger ones are taken for downloads that are going on.

    Why it matters:
        They are dead weight: a client that was killed leaves them, and recent versions never resume them. On a quota
        they are often what makes the next download fail.
    """
    contents = need(hub(facts).contents)
    stale = contents.incomplete
    if not stale.num:
        return passed("no abandoned download", details=_cut(contents))
    amount = f"{stale.num} files, {size(stale.num_bytes)}, the oldest {age(stale.oldest_s)} old"
    more = {
        "details": (*stale.first, *_cut(contents)),
        "evidence": (evidence("hub.contents.incomplete.num_bytes", stale.num_bytes, hub(facts).cache_dir),),
        "params": {"cache_dir": hub(facts).cache_dir},
    }
    if stale.num_bytes >= _INCOMPLETE_WARN_BYTES:
        return warn("no abandoned downloads", amount, **more)
    return info(f"abandoned downloads: {amount}", **more)


@check(
    "HFC009",
    "No snapshot in the cache points to a missing file",
    needs=("hub.contents",),
    playbook="hf-broken-snapshots",
)
def broken_snapshots(facts: Facts) -> Verdict:
    """Looks for links of a snapshot without their file, and for files that may not be read.

    What it does:
        Follows every link of every snapshot, within limits. A ref without a snapshot is no fault: the client writes one
        when it has only asked for a file that the model does not have.

    Why it matters:
        Such a model loads on the machine where it was downloaded and not here: a half-copied or half-deleted cache.
        Offline it fails as "cannot find the requested files"; online the file is fetched again on each node.
    """
    contents = need(hub(facts).contents)
    kinds = (
        (contents.dangling, "links to nothing"),
        (contents.unreadable, "files that this user may not read"),
    )
    bad = [(left, what) for left, what in kinds if left.num]
    if not bad:
        return passed(f"snapshots of {contents.num_models} models are whole", details=_cut(contents))
    details = tuple(f"{what}: {name}" for left, what in bad for name in left.first)
    first = next((left.first[0] for left, _ in bad if left.first), "")
    return warn(
        "snapshots with all their files",
        ", ".join(f"{left.num} {what}" for left, what in bad),
        details=(*details, *_cut(contents)),
        evidence=tuple(evidence("hub.contents", f"{left.num} {what}", hub(facts).cache_dir) for left, what in bad),
        params={"repo": _repo_name(first)} if _repo_name(first) else {},
    )


def _repo_name(path: str) -> str:
    """The model that a path in the cache belongs to, or ""."""
    folder = path.partition("/")[0]
    return folder.removeprefix("models--").replace("--", "/") if folder.startswith("models--") else ""


@check("HFC010", "The cache has room for a model", needs=("hub.cache",), playbook="hf-cache-full",
       problem="The cache has little room for models")  # fmt: skip
def free_space(facts: Facts) -> Verdict:
    """Compares the free space and the free inodes under the cache with what models need.

    What it does:
        Reads what this user may still use of the file system. Warns below 50 GiB on a machine with GPUs and below
        10 GiB elsewhere; fails below 2 GiB when nothing is cached yet. A quota may be tighter than this number.

    Why it matters:
        A 7B model in bfloat16 is 15 GB, a 70B model 141 GB, and a download that fills the disk also takes the
        checkpoints with it. The error comes minutes or hours into the job.
    """
    cache = need(hub(facts).cache)
    wanted = _FREE_WARN_GPU_BYTES if has_gpu(facts) else _FREE_WARN_BYTES
    if cache.free_bytes < 0 or cache.total_bytes == 0:  # a tmpfs without a limit says 0 of 0
        return skip("the file system does not say how much is free")
    more = {
        "evidence": (evidence("hub.cache.free_bytes", cache.free_bytes, cache.nearest),),
        "params": {"directory": cache.nearest},
    }
    if 0 <= cache.free_inodes < _MIN_INODES:
        return warn(f"at least {_MIN_INODES} free inodes", f"{cache.free_inodes} in {cache.nearest}", **more)
    if cache.free_bytes >= wanted:
        return passed(f"{size(cache.free_bytes)} free in {cache.nearest}")
    found = f"{size(cache.free_bytes)} in {cache.nearest}"
    if is_offline(facts):
        return info(f"{found} are free; offline mode is on, so nothing is downloaded", **more)
    if cache.free_bytes < _FREE_FAIL_BYTES and not num_models(facts):
        return fail(f"at least {size(_FREE_FAIL_BYTES)} free for a first model", found, **more)
    return warn(f"at least {size(wanted)} free for models", found, **more)
