"""Writes the index of log signatures from the playbooks: `python -m tests.tools.write_signatures`."""

from __future__ import annotations

import os
import sys

import msgspec

from rlcheck.diagnose.signatures import INDEX, build
from rlcheck.playbook import Library, PlaybookError


def text() -> bytes:
    """The file as it should be.

    Raises:
        PlaybookError: a playbook does not hold to the schema.
    """
    library = Library()
    return msgspec.json.format(msgspec.json.encode(build(library, library.ids())), indent=1) + b"\n"


def main() -> None:
    """Write it; a playbook that cannot be read is left out and named."""
    library, good = Library(), list[str]()
    for playbook_id in library.ids():
        try:
            library.get(playbook_id)
            good.append(playbook_id)
        except PlaybookError as error:
            sys.stderr.write(f"left out: {error}\n")
    encoded = msgspec.json.format(msgspec.json.encode(build(library, good)), indent=1) + b"\n"
    partial = INDEX.with_suffix(f".{os.getpid()}")
    partial.write_bytes(encoded)
    partial.replace(INDEX)


if __name__ == "__main__":
    main()
