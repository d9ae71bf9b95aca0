"""What a broken uninstall leaves behind, and what shadows or confuses the packages that came after it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from .distributions import Record
from .files import Listings, text
from .owners import tops_of

_IMPORTED = re.compile(r"(?:^|;)[ \t]*import[ \t]+([A-Za-z_]\w*)")
_FINDER_MAPPING = re.compile(r"^MAPPING\b[^=\n]*=\s*(\{.*\})\s*$", re.M)


def find(
    site_directories: Iterable[str],
    records: list[Record],
    listings: Listings,
    unowned: Iterable[str],
    is_module: Callable[[str], bool],
) -> tuple[str, ...]:
    """One `path: what it is` for each left-over. `unowned` are package directories that no distribution claims.

    `is_module` says whether a name can be imported.
    """
    found: list[str] = []
    for directory in site_directories:
        for name in listings.names(directory):
            path = f"{directory}/{name}"
            if name.startswith("~"):
                found.append(f"{path}: half-removed package (pip renames to this while it uninstalls)")
            elif name.endswith(".pth"):
                found += [f"{path}: {what}" for what in _dead_path_entries(directory, text(path, 1 << 16))]
                found += [f"{path}:{what}" for what in _dead_imports(text(path, 1 << 16), is_module)]
            elif name.startswith("__editable__") and name.endswith("_finder.py"):
                found += [f"{path}: {what}" for what in _dead_mapping(text(path, 1 << 20))]
    for record in records:
        if not record.details.get("broken", "").startswith("no readable"):
            continue
        # With its files there it is an installed package, whose record is broken: that is not to be removed.
        if not any(os.path.exists(f"{record.location}/{top}") for top in tops_of(record)):
            found.append(f"{record.info}: {record.details['broken']}")
    found += [f"{path}: package directory that no installed distribution owns" for path in unowned]
    return tuple(found)


def _dead_path_entries(directory: str, lines: str) -> list[str]:
    dead = []
    for line in lines.splitlines():
        entry = line.strip()
        if entry and not entry.startswith(("#", "import ", "import\t")):
            target = os.path.join(directory, entry)
            if "\0" not in target and not os.path.exists(target):
                dead.append(f"points to {entry}, which does not exist")
    return dead


def _dead_imports(lines: str, is_module: Callable[[str], bool]) -> list[str]:
    """The lines that cannot be run, since what they import is not there."""
    dead = []
    for number, line in enumerate(lines.splitlines(), 1):
        for name in _IMPORTED.findall(line) if line.startswith(("import ", "import\t")) else ():
            if not is_module(name):
                dead.append(f"{number}: imports {name}, which is not there; Python ignores the rest of this file")
    return dead


def _dead_mapping(source: str) -> list[str]:
    """The packages of an editable install whose sources are gone."""
    import ast  # slow to import, and few environments have such a file

    match = _FINDER_MAPPING.search(source)
    try:
        mapping = ast.literal_eval(match.group(1)) if match else {}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return []
    items = mapping.items() if isinstance(mapping, dict) else ()
    targets = [(name, target) for name, target in items if isinstance(target, str) and "\0" not in target]
    return [
        f"maps {name} to {target}, which does not exist"
        for name, target in targets
        if not os.path.exists(target) and not os.path.exists(f"{target}.py")
    ]


def unowned_packages(
    names: Iterable[str],
    site_directories: Iterable[str],
    owned: set[str],
    claims: Callable[[str], bool],
    listings: Listings,
) -> list[str]:
    """Directories of stack packages that no distribution installed.

    Args:
        names: import names to look for.
        site_directories: where distributions are installed.
        owned: the import names that the stack's own distributions install.
        claims: whether any other distribution installs this import name; asked seldom, because it is slow.
        listings: of the directories.
    """
    found = []
    for name in names:
        if name in owned:
            continue
        places = [
            f"{directory}/{name}"
            for directory in site_directories
            if listings.has(directory, name) and os.path.isdir(f"{directory}/{name}")
        ]
        if places and not claims(name):
            found += places
    return found
