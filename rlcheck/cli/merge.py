"""`rlcheck merge`: the facts files of several nodes in one."""

from __future__ import annotations

from rlcheck.cli.facts_files import recorded, write_facts
from rlcheck.cli.requests.machines import MergeRequest
from rlcheck.errors import UserError
from rlcheck.facts.document import Facts, encode


def run(request: MergeRequest) -> int:
    """Write one file with the nodes of all files, in their order.

    Raises:
        UserError: a file cannot be read, or two record the same node.
    """
    nodes: dict[str, Facts] = {}
    for path in request.files:
        for facts in recorded(path):
            if facts.node in nodes:
                raise UserError(f"{path}: node {facts.node!r} is already in an earlier file; leave one of them out")
            nodes[facts.node] = facts
    write_facts(encode(tuple(nodes.values())), request.output)
    return 0
