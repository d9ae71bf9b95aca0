"""Calls of weight sync to a server, as JSON: buckets by their description, pieces of checksums back. No pickle.

A server loads weights only where it runs rltrain's own part, which reads these (`rollout.vllm.extension`,
`rollout.sglang.inside`); the bytes travel apart, as to any engine.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch

from rltrain.workers.sync.broadcast import Address
from rltrain.workers.sync.bucket import Bucket, Entry
from rltrain.workers.sync.checksum import Piece
from rltrain.workers.sync.transport import Descriptor

SGLANG_FORMAT = "rltrain"
"""`load_format` of calls to rltrain's part in SGLang's server."""
_KINDS = ("Tensor", "TypedStorage", "UntypedStorage")
"""Classes of torch that a handle of CUDA IPC names."""


@dataclass(frozen=True)
class Call:
    """What a server is asked: `hello`, `connect`, `load` or `pieces`, and what that needs."""

    name: str
    address: Address | None = None
    first_rank: int = 0
    descriptor: Descriptor | None = None
    names: tuple[str, ...] = ()

    def written(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = {"name": self.name, "first_rank": self.first_rank, "names": list(self.names)}
        if self.address is not None:
            found["address"] = asdict(self.address)
        if self.descriptor is not None:
            found["descriptor"] = _written_descriptor(self.descriptor)
        return found

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Call:
        """What `written` gave."""
        address, descriptor = data.get("address"), data.get("descriptor")
        return cls(
            str(data["name"]),
            None if address is None else Address(**address),
            int(data.get("first_rank", 0)),
            None if descriptor is None else _read_descriptor(descriptor),
            tuple(data.get("names", ())),
        )


def packed_pieces(found: Mapping[str, Sequence[Piece]]) -> dict[str, Any]:
    """Pieces by name, as JSON: their numbers are of 64 bits, so they go as text."""
    return {
        name: [{**asdict(one), "dtype": _dtype_name(one.dtype), "value": str(one.value)} for one in pieces]
        for name, pieces in found.items()
    }


def unpacked_pieces(data: Mapping[str, Any]) -> dict[str, list[Piece]]:
    """What `packed_pieces` gave."""
    return {
        name: [
            Piece(
                dim=one["dim"],
                start=one["start"],
                stop=one["stop"],
                total=one["total"],
                shape=tuple(one["shape"]),
                dtype=_dtype(one["dtype"]),
                value=int(one["value"]),
            )
            for one in pieces
        ]
        for name, pieces in data.items()
    }


def _written_descriptor(descriptor: Descriptor) -> dict[str, Any]:
    bucket = descriptor.bucket
    return {
        "transport": descriptor.transport,
        "version": descriptor.version,
        "location": {key: _written(value) for key, value in descriptor.location.items()},
        "index": bucket.index,
        "num_bytes": bucket.num_bytes,
        "is_last": bucket.is_last,
        "entries": [
            [one.name, list(one.shape), _dtype_name(one.dtype), one.offset_bytes, one.num_bytes]
            for one in bucket.entries
        ],
    }


def _read_descriptor(data: Mapping[str, Any]) -> Descriptor:
    entries = tuple(
        Entry(name, tuple(shape), _dtype(dtype), offset, size) for name, shape, dtype, offset, size in data["entries"]
    )
    bucket = Bucket(data["index"], entries, data["num_bytes"], data["is_last"])
    location = {key: _read(value) for key, value in data["location"].items()}
    return Descriptor(data["transport"], bucket, location, data["version"])


def _written(value: Any) -> Any:
    """Paths and numbers as they are; of a handle of CUDA IPC also bytes, sizes, classes and dtypes."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, tuple | list):
        return {"tuple": [_written(one) for one in cast("Sequence[Any]", value)]}
    if isinstance(value, torch.dtype):
        return {"dtype": _dtype_name(value)}
    if isinstance(value, type):
        return {"class": value.__name__}
    return value


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, inner)] = cast("dict[str, Any]", value).items()
    if kind == "bytes":
        return base64.b64decode(inner)
    if kind == "tuple":
        return tuple(_read(one) for one in inner)
    if kind == "dtype":
        return _dtype(inner)
    if inner not in _KINDS:
        raise ValueError(f"a handle names the class {inner}, which none has")
    return getattr(torch, inner)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"there is no dtype {name}")
    return found
