"""`rlcheck collect`: the facts of this machine, or of many, on disk."""

from __future__ import annotations

import os
import sys

from rlcheck.cli.facts_files import write_facts
from rlcheck.cli.interpreter import make_context
from rlcheck.cli.requests.machines import CollectRequest
from rlcheck.cli.waiting import Waiting, show_waiting
from rlcheck.doctor import clinic
from rlcheck.facts.document import encode
from rlcheck.measure.machine.gather import gather
from rlcheck.redact import redact_bytes
from rlcheck.report.wording import clean


def run(request: CollectRequest) -> int:
    """Write the facts of this machine, or of those of `--hosts`, redacted. 1 when a host has none.

    Raises:
        UserError: the output cannot be written, or the hosts cannot be used.
    """
    if request.hosts:
        return _collect_hosts(request)
    context = make_context(request.python, request.deep)
    facts = gather(context, clinic.summon(()).probes, request.timeout_s, show_waiting)
    write_facts(redact_bytes(encode((facts,)), os.environ), request.output)
    return 0


def _collect_hosts(request: CollectRequest) -> int:
    from rlcheck.measure.cluster.boards import facts_of_hosts

    with Waiting() as waiting:
        documents, without = facts_of_hosts(request.hosts, request.python, waiting)
    write_facts(redact_bytes(encode(documents), os.environ), request.output)
    for name, reason in without.items():
        sys.stderr.write(clean(f"rlcheck: {name} gave no facts: {reason}") + "\n")
    return 1 if without else 0
