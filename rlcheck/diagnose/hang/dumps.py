"""Reads flight-recorder dumps of torch.distributed: pickles of plain values, or JSON; nothing in them is ever run."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rlcheck.facts.flight import Call, Dump

MOST_BYTES = 256 << 20
"""A larger file is not read: the recorder's default of 2,000 entries makes a few MB."""
MOST_ENTRIES = 200_000
_MOST_RANKS = 1 << 20
_MOST_GROUPS = 10_000
_PAIR = re.compile(r"(send|recv)\s*(\d+)\s*(->|<-)\s*(\d+)")


class NoDump(ValueError):
    """Why a file cannot be read as a dump, in words."""


class _Plain(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Refuse every class: dumps hold plain values alone."""
        raise NoDump(f"it names {module_name}.{global_name}, which a dump of plain values does not")


def looks_like_dump(start: bytes) -> bool:
    """Whether a file that begins like this can be a dump: a pickle's mark, or JSON, and the recorder's own words."""
    pickled = start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05"
    return (pickled or start.lstrip()[:1] == b"{") and any(
        word in start for word in (b"pg_config", b"pg_status", b"nccl_version", b"collective_seq_id")
    )


def read(path: str, rank: int | None = None) -> Dump:
    """The dump in PATH. RANK: whose; None: by the file's name and the groups that it is in.

    Raises:
        NoDump: it is none, damaged, too large, or does not say of which rank it is.
    """
    try:
        if os.path.getsize(path) > MOST_BYTES:
            raise NoDump(f"it is larger than {MOST_BYTES >> 20} MB")
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES)
    except OSError as error:
        raise NoDump(f"it cannot be read: {error.strerror}") from None
    return parse(data, path, rank)


def parse(data: bytes, path: str, rank: int | None = None) -> Dump:
    """The dump that DATA is, which came from PATH; RANK as of `read`.

    Raises:
        NoDump: as of `read`.
    """
    value = plain(data)
    groups, names = _groups(value.get("pg_config"))
    calls = _calls(value.get("entries"))
    if not groups and not calls:
        raise NoDump("it holds no process group and no call")
    whose = _rank(path, groups) if rank is None else rank
    enqueued = _enqueued(value.get("pg_status"), groups, value.get("entries"))
    return Dump(path=path, rank=whose, groups=groups, names=names, calls=calls, enqueued=enqueued)


def plain(data: bytes) -> Mapping[str, Any]:
    """The flight record in DATA, a pickle of plain values or JSON, as the recorder has it.

    Raises:
        NoDump: it is none, or damaged.
    """
    try:
        value = _Plain(io.BytesIO(data)).load() if data[:1] == b"\x80" else json.loads(data)
    except NoDump:
        raise
    except Exception as error:  # a damaged or hostile pickle raises anything
        raise NoDump(f"it is damaged: {' '.join(str(error).split())[:120] or type(error).__name__}") from None
    if not isinstance(value, Mapping):
        raise NoDump("it holds no flight record")
    return cast(Mapping[str, Any], value)


def _groups(config: Any) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    groups, names = dict[str, tuple[int, ...]](), dict[str, str]()
    for number, (key, one) in enumerate(_items(config)):
        if number >= _MOST_GROUPS:
            break
        ranks = _ranks(_of(one, "ranks"))
        if ranks:
            groups[key] = ranks
            names[key] = str(_of(one, "desc") or _of(one, "name") or key)[:80]
    return groups, names


def _ranks(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return ()
    if not isinstance(value, list | tuple):
        return ()
    listed = cast(Sequence[Any], value)[:_MOST_RANKS]
    return tuple(rank for rank in listed if isinstance(rank, int) and 0 <= rank < _MOST_RANKS)


def _calls(entries: Any) -> tuple[Call, ...]:
    if not isinstance(entries, list | tuple):
        return ()
    found: list[Call] = []
    for order, entry in enumerate(cast(Sequence[Any], entries)[-MOST_ENTRIES:]):
        if isinstance(entry, Mapping):
            found.append(_call(cast(Mapping[str, Any], entry), order))
    return tuple(found)


def _call(entry: Mapping[str, Any], order: int) -> Call:
    name = str(entry.get("profiling_name") or "?")[:200]
    pair = _PAIR.search(name)
    return Call(
        group=_key_of(entry),
        desc=_desc_of(entry),
        number=_int(entry.get("collective_seq_id", entry.get("seq_id"))),
        name=name.partition(" ")[0].removeprefix("nccl:").removeprefix("gloo:"),
        state=str(entry.get("state") or ""),
        sizes=_sizes(entry.get("input_sizes")),
        dtypes=_words(entry.get("input_dtypes")),
        peer=int(pair.group(4)) if pair and len(pair.group(4)) < 8 else None,
        sends=pair is not None and pair.group(1) == "send",
        created_ns=_int(entry.get("time_created_ns")),
        finished_ns=_int(entry.get("time_discovered_completed_ns")),
        order=order,
        done=entry.get("retired") is True,
        frames=_frames(entry.get("frames")),
    )


def _named(entry: Mapping[str, Any]) -> Sequence[Any]:
    """The group's key and what the job calls it, as far as they are there."""
    group: Any = entry.get("process_group")
    return cast(Sequence[Any], group) if isinstance(group, list | tuple) else ()


def _key_of(entry: Mapping[str, Any]) -> str:
    named = _named(entry)
    return str(named[0] if named else entry.get("process_group", entry.get("pg_id", "")))[:200]


def _desc_of(entry: Mapping[str, Any]) -> str:
    named = _named(entry)
    return str(named[1])[:80] if len(named) > 1 else ""


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list | tuple):
        return ()
    shapes = cast(Sequence[Any], value)[:64]
    return tuple(
        tuple(_int(size) for size in cast(Sequence[Any], shape)[:16])
        for shape in shapes
        if isinstance(shape, list | tuple)
    )


def _words(value: Any) -> tuple[str, ...]:
    return tuple(str(one)[:40] for one in cast(Sequence[Any], value)[:64]) if isinstance(value, list | tuple) else ()


def _frames(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    found: list[str] = []
    for frame in cast(Sequence[Any], value)[:32]:
        place = os.path.basename(str(_of(frame, "filename") or ""))
        found.append(f"{place}:{_int(_of(frame, 'line'))} in {_of(frame, 'name')}"[:160])
    return tuple(found)


def _enqueued(status: Any, groups: Mapping[str, tuple[int, ...]], entries: Any) -> dict[str, int]:
    """`pg_status` counts by the number that the rank's own process gave a group; entries say which group that is.

    Where none does, groups are numbered in the order in which they were made, as their names are.
    """
    numbers = {_int(key): _int(_of(one, "last_enqueued_collective"), -1) for key, one in _items(status)}
    by_number: dict[int, str] = {}
    pointed: set[str] = set()
    for entry in cast(Sequence[Any], entries) if isinstance(entries, list | tuple) else ():
        if isinstance(entry, Mapping):
            known = cast(Mapping[str, Any], entry)
            by_number[_int(known.get("pg_id"), -1)] = _key_of(known)
            if known.get("is_p2p"):
                pointed.add(_key_of(known))
    if len(numbers) == len(groups) and all(key.isdigit() for key in groups):
        by_number = dict(zip(sorted(numbers), sorted(groups, key=int), strict=True)) | by_number
    found = {by_number[number]: last for number, last in numbers.items() if number in by_number}
    # Point-to-point operations count there as well, and are numbered otherwise.
    return {key: last for key, last in found.items() if key not in pointed}


def _rank(path: str, groups: Mapping[str, tuple[int, ...]]) -> int:
    """Whose dump PATH is: a number of its name that all its groups have as a rank, the last one first."""
    common = set[int].intersection(*(set(ranks) for ranks in groups.values())) if groups else None
    numbers = [int(digits) for digits in reversed(re.findall(r"\d+", os.path.basename(path))) if len(digits) < 8]
    for number in numbers:
        if common is None or number in common:
            return number
    if common is not None and len(common) == 1:
        return common.pop()
    raise NoDump("neither its name nor its groups say of which rank it is; name it after the rank, such as dump_3")


def _items(value: Any) -> list[tuple[str, Any]]:
    return (
        [(str(key), one) for key, one in cast(Mapping[Any, Any], value).items()] if isinstance(value, Mapping) else []
    )


def _of(value: Any, key: str) -> Any:
    return cast(Mapping[str, Any], value).get(key) if isinstance(value, Mapping) else None


def _int(value: Any, otherwise: int = 0) -> int:
    if isinstance(value, str) and value.isdigit() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) else otherwise
