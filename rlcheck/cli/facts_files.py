"""Facts on disk: those of `--facts`, those of `--record`, and a document for what a command has measured."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from rlcheck import __version__
from rlcheck.errors import UserError
from rlcheck.facts.base import Fact
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.redact import redact_bytes

_FACTS_LIMIT_BYTES = 256 << 20


def document(**sections: Fact[Any]) -> Facts:
    """Return a document of this machine with nothing but SECTIONS in it."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return msgspec.structs.replace(
        Facts(rlcheck_version=__version__, node=socket.gethostname(), collected_at=now), **sections
    )


def recorded(path: Path) -> tuple[Facts, ...]:
    """Return the documents in a facts file; `-` is standard input.

    Raises:
        UserError: the file cannot be read, or is no facts file.
    """
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(_FACTS_LIMIT_BYTES)
        else:
            with open(path, "rb") as file:
                data = file.read(_FACTS_LIMIT_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"--facts {path}: {getattr(error, 'strerror', None) or error}") from None
    return decode(data, str(path))


def recorded_with(path: Path, sections: tuple[str, ...], lacking: str) -> tuple[Facts, ...]:
    """Return those documents in a facts file that hold one of SECTIONS.

    Raises:
        UserError: the file cannot be used, or none of its documents does; LACKING says what and how to get it.
    """
    nodes = tuple(
        facts for facts in recorded(path) if any(getattr(facts, section).value is not None for section in sections)
    )
    if not nodes:
        raise UserError(f"--facts {path}: {lacking}")
    return nodes


def write_record(path: Path, nodes: Sequence[Facts]) -> None:
    """Keep the facts for `--facts`, secrets removed.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        path.write_bytes(redact_bytes(encode(tuple(nodes)), os.environ))
    except OSError as error:
        raise UserError(f"--record {path}: {error.strerror or error}") from None
    sys.stderr.write(f"wrote {path}; secrets are left out, but read it before you send it\n")


def write_facts(data: bytes, output: Path | None) -> None:
    """Write encoded facts to OUTPUT, or to standard output without one.

    Raises:
        UserError: the file cannot be written.
    """
    if output is None:
        sys.stdout.buffer.write(data)
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror or error}") from None
    sys.stderr.write(f"wrote {output}: {len(data) // 1024} KiB; secrets are left out, but read it before you send it\n")
