"""Shared memory."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.resources import num_gpus, ram_bytes
from rlcheck.text import GIB, MIB, size_text

_FLOOR_BYTES = 256 * MIB
_PER_GPU_BYTES = 2 * GIB
# Ray asks for 30 % of memory but is content with this much when /dev/shm is smaller; below it, it goes to the disk.
_RAY_STORE_BYTES = 10 * 10**9
_RAY_SHARE = 0.3


@check("SYS001", "/dev/shm is large enough", needs=("system.shm",), playbook="shm-too-small")
def shm_size(facts: Facts) -> Verdict:
    """Compares the size of /dev/shm with what NCCL, data loaders, the rollout engine and Ray put there.

    What it does:
        Fails below 256 MiB free with two GPUs or more, or when /dev/shm cannot be written. Warns below 2 GiB a GPU, or
        below what keeps Ray's object store in memory (30 % of RAM, at most 10 GB). The demand never exceeds half of
        the memory, which is what Linux gives /dev/shm by itself.

    Why it matters:
        Processes on one machine exchange tensors through /dev/shm, and a container starts with only 64 MB of it. NCCL
        then stops with "No space left on device", a data loader worker dies of SIGBUS, and Ray moves its object store
        to the disk, where every batch is written and read back.
    """
    shm = need(need(facts.system).shm)
    total, free, gpus, ram = need(shm.total_bytes), need(shm.free_bytes), num_gpus(facts), ram_bytes(facts)
    needed = max(_PER_GPU_BYTES * gpus, min(int(_RAY_SHARE * ram), _RAY_STORE_BYTES), _FLOOR_BYTES)
    needed = max(_FLOOR_BYTES, min(needed, ram // 2)) if ram else needed
    more = {
        "evidence": (evidence("system.shm.total_bytes", total, "statvfs /dev/shm"),),
        "params": {"shm_gib": str(max(1, -(-needed // GIB)))},
    }
    room = (
        f"{size_text(free)} free of {size_text(total)} for {gpus} GPUs"
        if gpus
        else f"{size_text(free)} free of {size_text(total)}"
    )
    if shm.writable.value is False:
        return fail(
            "a /dev/shm that can be written",
            f"/dev/shm that is not writable ({shm.fs_type or 'unknown'})",
            headline="/dev/shm cannot be written",
            **more,
        )
    if not total:  # a tmpfs that was mounted with size=0 has no limit, and says 0 of 0
        return passed("/dev/shm has no limit of its own", **more)
    if free < _FLOOR_BYTES and gpus > 1:
        return fail(f"at least {size_text(needed)} of shared memory", room, **more)
    # The kernel's default is half of the memory that it counts itself; a percent less is still that.
    if free < 0.97 * needed:
        return warn(f"at least {size_text(needed)} of shared memory", room, **more)
    if shm.fs_type not in ("tmpfs", "ramfs", ""):
        return warn(
            "/dev/shm in memory (tmpfs)", f"/dev/shm on {shm.fs_type}, a disk", headline="/dev/shm is a disk", **more
        )
    return passed(f"/dev/shm has {room}", **more)
