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
from rlcheck.report.wording import clean


def run_collect(output: Path | None, timeout_s: float | None, python: str, deep: bool, hosts: str = "") -> int:
    """Write the facts of this machine, or of those of `--hosts`, redacted. 1 when a host has none.

    Raises:
        UserError: the output cannot be written, or the hosts cannot be used.
    """
    if hosts:
        return _collect_hosts(output, python, hosts)
    facts = gather(make_context(python, deep), clinic.summon(()).probes, timeout_s, show_waiting)
    _write(redact_bytes(encode((facts,)), os.environ), output)
    return 0


def _collect_hosts(output: Path | None, python: str, hosts: str) -> int:
    from rlcheck.cli.active import Waiting
    from rlcheck.cluster.boards import facts_of_hosts

    with Waiting() as waiting:
        documents, without = facts_of_hosts(hosts, python, waiting)
    _write(redact_bytes(encode(documents), os.environ), output)
    for name, reason in without.items():
        sys.stderr.write(clean(f"rlcheck: {name} gave no facts: {reason}") + "\n")
    return 1 if without else 0


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
