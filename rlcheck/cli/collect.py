"""`rlcheck collect` and `rlcheck merge`: facts on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rlcheck import doctor as clinic
from rlcheck.cli.app import UserError
from rlcheck.cli.env import make_context, read_facts, show_waiting
from rlcheck.facts.document import Facts, FactsError, encode
from rlcheck.probes.gather import gather
from rlcheck.redact import redact_bytes


def run_collect(output: Path | None, timeout_s: float | None, python: str, deep: bool) -> int:
    """Write the facts of this machine, redacted.

    Raises:
        UserError: the output cannot be written.
    """
    facts = gather(make_context(python, deep), clinic.summon(()).probes, timeout_s, show_waiting)
    _write(redact_bytes(encode((facts,)), os.environ), output)
    return 0


def run_merge(files: list[Path], output: Path | None) -> int:
    """Write one file with the nodes of all `files`, in their order.

    Raises:
        UserError: a file cannot be read, or two record the same node.
    """
    nodes: dict[str, Facts] = {}
    for path in files:
        try:
            for facts in read_facts(path):
                if facts.node in nodes:
                    raise UserError(f"{path}: node {facts.node!r} is already in an earlier file; leave one of them out")
                nodes[facts.node] = facts
        except FactsError as error:
            raise UserError(str(error)) from None
    _write(encode(tuple(nodes.values())), output)
    return 0


def _write(data: bytes, output: Path | None) -> None:
    if output is None:
        sys.stdout.buffer.write(data)
        return
    try:
        output.write_bytes(data)
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror or error}") from None
    sys.stderr.write(f"wrote {output}: {len(data) // 1024} KiB; secrets are left out, but read it before you send it\n")
