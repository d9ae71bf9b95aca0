"""Look at a Hugging Face cache from a process of its own, since its file system may never answer.

Reads one JSON object from standard input and prints one JSON line for each finished part: home, cache, write_test,
tokens, datasets, contents. Standard library only; runs as `python -I -S hub_child.py`.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
import time

REPO_KINDS = {"models": "num_models", "datasets": "num_datasets", "spaces": "num_spaces"}
NUM_NAMES = 5


class CutError(Exception):
    """The walk came to its limit."""


def say(item: str, value: object) -> None:
    """Print one finished part."""
    print(json.dumps({"item": item, "value": value}), flush=True)


def directory(path: str) -> dict:
    """Whether `path` is there, and what is known of it or of its nearest parent that is."""
    here = os.path.abspath(path)
    nearest = here
    while not os.path.lexists(nearest) and nearest != os.path.dirname(nearest):
        nearest = os.path.dirname(nearest)
    found = {"path": path, "exists": nearest == here, "nearest": nearest}
    try:
        found["real_path"] = os.path.realpath(nearest)
        info = os.stat(nearest)
        found.update(is_directory=stat.S_ISDIR(info.st_mode), owner_uid=info.st_uid, mode=stat.S_IMODE(info.st_mode))
        found["writable"] = os.access(nearest, os.W_OK | os.X_OK)
        space = os.statvfs(nearest)
    except OSError as error:
        found["is_directory"] = False if error.errno == 2 else found.get("is_directory", True)
        return found
    found.update(total_bytes=space.f_frsize * space.f_blocks, free_bytes=space.f_frsize * space.f_bavail)
    # Some file systems (btrfs, many network ones) have no fixed number of inodes and say 0 of 0.
    found["free_inodes"] = space.f_favail if space.f_files else -1
    return found


def write_test(where: str) -> dict:
    """Make, lock, link and remove a small file, as a download does."""
    name = os.path.join(where, ".rlcheck-probe-%d-%x" % (os.getpid(), time.time_ns()))
    found = {"directory": where}
    step = "create"
    try:
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o664)
        try:
            step = "write"
            os.write(handle, b"\0" * 4096)
            lock(handle, found)
        finally:
            os.close(handle)  # a network file system may report a full quota only here
        link(name, found)
        step = "remove"
        os.unlink(name)
    except OSError as error:
        found.update(failed_step=step, error=error.strerror or str(error))
        if step == "write":
            remove_if_possible(name)
    return found


def lock(handle: int, found: dict) -> None:
    """Take and release the lock that a download takes; note what the kernel says against it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError as error:
        found.update(lock_errno=error.errno or -1, lock_error=error.strerror or str(error))


def link(name: str, found: dict) -> None:
    """Make and remove a symbolic link, which is what a snapshot consists of."""
    try:
        os.symlink(os.path.basename(name), name + ".link")
    except OSError as error:
        found.update(symlink_errno=error.errno or -1, symlink_error=error.strerror or str(error))
        return
    os.unlink(name + ".link")


def remove_if_possible(name: str) -> None:
    """Remove a file that may be impossible to remove."""
    try:  # noqa: SIM105 - contextlib would add a fifth to the cost of this process
        os.unlink(name)
    except OSError:
        pass


def token_file(entry: dict) -> dict:
    """Whether a token file is there and who may read it. It is opened, never read."""
    found = dict(entry)
    try:
        info = os.stat(entry["path"])
    except OSError as error:
        found["exists"] = error.errno not in (2, 20)
        return found
    mode = stat.S_IMODE(info.st_mode) & ~closed_above(entry["path"])
    found.update(exists=True, owner_uid=info.st_uid, mode=mode, num_bytes=info.st_size)
    found["readable"] = stat.S_ISREG(info.st_mode) and os.access(entry["path"], os.R_OK)
    return found


def closed_above(path: str) -> int:
    """The rights of group and others that a directory above `path` takes away, since they cannot get past it."""
    closed, above = 0, os.path.dirname(os.path.realpath(path))
    while True:
        try:
            mode = os.stat(above).st_mode
        except OSError:
            return closed
        closed |= (0 if mode & 0o001 else 0o007) | (0 if mode & 0o011 else 0o070)
        if above == os.path.dirname(above):
            return closed
        above = os.path.dirname(above)


def home_directory(path: str) -> dict:
    """Whether the home directory is there, whose it is, and whether we may write in it."""
    try:
        info = os.stat(path)
    except OSError:
        return {"exists": False}
    return {"exists": stat.S_ISDIR(info.st_mode), "owner_uid": info.st_uid, "writable": os.access(path, os.W_OK)}


class Walk:
    """The bounded walk over a cache."""

    def __init__(self, cache: str, max_entries: int, max_s: float, stale_s: float) -> None:
        self.cache, self.max_entries, self.stale_s = cache, max_entries, stale_s
        self.now, self.deadline = time.time(), time.monotonic() + max_s
        self.max_s = max_s
        self.found: dict = {
            "models": [],
            "num_entries": 0,
            "complete": True,
            "cut_reason": "",
            "foreign_lock_uids": [],
        }
        self.found.update(dict.fromkeys(REPO_KINDS.values(), 0))
        for key in ("locks", "foreign_locks", "incomplete", "incomplete_recent", "dangling", "unreadable", "lost_refs"):
            self.found[key] = {"num": 0, "num_bytes": 0, "oldest_s": 0.0, "first": []}

    def run(self) -> dict:
        """Walk; what was found until the end or the limit."""
        try:
            self.walk_locks(os.path.join(self.cache, ".locks"))
            for entry in self.entries(self.cache):
                kind = REPO_KINDS.get(entry.name.split("--")[0]) if "--" in entry.name else None
                if kind and entry.is_dir():
                    self.found[kind] += 1
                    if kind == "num_models" and len(self.found["models"]) < 50:
                        self.found["models"].append(entry.name[len("models--") :].replace("--", "/"))
                    self.walk_repo(entry.path)
        except CutError as cut:
            self.found.update(complete=False, cut_reason=str(cut))
        return self.found

    def entries(self, path: str) -> object:
        """The entries of a directory, each counted against the limits; none of one that is not there."""
        try:
            with os.scandir(path) as listing:
                for entry in listing:
                    self.found["num_entries"] += 1
                    if self.found["num_entries"] > self.max_entries:
                        raise CutError("more than %d entries" % self.max_entries)
                    if time.monotonic() > self.deadline:
                        raise CutError("took more than %g s" % self.max_s)
                    yield entry
        except PermissionError:
            self.note("unreadable", path, None)
        except OSError:
            return

    def note(self, key: str, path: str, info: os.stat_result | None) -> None:
        """Count one more of `key`."""
        record = self.found[key]
        record["num"] += 1
        if info is not None:
            record["num_bytes"] += info.st_size
            record["oldest_s"] = max(record["oldest_s"], self.now - info.st_mtime)
        if len(record["first"]) < NUM_NAMES:
            record["first"].append(os.path.relpath(path, self.cache))

    def walk_locks(self, path: str, depth: int = 0) -> None:
        """Lock files, and those among them that we could not lock."""
        for entry in self.entries(path):
            if entry.is_dir(follow_symlinks=False) and depth < 3:
                self.walk_locks(entry.path, depth + 1)
            elif entry.name.endswith(".lock"):
                info = lstat(entry)
                self.note("locks", entry.path, info)
                if info is not None and not os.access(entry.path, os.W_OK):
                    self.note("foreign_locks", entry.path, info)
                    if info.st_uid not in self.found["foreign_lock_uids"]:
                        self.found["foreign_lock_uids"].append(info.st_uid)

    def walk_repo(self, repo: str) -> None:
        """Unfinished downloads, refs and snapshots of one repository."""
        for entry in self.entries(os.path.join(repo, "blobs")):
            info = lstat(entry) if entry.name.endswith(".incomplete") else None
            if info is not None:
                stale = self.now - info.st_mtime > self.stale_s
                self.note("incomplete" if stale else "incomplete_recent", entry.path, info)
        self.walk_refs(repo, os.path.join(repo, "refs"))
        for snapshot in self.entries(os.path.join(repo, "snapshots")):
            self.walk_snapshot(snapshot.path)

    def walk_refs(self, repo: str, path: str, depth: int = 0) -> None:
        """Refs whose snapshot is not there."""
        for entry in self.entries(path):
            if entry.is_dir(follow_symlinks=False) and depth < 3:
                self.walk_refs(repo, entry.path, depth + 1)
                continue
            try:
                with open(entry.path, encoding="utf-8", errors="replace") as file:
                    commit = file.read(100).strip()
            except OSError:
                continue
            if "/" in commit or "\0" in commit or not os.path.isdir(os.path.join(repo, "snapshots", commit or ".")):
                self.note("lost_refs", entry.path, None)

    def walk_snapshot(self, path: str, depth: int = 0) -> None:
        """Links that point nowhere and files that we may not read."""
        for entry in self.entries(path):
            if entry.is_dir(follow_symlinks=False):
                if depth < 20:
                    self.walk_snapshot(entry.path, depth + 1)
            elif not os.path.exists(entry.path):
                self.note("dangling", entry.path, None)
            elif not os.access(entry.path, os.R_OK):
                self.note("unreadable", entry.path, None)


def lstat(entry: os.DirEntry) -> os.stat_result | None:
    """What the entry itself is, or None when it has gone."""
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None


def main() -> None:
    """Look at each part in turn, the ones that matter most first."""
    wanted = json.load(sys.stdin)
    if wanted["home"]:
        say("home", home_directory(wanted["home"]))
    cache = directory(wanted["cache"])
    say("cache", cache)
    if cache["is_directory"]:
        say("write_test", write_test(cache["nearest"]))
    say("tokens", [token_file(entry) for entry in wanted["tokens"]])
    say("datasets", directory(wanted["datasets"]))
    if cache["exists"]:
        walk = Walk(cache["nearest"], wanted["max_entries"], wanted["max_s"], wanted["stale_s"])
        say("contents", walk.run())


if __name__ == "__main__":
    main()
