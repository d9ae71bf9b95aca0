"""The files of one training checkpoint: a manifest, written last, that lists all others with size and CRC-32.

A directory without manifest is a checkpoint that was never finished; a file that differs from it is a broken one.
"""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainer.fsdp.rank import fail_together

MANIFEST = "train_state.json"
FORMAT = 1
_CHUNK_BYTES = 1 << 22


def own_files(directory: Path, rank: int) -> list[Path]:
    """What RANK has written under DIRECTORY: its DCP shards, its random state; on rank 0 also DCP's metadata."""
    found = [*directory.glob(f"*/__{rank}_*.distcp"), *directory.glob(f"rng_{rank:05d}.pt")]
    if rank == 0:
        found += directory.glob("*/.metadata")
    return sorted(found)


def describe(path: Path) -> dict[str, int]:
    """Size and CRC-32 of the file PATH."""
    crc, size = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return {"bytes": size, "crc32": crc}


def write_manifest(directory: Path, facts: dict[str, Any]) -> None:
    """Seal DIRECTORY (collective): every rank describes its own files, rank 0 writes the manifest with FACTS.

    Raises:
        UserError: a file cannot be read or written.
    """
    rank, problem, mine = dist.get_rank(), None, dict[str, dict[str, int]]()
    try:
        mine = {str(path.relative_to(directory)): describe(path) for path in own_files(directory, rank)}
    except OSError as error:
        problem = f"checkpoint {directory}: {error}"
    fail_together(problem)
    parts: list[dict[str, dict[str, int]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    if rank == 0:
        files = {name: facts_of for part in parts for name, facts_of in part.items()}
        try:
            _write(directory / MANIFEST, {"format": FORMAT, **facts, "files": files})
        except OSError as error:
            problem = f"checkpoint {directory}: {error}"
    fail_together(problem)


def _write(path: Path, document: dict[str, Any]) -> None:
    """Write PATH in one stroke: a reader sees all of it or none."""
    temporary = path.with_suffix(".part")
    with temporary.open("w") as file:
        json.dump(document, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of DIRECTORY, with every file held against it (collective: ranks share the reading).

    Raises:
        UserError: naming the file that is missing, short or changed.
    """
    problem, document = None, dict[str, Any]()
    try:
        document = json.loads((directory / MANIFEST).read_text())
        rank, world = dist.get_rank(), dist.get_world_size()
        for name, expected in sorted(document["files"].items())[rank::world]:
            problem = problem or _compare(directory / name, expected)
        if document["format"] != FORMAT:
            problem = f"{directory / MANIFEST}: format {document['format']}, this version reads {FORMAT}"
    except FileNotFoundError as error:
        problem = f"checkpoint {directory} is not complete ({error.filename} is missing): resume from an older one"
    except (OSError, ValueError, KeyError) as error:
        problem = f"{directory / MANIFEST} cannot be read ({error}): resume from an older checkpoint"
    fail_together(problem)
    return document


def _compare(path: Path, expected: dict[str, int]) -> str | None:
    found = describe(path)
    if found == expected:
        return None
    return (
        f"checkpoint file {path} is damaged (expected {expected['bytes']} bytes with CRC-32 {expected['crc32']:08x},"
        f" found {found['bytes']} with {found['crc32']:08x}): resume from an older checkpoint"
    )
