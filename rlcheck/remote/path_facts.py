"""Looks at paths that may lie on a network file system and so may hang; prints one JSON line a path.

Input: {"paths": [...]}. Output lines: {"path", "exists", "readable", "writable", "free_bytes"}.
"""

import json
import os
import sys


def look(path: str) -> dict:
    """Existence, access and free bytes (-1: unknown) of one path."""
    facts = {"path": path, "exists": os.path.exists(path), "readable": os.access(path, os.R_OK)}
    facts["writable"] = os.access(path, os.W_OK | os.X_OK)
    try:
        stat = os.statvfs(path)
        facts["free_bytes"] = stat.f_bavail * stat.f_frsize
    except (OSError, ValueError):
        facts["free_bytes"] = -1
    return facts


def main() -> None:
    """Answer for each path as soon as it is known."""
    for path in json.load(sys.stdin)["paths"]:
        try:
            print(json.dumps(look(path)), flush=True)
        except (OSError, ValueError):
            continue


if __name__ == "__main__":
    main()
