"""What `rlcheck nccl` does with the ranks that a launcher has started, without the report: for test_gathering."""

from __future__ import annotations

import json
import os
import sys

from rlcheck.errors import UserError
from rlcheck.measure.collectives.gathering import Follower, open_gathered
from rlcheck.measure.collectives.measuring import Request, measure


def main() -> int:
    board = open_gathered(os.environ, timeout_s=20.0)
    if isinstance(board, Follower):
        return board.serve()
    with board:
        if "DIE" in os.environ:
            os._exit(9)
        facts = measure(board, Request(quick=True, max_bytes=1 << 16, launcher=board.launcher))
    groups = [[group.phase, len(group.ranks), group.error, len(group.samples)] for group in facts.groups]
    pids = [rank.pid for rank in facts.ranks]
    print(json.dumps({"launcher": facts.launcher, "groups": groups, "pids": pids, "lost": facts.lost}), flush=True)
    board.announce(int(os.environ.get("CODE", "0")))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
