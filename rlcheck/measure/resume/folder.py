"""The files below a checkpoint's folder, without following links out of it, and without end neither."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from rlcheck.facts.resume import Damage
from rlcheck.measure.resume.files import NotWhole, damage_of, mapping, read_object

_MOST_FILES = 100_000
_DEEPEST = 5
_SHOWN = 16


@dataclass(frozen=True)
class Folder:
    """A folder and its regular files: path from there to bytes. `cut`: there were more than are read."""

    path: Path
    sizes: dict[str, int]
    cut: bool = False

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(self.sizes.values())

    def names(self, below: str = "") -> list[str]:
        """The files right in BELOW, without that part."""
        start = f"{below}/" if below else ""
        return [name.removeprefix(start) for name in self.sizes if name.startswith(start) and "/" not in
                name.removeprefix(start)]  # fmt: skip

    def has_below(self, below: str) -> bool:
        """Whether a file is in BELOW, at whatever depth."""
        return any(name.startswith(f"{below}/") for name in self.sizes)

    def look(self, name: str, *, read_all: bool = False) -> Damage | None:
        """What is wrong with the file NAME."""
        return damage_of(self.path / name, name, read_all=read_all)


def read_folder(path: Path) -> Folder:
    """The files below PATH."""
    sizes: dict[str, int] = {}
    waiting = [("", 0)]
    cut = False
    while waiting:
        below, depth = waiting.pop()
        try:
            entries = sorted(os.scandir(path / below), key=lambda one: one.name)
        except OSError:
            continue
        for entry in entries:
            name = f"{below}/{entry.name}" if below else entry.name
            if len(sizes) >= _MOST_FILES:
                return Folder(path, sizes, cut=True)
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting += [(name, depth + 1)] if depth < _DEEPEST else []
                    cut |= depth >= _DEEPEST
                elif stat.S_ISREG((found := entry.stat()).st_mode):
                    sizes[name] = found.st_size
            except OSError:
                continue
    return Folder(path, sizes, cut)


def looked_at(folder: Folder, names: list[str], *, read_all: bool = False) -> tuple[Damage, ...]:
    """What is wrong with the files NAMES, as far as it is shown."""
    found = (folder.look(name, read_all=read_all) for name in names)
    return _first(tuple(damage for damage in found if damage is not None))


def _first(damages: tuple[Damage, ...]) -> tuple[Damage, ...]:
    return damages[:_SHOWN]


def missing_ranks(pattern: str, ranks: set[int], world_size: int) -> tuple[Damage, ...]:
    """Files PATTERN (with `{}` for the rank) that some of WORLD_SIZE ranks lack, as one damage."""
    gone = [rank for rank in range(min(world_size, 1 << 16)) if rank not in ranks]
    if not gone:
        return ()
    more = f", as are those of {len(gone) - 1} more ranks of {world_size}" if len(gone) > 1 else ""
    return (Damage(file=pattern.format(gone[0]), kind="missing", why=f"is missing{more}"),)


def shards(folder: Folder, below: str = "", *, read_all: bool = False) -> tuple[bool, tuple[Damage, ...]]:
    """Whether weights in Hugging Face layout are in BELOW, and what is wrong with them."""
    start = f"{below}/" if below else ""
    here = folder.names(below)
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if index not in here:
            continue
        try:
            listed = mapping(read_object(folder.path / start / index).get("weight_map"))
            names = {str(name) for name in listed.values()}
            if not names or any("/" in name for name in names):
                raise NotWhole("changed", "names no files")
        except NotWhole as error:
            return True, (Damage(file=start + index, kind=error.kind, why=error.why),)
        return True, looked_at(folder, sorted(start + name for name in names), read_all=read_all)
    single = [name for name in here if name in ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors",
              "adapter_model.bin")]  # fmt: skip
    return bool(single), looked_at(folder, [start + name for name in single], read_all=read_all)


def distributed(folder: Folder, below: str) -> tuple[Damage, ...]:
    """What is wrong with what torch.distributed.checkpoint wrote into BELOW; its `.metadata` comes last."""
    here = folder.names(below)
    if ".metadata" not in here:
        return (Damage(file=f"{below}/.metadata", kind="missing", why="is missing: the save did not come to its end"),)
    names = [f"{below}/{name}" for name in sorted(here) if name.endswith(".distcp")]
    return looked_at(folder, [f"{below}/.metadata", *names])
