"""The Hugging Face cache: where it is, whether it can be used, and what is in it."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct


class PathSetting(Struct, frozen=True):
    """A variable that names a directory, as it was when it was collected.

    `resolved` is what the library that reads it makes of it. `relative`, `has_tilde` and `has_variable` describe the
    value itself: recorded here since a saved document may have its home directories rewritten.
    """

    name: str
    value: str
    resolved: str = ""
    relative: bool = False
    has_tilde: bool = False
    has_variable: bool = False


class Directory(Struct, frozen=True):
    """A directory and the space around it.

    `exists` is about `path`; when it is not there, all other fields are those of `nearest`, the closest parent that is.
    `real_path` has its symbolic links followed. `writable` is what the kernel's access check says; a true write is
    `WriteTest`. Sizes are what this user may use, after the reserve for root; -1 means that it was not said.
    """

    path: str
    exists: bool = False
    is_directory: bool = True
    nearest: str = ""
    real_path: str = ""
    owner_uid: int = -1
    mode: int = 0
    writable: bool = False
    total_bytes: int = -1
    free_bytes: int = -1
    free_inodes: int = -1


class WriteTest(Struct, frozen=True):
    """The outcome of making a file in `directory`, locking it, linking to it and removing it.

    `failed_step` is the first of create, write, remove that failed, or "". `lock_errno` and `symlink_errno` are 0 when
    the lock or the link was made.
    """

    directory: str
    failed_step: str = ""
    error: str = ""
    lock_errno: int = 0
    lock_error: str = ""
    symlink_errno: int = 0
    symlink_error: str = ""


class Leftovers(Struct, frozen=True):
    """Files of one kind. Ages count from the last modification; `first` names one or a few, relative to the cache."""

    num: int = 0
    num_bytes: int = 0
    oldest_s: float = 0.0
    first: tuple[str, ...] = ()


class CacheContents(Struct, frozen=True):
    """What a walk over the cache found.

    `locks` are all lock files, `foreign_locks` those that this user cannot open for writing, with their owners.
    `incomplete` are downloads not touched for an hour, `incomplete_recent` the others (someone is downloading).
    `dangling` are links of a snapshot that point nowhere, `unreadable` what this user may not read, `lost_refs` refs
    to a snapshot that is not there. `complete` is False when the walk was cut off (`cut_reason`): all numbers are then
    lower bounds.
    """

    num_models: int = 0
    num_datasets: int = 0
    num_spaces: int = 0
    models: tuple[str, ...] = ()
    locks: Leftovers = Leftovers()
    foreign_locks: Leftovers = Leftovers()
    foreign_lock_uids: tuple[int, ...] = ()
    incomplete: Leftovers = Leftovers()
    incomplete_recent: Leftovers = Leftovers()
    dangling: Leftovers = Leftovers()
    unreadable: Leftovers = Leftovers()
    lost_refs: Leftovers = Leftovers()
    num_entries: int = 0
    complete: bool = True
    cut_reason: str = ""


class TokenFile(Struct, frozen=True):
    """A file that a Hub token is read from; never its content. `read_by_library` is False for a place of the past.

    `mode` is without the rights of group and others that a closed directory above the file takes away.
    """

    path: str
    exists: bool = False
    readable: bool = False
    owner_uid: int = -1
    mode: int = 0
    num_bytes: int = 0
    read_by_library: bool = True


class HomeDirectory(Struct, frozen=True):
    """The home directory that the cache is under. `source` is HOME, passwd or ""; `passwd` is the account's own."""

    path: str = ""
    source: str = ""
    passwd: str = ""
    exists: bool = False
    owner_uid: int = -1
    writable: bool = False


class HubFacts(Struct, frozen=True):
    """The Hugging Face cache of the user that runs the doctor.

    `cache_dir` is resolved as huggingface_hub does; `cache_source` names the variable that decided, or default.
    `home_decides` says that the cache is below the home directory for want of any setting. `settings` are the
    variables with a path in them. `fs_type` is the file system under the cache, `fs_is_network` whether that is another
    machine's.
    """

    uid: int = -1
    cache_dir: str = ""
    cache_source: str = ""
    datasets_dir: str = ""
    datasets_source: str = ""
    home_decides: bool = False
    settings: tuple[PathSetting, ...] = ()
    home: Fact[HomeDirectory] = Fact()
    cache: Fact[Directory] = Fact()
    datasets: Fact[Directory] = Fact()
    write_test: Fact[WriteTest] = Fact()
    contents: Fact[CacheContents] = Fact()
    tokens: Fact[tuple[TokenFile, ...]] = Fact()
    fs_type: Fact[str] = Fact()
    fs_point: str = ""
    fs_is_network: bool = False
