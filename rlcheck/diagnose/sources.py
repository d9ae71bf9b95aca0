"""Where logs come from: files, standard input, directories of logs; plain or compressed, of any size."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlcheck.diagnose.reader import Reader
from rlcheck.errors import UserError

MOST_FILES = 2_000
"""Of one directory. A Ray session of a large cluster has some hundred logs a node."""
MOST_LOOKED_AT = 100_000
_SUFFIXES = frozenset((".log", ".out", ".err", ".txt", ".stdout", ".stderr", ".output"))
_COMPRESSED = (".gz", ".bz2", ".xz")
NO_LOGS_IN = frozenset((".git", "__pycache__", "node_modules", "site-packages", "runtime_resources", "sockets"))
_NO_LOGS = frozenset(("requirements.txt", "LICENSE.txt", "CMakeLists.txt", "merges.txt", "vocab.txt"))
_SERVICES = ("dashboard", "gcs_server", "log_monitor", "monitor.", "raylet.", "runtime_env_")


@dataclass(frozen=True)
class Source:
    """One log to read. `path` is None for standard input; `note` says what was not taken instead of naming a log."""

    name: str
    path: str | None = None
    note: str = ""

    @contextmanager
    def open(self) -> Generator[Reader, None, None]:
        """Its bytes, unpacked.

        Raises:
            UserError: it cannot be opened.
        """
        if self.note:
            yield Reader.of_nothing(self.note)
            return
        descriptor = 0 if self.path is None else open_log(self.path)
        try:
            stream = os.fdopen(descriptor, "rb", closefd=self.path is not None)
        except OSError as error:
            raise UserError(f"{self.name}: cannot be read: {error.strerror}") from None
        with stream:
            yield Reader(stream)


def open_sources(paths: Sequence[str], others: frozenset[str] = frozenset()) -> Iterator[Source]:
    """The logs that `paths` name; `-` is standard input, a directory stands for the logs below it, sorted.

    OTHERS are files that were read otherwise, and are no logs: a directory may hold nothing else.

    Raises:
        UserError: a path does not exist, cannot be read, or is a directory without logs.
    """
    for path in dict.fromkeys(paths):
        if path == "-":
            yield Source("-")
        elif os.path.isdir(path):
            yield from _in_directory(path, others)
        elif path not in others:
            os.close(open_log(path))
            yield Source(path, path)


def open_log(path: str) -> int:
    """A descriptor of the file. A FIFO that nobody writes to is empty; it does not hang.

    Raises:
        UserError: there is no such file, it cannot be read, or it is no file at all.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UserError(_in_words(path, error)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or os.path.realpath(path) == os.devnull:
        os.set_blocking(descriptor, True)
        return descriptor
    os.close(descriptor)
    raise UserError(f"{path}: not a file but a {_kind(mode)}; name a log, a directory of logs, or - for standard input")


def _in_words(path: str, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path}: no such file; name a log, a directory of logs, or - for standard input"
    if isinstance(error, PermissionError):
        return f"{path}: not readable by this user; ask its owner, or run with the rights to read it"
    return f"{path}: cannot be read: {error.strerror if isinstance(error, OSError) else error}"


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "directory"
    return "socket" if stat.S_ISSOCK(mode) else "device"


def _in_directory(directory: str, others: frozenset[str]) -> Iterator[Source]:
    found: list[str] = []
    refused: list[str] = []
    seen: set[tuple[int, int]] = set()
    for number, path in enumerate(files_below(directory, refused)):
        if number >= MOST_LOOKED_AT or len(found) > MOST_FILES:
            break
        if path not in others and _is_log(path, seen, refused):
            found.append(path)
    if not found and not any(other.startswith(os.path.join(directory, "")) for other in others):
        why = f"{refused[0]} is not readable by this user" if refused else "it has no .log, .out, .err or .txt file"
        raise UserError(f"{directory}: no logs here: {why}; name the log itself")
    # Where times cannot be compared, the order of the logs decides what was first: services only tell who has died.
    yield from (Source(path, path) for path in sorted(found[:MOST_FILES], key=_is_service))
    if len(found) > MOST_FILES:
        yield Source(directory, note=f"only its first {MOST_FILES} logs were read; name the others")
    if refused:
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        yield Source(directory, note=f"not readable by this user: {refused[0]}{more}")


def files_below(directory: str, refused: list[str]) -> Iterator[str]:
    """All files below `directory`. Links to directories are not followed: they may lead in circles."""
    for place, directories, files in os.walk(directory, onerror=lambda error: refused.append(str(error.filename))):
        directories[:] = sorted(name for name in directories if name not in NO_LOGS_IN)
        yield from (os.path.join(place, name) for name in sorted(files))


def _is_log(path: str, seen: set[tuple[int, int]], refused: list[str]) -> bool:
    """Whether this is a regular file that looks like a log and was not seen under another name."""
    name = os.path.basename(path)
    if not named_like_a_log(name):
        return False
    try:
        status = os.stat(path)
        key = (status.st_dev, status.st_ino)
        if not stat.S_ISREG(status.st_mode) or key in seen:
            return False
        with open(path, "rb") as file:
            start = file.read(2048)
    except OSError:
        if not os.path.islink(path):
            refused.append(path)
        return False
    seen.add(key)
    return Path(name).suffix in _COMPRESSED or looks_like_text(start)


def _is_service(path: str) -> bool:
    """Whether one of Ray's own services has written it, which sees processes of the run from outside."""
    return os.path.basename(path).startswith(_SERVICES)


def named_like_a_log(name: str) -> bool:
    """`train.log`, `slurm-12.out`, `stderr`, `raylet.err.1`, `train.log.2026-11-22`, `node3.log.gz`, `job.o1234`."""
    if name in _NO_LOGS or name.startswith("."):
        return False
    suffixes = Path(name).suffixes
    if not suffixes:
        return True
    if _SUFFIXES.intersection(suffix.split("-")[0] for suffix in suffixes[-4:]):
        return not suffixes[-1][1:].isalpha() or suffixes[-1] in _SUFFIXES or suffixes[-1] in _COMPRESSED
    return suffixes[-1][1:2] in ("o", "e") and suffixes[-1][2:].isdigit()


def looks_like_text(start: bytes) -> bool:
    """Whether a file that begins like this is text: few control characters, or UTF-16 with its mark."""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return True
    odd = len(start) - len(start.translate(None, bytes({*range(32)} - {8, 9, 10, 12, 13, 27})))
    return odd * 20 <= len(start)
