"""Which files of a run go into a bundle, and how much of each: bounded in number, bytes and time, and within the run.

Links are never followed, whatever they lead to: a bundle is sent to strangers. What is left out is said in a note.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from rlcheck.diagnose.hang import stacks
from rlcheck.diagnose.hang.dumps import NoDump, looks_like_dump, plain
from rlcheck.diagnose.sources import NO_LOGS_IN, looks_like_text, named_like_a_log
from rlcheck.redact import redact_bytes

MOST_LOOKED_AT = 100_000
_DEEPEST = 8
_START = 8192
_LINE = 4000
"""Characters of a line; more are cut."""
_CHECKPOINT = re.compile(r"(?:checkpoint|global_step|iter|step)s?[-_]?\d*$")
_CONFIGS = (".yaml", ".yml", ".toml", ".sh", ".json")
_NO_CONFIGS = re.compile(r"tokenizer|vocab|merges|trainer_state|samples|rollout_data|special_tokens|generation_config")
_NEVER = (".safetensors", ".pt", ".pth", ".parquet", ".jsonl", ".distcp", ".so", ".gz", ".png", ".bin")
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_ENTRIES = 500
_SECRET = re.compile(
    r"(?i)((?:(?:api|access|secret|private|auth|signing)[_-]?keys?|secret|passw(?:or)?d|pwd|passphrase|credentials?"
    r"|authorization|(?:api|auth|access|bearer|hf|hub|github|session|wandb)[_-]?tokens?)"
    r"[\"']?\s*[:=]\s*[\"']?)(?!(?:true|false|null|none)\b)[^\s\"',}\]&]{3,}"
)
_SECRET_VARIABLE = re.compile(r"(?i)(?:key|token|secret|passw(?:or)?d|credentials?)(?:_|$)")


@dataclass(frozen=True)
class Share:
    """How much of one kind of file is taken: files, bytes of each (from its end; of a config, all or nothing)."""

    files: int
    each: int


SHARES = {
    "config": Share(40, 256 << 10),
    "logs": Share(300, 96 << 10),
    "stacks": Share(256, 256 << 10),
    "dumps": Share(256, 256 << 10),
}
_MOST_DUMP = 16 << 20
"""Bytes of a dump that is read; of its calls the last are kept."""


@dataclass
class Gathered:
    """What a run's folder gave. taken: by the name in the bundle, redacted. origin: the paths of logs, stacks and dumps
    that were taken, relative to the run. outward: a link that leads out of the run, "" where there is none."""

    taken: dict[str, bytes] = field(default_factory=dict[str, bytes])
    origin: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    outward: str = ""


def gather(root: Path, environ: Mapping[str, str], seconds: float, on: Callable[[str], None]) -> Gathered:
    """Take what is about the run in ROOT, in at most about SECONDS. ENVIRON: whose secrets and names are left out."""
    deadline = time.monotonic() + seconds
    found, clean = Gathered(), Cleaner(environ)
    counts, more = Counter[str](), Counter[str]()
    for path in _files(root, found, deadline):
        name = os.path.relpath(path, root)
        on(name)
        if time.monotonic() > deadline:
            found.notes.append(f"reading took too long: what comes after {name} was left out")
            break
        kind, data = _read(path, name, found, counts)
        if kind and data is None:
            more[kind] += 1
        if not kind or data is None:
            continue
        counts[kind] += 1
        if kind != "config":
            found.origin.append(name)
        end = ".json" if kind == "dumps" and not name.endswith(".json") else ""
        found.taken[kind + clean.text(f"/{name}") + end] = clean.text(data).encode("utf-8", "replace")
    found.notes += [f"{count} more files of {kind} were left out: a bundle takes {SHARES[kind].files}"
                    for kind, count in more.items()]  # fmt: skip
    return found


class Cleaner:
    """Takes secrets and names of people out of any text, also values of secret variables that stand without a name."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        values = {value for name, value in environ.items() if _SECRET_VARIABLE.search(name) and len(value) >= 8}
        self._values = sorted(values, key=len, reverse=True)

    def text(self, text: str) -> str:
        """TEXT without them."""
        for value in self._values:
            text = text.replace(value, "***")
        # As in a report: encoded JSON is what the patterns are made for.
        encoded = redact_bytes(json.dumps(text).encode(), self.environ)
        return _SECRET.sub(r"\1***", str(json.loads(encoded)))


def _files(root: Path, found: Gathered, deadline: float) -> Iterator[str]:
    """Regular files below ROOT, those nearest to it first; links are noted, and not followed."""
    places: deque[tuple[str, int]] = deque([(str(root), 0)])
    looked, links, refused = 0, 0, list[str]()
    inside = os.path.realpath(root)
    while places:
        place, depth = places.popleft()
        files: list[str] = []
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    looked += 1
                    if looked > MOST_LOOKED_AT or time.monotonic() > deadline:
                        break
                    if entry.is_symlink():
                        links += 1
                        out = not os.path.realpath(entry.path).startswith(inside + os.sep)
                        found.outward = found.outward or (os.path.relpath(entry.path, root) if out else "")
                    elif entry.is_dir(follow_symlinks=False):
                        if depth < _DEEPEST and entry.name not in NO_LOGS_IN and not _CHECKPOINT.fullmatch(entry.name):
                            places.append((entry.path, depth + 1))
                    elif entry.is_file(follow_symlinks=False):
                        files.append(entry.path)
        except OSError as error:
            refused.append(f"{os.path.relpath(place, root)}: {error.strerror}")
        yield from sorted(files, key=_in_numbers)
        if looked > MOST_LOOKED_AT or time.monotonic() > deadline:
            found.notes.append(
                f"not all of the folder was looked at: {looked:,} entries, {len(places)} folders are left"
            )
            break
    if links:
        found.notes.append(f"{links} links were not followed")
    found.notes += [f"not read: {one}" for one in refused[:5]]


def _in_numbers(path: str) -> tuple[str | int, ...]:
    """`rank_2` before `rank_10`."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"([0-9]{1,18})", os.path.basename(path)))


def _read(path: str, name: str, found: Gathered, counts: Mapping[str, int]) -> tuple[str, str | None]:
    """What kind of file PATH is, "" for none that is wanted, and its text or the end of it.

    The text is None where COUNTS says that the bundle has enough files of this kind.
    """
    if name.endswith(_NEVER):
        return "", ""
    try:
        descriptor = os.open(path, _OPEN)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or not status.st_size:
                return "", ""
            start = file.read(_START)
            kind = _kind(name, start, status.st_size)
            if kind and counts[kind] >= SHARES[kind].files:
                return kind, None
            if kind == "dumps":
                file.seek(0)
                return kind, _dump(file.read(_MOST_DUMP + 1))
            return kind, _end(file, start, status.st_size, SHARES[kind].each) if kind else ""
    except NoDump as error:
        found.notes.append(f"not taken: {name}: {error}")
    except OSError as error:
        if named_like_a_log(os.path.basename(name)):
            found.notes.append(f"not read: {name}: {error.strerror}")
    return "", ""


def _kind(name: str, start: bytes, size: int) -> str:
    base = os.path.basename(name)
    if looks_like_dump(start):
        return "dumps"
    if not looks_like_text(start):
        return ""
    if stacks.looks_like_stacks(start):
        return "stacks"
    if base.endswith(_CONFIGS) and name.count(os.sep) <= 2:
        return "config" if size <= SHARES["config"].each and not _NO_CONFIGS.search(base) else ""
    return "logs" if named_like_a_log(base) else ""


def _dump(data: bytes) -> str:
    if len(data) > _MOST_DUMP:
        raise NoDump(f"it is larger than {_MOST_DUMP >> 20} MiB")
    value: dict[str, Any] = dict(plain(data))
    entries = value.get("entries")
    kept: list[Any] = list(cast("list[Any]", entries))[-_ENTRIES:] if isinstance(entries, list | tuple) else []
    while kept:
        text = json.dumps({**value, "entries": kept}, default=str)
        if len(text) <= SHARES["dumps"].each:
            return text
        kept = kept[len(kept) // 2 + 1 :]
    raise NoDump("it holds no call, or one that is too large")


def _end(file: Any, start: bytes, size: int, most: int) -> str:
    """The text of FILE; of a long one its first lines, which say what was started, and its end."""
    if size <= most:
        file.seek(0)
        return _cut(file.read(most).decode("utf-8", "replace"))
    file.seek(size - most)
    end = file.read(most).decode("utf-8", "replace").partition("\n")[2]
    begin = start.decode("utf-8", "replace").rpartition("\n")[0]
    return _cut(f"{begin}\n[… {(size - most - _START) >> 10:,} KiB are left out …]\n{end}")


def _cut(text: str) -> str:
    return "\n".join(
        line if len(line) <= _LINE else f"{line[:_LINE]} …" for line in text.replace("\r", "\n").split("\n")
    )
